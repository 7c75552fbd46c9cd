"""Results as text: counts, and tables in aligned text or Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any


def count(number: int, word: str) -> str:
    """A number of things.

    >>> count(1, "pair"), count(2, "pair")
    ('1 pair', '2 pairs')
    """
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def format_table(rows: Sequence[Mapping[str, Any]], style: str = "text", decimals: int = 3) -> str:
    """A table with a column for each key of the first row; numbers to the right, words to the left.

    >>> print(format_table([{"name": "a", "share": 0.25}, {"name": "bcd", "share": None}]))
    name  share
    a     0.250
    bcd       -
    >>> print(format_table([{"name": "a", "count": 3}], "markdown"))
    | name | count |
    |:-----|------:|
    | a    |     3 |
    """
    if not rows:
        return ""
    columns = list(rows[0])
    cells = [[_cell(row[column], decimals) for column in columns] for row in rows]
    words = [any(isinstance(row[column], str) for row in rows) for column in columns]
    widths = [max(len(line[i]) for line in (columns, *cells)) for i in range(len(columns))]

    def line(texts: Sequence[str]) -> str:
        padded = [t.ljust(w) if left else t.rjust(w) for t, w, left in zip(texts, widths, words, strict=True)]
        return "| " + " | ".join(padded) + " |" if style == "markdown" else "  ".join(padded).rstrip()

    head = [line(columns)]
    if style == "markdown":
        rules = (":" + "-" * (w + 1) if left else "-" * (w + 1) + ":" for w, left in zip(widths, words, strict=True))
        head.append("|" + "|".join(rules) + "|")
    return "\n".join([*head, *(line(texts) for texts in cells)])


def _cell(value: Any, decimals: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)
