"""The command line: `ananet COMMAND`. One small file a command.

Each command's module has `add_arguments(parser)` and `run(arguments) -> exit code`, and imports heavy libraries
inside `run` alone, so that help appears at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ananet import __version__
from ananet.errors import InputError, MissingExtraError

COMMANDS = {
    "match": "match two photos, prune the matches, draw them",
    "prune": "prune matches that are stored in an .npz file",
    "demo": "prune the matches of a photo pair with known geometry, and show what it brought",
    "list": "list the pruners",
    "data": "make training pairs from photos",
    "evaluate": "measure pruners on pairs with known truth",
    "benchmark": "measure how fast pruners and networks are",
    "explain": "show what a trained network sees in two photos",
    "train": "train ANA-Net, or fine-tune it on pairs of your own",
}

# Exit codes: 0 all well, 1 no answer (photos that do not overlap), 2 wrong arguments or unreadable input.
BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ananet", description="Finds the right ones among putative keypoint matches of two photos."
    )
    parser.add_argument("--version", action="version", version=f"ananet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        import_module(f"ananet.cli.{name}").add_arguments(subparser)
    arguments = parser.parse_args(argv)
    # Threads that spin while they wait for each other make a busy machine many times slower. Read when torch starts.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    command = " ".join(filter(None, (arguments.command, getattr(arguments, "action", None))))
    try:
        return import_module(f"ananet.cli.{arguments.command}").run(arguments)
    except BrokenPipeError:
        # The reader of our output went away, as `| head` does; nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InputError, MissingExtraError, OSError) as error:
        print(f"ananet {command}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
