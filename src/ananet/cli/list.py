"""`ananet list`: the pruners by name."""

import argparse

from ananet.cli.arguments import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.pruners import DEFAULT, list_pruners

    pruners = list_pruners()
    if arguments.json:
        print_json({"default": DEFAULT, "pruners": pruners})
        return 0
    for name, summary in pruners.items():
        print(f"{name:8} {summary}{' (default)' if name == DEFAULT else ''}")
    return 0
