"""`ananet list`: the pruners by name, and their options."""

import argparse

from ananet.checks import describe
from ananet.cli.arguments import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.defaults import PRUNER
    from ananet.names import option_text
    from ananet.pruners import describe_pruners

    pruners = describe_pruners()
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
        print_json({"default": PRUNER, "pruners": described})
        return 0
    width = max(map(len, pruners))
    for name, found in pruners.items():
        print(f"{name:{width}}  {found.summary}{' (default)' if name == PRUNER else ''}")
        for option, of in found.options.items():
            print(f"{'':{width}}    @{option}={option_text(of.default)}  {describe(of.kind)}")
    return 0
