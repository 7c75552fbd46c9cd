"""`ananet list`: the pruners by name."""

import argparse

from ananet.cli.arguments import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.pruners import default_pruner, list_pruners

    pruners = list_pruners()
    if arguments.json:
        print_json({"default": default_pruner(), "pruners": pruners})
        return 0
    default, width = default_pruner(), max(map(len, pruners))
    for name, summary in pruners.items():
        print(f"{name:{width}}  {summary}{' (default)' if name == default else ''}")
    return 0
