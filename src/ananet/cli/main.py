"""The command line: `ananet COMMAND`. One file per command.

Each command's module has `add_arguments(parser)` and `run(arguments) -> exit code`, and imports heavy libraries
only inside `run`, so that help appears at once.
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module

from ananet import __version__
from ananet.errors import InputError, MissingExtraError

COMMANDS = {
    "match": "match photos, prune the matches, draw them",
    "prune": "prune matches that are stored in an .npz file",
    "colmap": "prune the matches of a COLMAP database",
    "sfm": "make a 3D model of photos with COLMAP and pruned matches",
    "hloc": "prune the matches of hloc",
    "export": "write a trained network as an ONNX file",
    "demo": "prune the matches of a photo pair with known geometry, and show the result",
    "list": "list pruners, detectors, matchers and estimators",
    "bulk": "prune millions of pairs, on one machine or a cluster",
    "web": "start a page in the browser, and an HTTP service",
    "data": "make training pairs from photos",
    "evaluate": "measure pruners on pairs with known truth",
    "explain": "show what a trained network sees in two photos (needs the extra plots)",
    "train": "train ANA-Net, or fine-tune it on your own pairs",
}

EXIT_CODES = """\
exit codes:
  0    success
  1    the photos do not overlap (all files are written nevertheless)
  2    wrong arguments, unreadable input, or a missing package
  3    crash: a bug in ananet, or out of memory
  130  interrupted
  143  colmap was ended by SIGTERM
"""
BAD_INPUT, CRASHED, INTERRUPTED = 2, 3, 130


def _limit_spinning() -> None:
    """Let idle OpenMP threads sleep after a few microseconds: threads that spin make a busy machine many times slower.

    OpenMP reads this once, when torch is imported (docs/speed.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    _limit_spinning()
    warnings.formatwarning = lambda message, *_, **__: f"ananet: warning: {message}\n"
    parser = argparse.ArgumentParser(
        prog="ananet",
        description="Find the correct keypoint matches between two photos.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ananet {__version__}")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        import_module(f"ananet.cli.{name}").add_arguments(subparser)
        _add_debug(subparser)
    # Damaged EXIF data counts as none.
    warnings.filterwarnings("ignore", module="PIL")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        # Prints the usage of this command only.
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    command = " ".join(filter(None, (arguments.command, getattr(arguments, "action", None))))
    try:
        return import_module(f"ananet.cli.{arguments.command}").run(arguments)
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InputError, MissingExtraError, OSError) as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"ananet {command}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        advice = "" if arguments.debug else " (run again with --debug for the traceback)"
        if arguments.debug:
            traceback.print_exc()
        print(f"ananet {command}: crashed: {_in_one_line(error)}{advice}", file=sys.stderr)
        return CRASHED


def _add_debug(parser: argparse.ArgumentParser) -> None:
    """Accept --debug after the command too, without resetting one that was given before it."""
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _add_debug(subparser)


def _in_one_line(error: Exception) -> str:
    """Return the error's type and the first line of its message; a MemoryError has none."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
