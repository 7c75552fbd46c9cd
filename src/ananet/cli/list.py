"""`ananet list`: pruners with options, detectors, matchers and estimators, with the licences of weights."""

import argparse
from typing import Any

from ananet._util.checks import describe
from ananet.cli.arguments import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet._util.defaults import PRUNER
    from ananet._util.names import option_text
    from ananet.estimators import ESTIMATORS
    from ananet.features import DETECTORS, MATCHERS
    from ananet.pruners import describe_pruners

    pruners = describe_pruners()
    others = {
        kind: {
            name: {"summary": (make.__doc__ or "").partition("\n")[0], "licence": getattr(make, "licence", None)}
            for name in registry.names
            for make in [registry[name]]
        }
        for kind, registry in (("detector", DETECTORS), ("matcher", MATCHERS), ("estimator", ESTIMATORS))
    }
    if arguments.json:
        described: dict[str, Any] = {name: {"summary": found.summary, "options": {}} for name, found in pruners.items()}
        for name, found in pruners.items():
            for option, of in found.options.items():
                given = {"type": describe(of.kind), "default": option_text(of.default)}
                described[name]["options"][option] = given
        print_json({"default": PRUNER, "pruners": described} | {f"{kind}s": found for kind, found in others.items()})
        return 0
    width = max(map(len, pruners))
    for name, found in pruners.items():
        print(f"{name:{width}}  {found.summary}{' (default)' if name == PRUNER else ''}")
        for option, of in found.options.items():
            print(f"{'':{width}}    @{option}={option_text(of.default)}  {describe(of.kind)}")
    for kind, found_of_kind in others.items():
        print(f"\n{kind.capitalize()}s (--{kind}):")
        for name, one in found_of_kind.items():
            licence = f" Weights: {one['licence']}." if one["licence"] else ""
            print(f"{name:{width}}  {one['summary']}{licence}")
    return 0
