"""`ananet train`: train a network, or fine-tune one on pairs of one's own."""

import argparse
from pathlib import Path

from ananet.cli.arguments import add_device, add_json, print_result
from ananet.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "TOML file, or the name of a recipe in the package; the options below override it"
    parser.add_argument("settings", nargs="?", metavar="SETTINGS", help=text)
    parser.add_argument("-o", "--run", type=Path, default=Path("runs/ananet"), help="folder (default: runs/ananet)")
    text = "training pairs, from 'ananet data build': folders with commas between them"
    parser.add_argument("--pairs", metavar="A,B", help=text)
    parser.add_argument("--validation", help="validation pairs")
    parser.add_argument("--from", dest="start_from", metavar="WEIGHTS", help="weights to fine-tune: a name or a file")
    parser.add_argument("--steps", type=int, help="length of the run (default: from SETTINGS, else 100000)")
    parser.add_argument("--learning-rate", type=float, help="rate after warm-up (default: from SETTINGS, else 0.001)")
    text = "what is right: near the epipolar line (default, as in the paper), or where the depth of the scene predicts"
    parser.add_argument("--labels", choices=("line", "depth"), help=text)
    text = "share of synthetic problems in each batch (default: from SETTINGS, else 0.25; 1 without --pairs)"
    parser.add_argument("--synthetic-share", type=float, help=text)
    parser.add_argument("--seed", type=int, help="seed of the weights and batches (default: from SETTINGS, else 0)")
    parser.add_argument("--until", type=int, metavar="STEP", help="stop at this step; the same command continues later")
    parser.add_argument("--max-seconds", type=float, default=float("inf"), help="stop after this time")
    add_device(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.training import train
    from ananet.training.loop import WEIGHTS

    options = ("device", "start_from", "until", "max_seconds")
    settings = ("pairs", "validation", "steps", "learning_rate", "labels", "synthetic_share", "seed")
    try:
        result = train(
            arguments.settings, arguments.run, **{name: getattr(arguments, name) for name in (*options, *settings)}
        )
    except FloatingPointError as error:
        raise InputError(str(error)) from None
    loss = "nothing left to do" if result["loss"] is None else f"loss {result['loss']:.4f}"
    text = f"step {result['step']}, {loss}; weights: {arguments.run / WEIGHTS}"
    return print_result(arguments, {**result, "weights": str(arguments.run / WEIGHTS)}, text)
