"""The long form of the fuzz suite: rounds of new cases until the time is over.

python -m tests.fuzz [--seconds 600] [--seed 0] [TARGET ...]
"""

import argparse
import faulthandler
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ananet
from tests.fuzz import api, commands, properties, readers  # noqa: F401 (they add their targets)
from tests.fuzz.campaign import TARGETS, run
from tests.fuzz.growth import measure

CASES = 100
CALLS = 5000
SLOW_CASES = 10
# Always answered: so many that about as many cases are answered as refused.
ANSWERED_CASES = 300
ANSWERED = ("order", "swapped photos", "other pixels", "a copy", "a far match", "together", "poses")
SLOW = ("large networks", "commands", "detectors", "group_motions")


def check_growth() -> list[str]:
    """Many calls; what they leave in memory, and whether they get slower. Returns what does."""
    grown = []
    for name in ("ananet-small", "lpm"):
        found = measure(ananet.load(name, device="cpu"), CALLS)
        print(
            f"{name}: {CALLS} calls, {found.megabytes:+.1f} MB, "
            f"{1000 * found.seconds_before:.2f} ms each at first, {1000 * found.seconds_after:.2f} ms at the end"
        )
        if found.megabytes > 20 or found.seconds_after > 2 * found.seconds_before:
            grown.append(f"growth of {name}")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the whole campaign (default: 600)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of its first round; the next one has the next (default: 0)"
    )
    parser.add_argument("--keep-going", action="store_true", help="go on with the other targets after a failure")
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    # A crash of a library would end the process without a word.
    faulthandler.enable()
    end, seed = time.monotonic() + arguments.seconds, arguments.seed
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    failed: list[str] = []
    while time.monotonic() < end and len(failed) < len(names):
        for name in names:
            if name in failed or time.monotonic() > end:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    cases = SLOW_CASES if name in SLOW else ANSWERED_CASES if name in ANSWERED else CASES
                    counts[name] += run(name, Path(folder), cases, seed)
                except Exception as error:
                    failed.append(name)
                    print(f"{name}, seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
                    for note in getattr(error, "__notes__", ()):
                        print(note, file=sys.stderr)
                    sys.excepthook(type(error), error, error.__traceback__)
                    if not arguments.keep_going:
                        return 1
        seed += 1
    if not arguments.targets:
        failed += check_growth()
    for name, count in counts.items():
        print(f"{name:20} {count.total():7} cases, {count['refused']:7} of them refused")
    total = sum(counts.values(), Counter())
    which = f": {', '.join(failed)}" if failed else ""
    print(
        f"{total.total()} cases of {len(names)} targets, {total['answered']} answered and {total['refused']} refused, "
        f"{len(failed)} failures{which}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
