"""Write the tables of README and documentation that are measured on the repository's validation pairs.

    python tools/write_tables.py            # or: make tables
    python tools/write_tables.py --check    # or: make tables CHECK=1; changes nothing, fails if a table differs

A table lies between `<!-- table: NAME -->` and `<!-- end of table -->`; names are those of
`ananet.evaluation.pair_sets.TABLES`. Summaries are kept in build/tables, so that only what changed is measured again.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from ananet._util.tables import format_table
from ananet.evaluation.pair_sets import TABLES, Measurements

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PLACE = re.compile(r"(?<=<!-- table: )([^\n]+?)( -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table differs")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    arguments = parser.parse_args()
    measured = Measurements(
        ROOT / "benchmarks" / "pairs" / "validation",
        summaries=ROOT / "build" / "tables",
        workers=arguments.workers,
        progress=sys.stderr.isatty(),
    )
    differences = ""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = with_tables(before, lambda name: format_table(TABLES[name](measured), "markdown"))
        lines = (text.splitlines(keepends=True) for text in (before, after))
        differences += "".join(difflib.unified_diff(*lines, *(2 * [str(page.relative_to(ROOT))])))
        if not arguments.check and after != before:
            page.write_text(after, encoding="utf-8")
    print(differences or "all tables are as measured")
    return int(arguments.check and bool(differences))


def with_tables(text: str, table: Callable[[str], str]) -> str:
    """The text of a page with every marked table written anew."""
    return PLACE.sub(lambda place: f"{place[1]}{place[2]}\n{table(place[1])}\n\n", text)


if __name__ == "__main__":
    # Workers of the evaluation import this script.
    sys.exit(main())
