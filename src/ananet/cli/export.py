"""`ananet export`: write a trained network as an ONNX file."""

import argparse
from pathlib import Path

from ananet.cli.arguments import add_json, print_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "a network from 'ananet list' or a .safetensors file; NAME@threshold=0.5 sets the threshold in the file"
    parser.add_argument("network", help=words)
    parser.add_argument("-o", "--output", type=Path, help="the file (default: NETWORK.onnx)")
    text = "let the file take one pair in pixels and do all that a call does; without it, batches of normalised matches"
    parser.add_argument("--pixels", action="store_true", help=text)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.io.files import check_output

    name = arguments.network.partition("@")[0]
    output = arguments.output or Path(Path(name).stem + ".onnx")
    check_output(output, Path(name), suffix=".onnx")

    # Importing torch takes seconds: check everything else first.
    from ananet.integrations.onnx import export
    from ananet.pruners import load

    metadata = export(load(arguments.network, device="cpu"), output, pixels=arguments.pixels)
    size = output.stat().st_size
    inputs = ("points in pixels" if arguments.pixels else "matches") + (" and side" if metadata["side"] != "[]" else "")
    text = f"{metadata['pruner']}: {size / 1e6:.1f} MB with input {inputs}, written to {output}"
    return print_result(arguments, {"output": str(output), "bytes": size, "metadata": metadata}, text)
