"""`ananet list`: the pruners by name, and their options; the detectors, and the licences of their weights."""

import argparse

from ananet.checks import describe
from ananet.cli.arguments import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.defaults import PRUNER
    from ananet.features import DETECTORS
    from ananet.names import option_text
    from ananet.pruners import describe_pruners

    pruners = describe_pruners()
    detectors = {
        name: {"summary": (make.__doc__ or "").partition("\n")[0], "licence": getattr(make, "licence", None)}
        for name in DETECTORS.names
        for make in [DETECTORS[name]]
    }
    if arguments.json:
        described = {
            name: {
                "summary": found.summary,
                "options": {
                    option: {"type": describe(of.kind), "default": option_text(of.default)}
                    for option, of in found.options.items()
                },
            }
            for name, found in pruners.items()
        }
        print_json({"default": PRUNER, "pruners": described, "detectors": detectors})
        return 0
    width = max(map(len, pruners))
    for name, found in pruners.items():
        print(f"{name:{width}}  {found.summary}{' (default)' if name == PRUNER else ''}")
        for option, of in found.options.items():
            print(f"{'':{width}}    @{option}={option_text(of.default)}  {describe(of.kind)}")
    print("\nDetectors (--detector):")
    for name, of_detector in detectors.items():
        licence = f" Weights: {of_detector['licence']}." if of_detector["licence"] else ""
        print(f"{name:{width}}  {of_detector['summary']}{licence}")
    return 0
