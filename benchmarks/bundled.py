"""Bundled weights as they run: times of the network alone, and what half precision changes.

    PYTHONPATH=src python3 benchmarks/bundled.py --pairs VALIDATION

Times are means of calls one after another, after warm-up, on random matches. With pairs from `ananet data build`, the
verdicts are compared with those of the network in plain PyTorch and single precision, and the scores of a pair alone
with those of the same pair among others. Needs torch, numpy and safetensors (and triton on a GPU).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor

from ananet._util.devices import choose_device
from ananet._util.tables import format_table
from ananet.datasets.sources import open_stored_pairs
from ananet.inference import Engine, engine_for
from ananet.networks import Network, load_network
from ananet.weights import bundled, bundled_path

SIZES = ((1, 500), (1, 2048), (1, 8192), (64, 2048))
AT_ONCE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default=",".join(bundled()), metavar="A,B", help="(default: all)")
    parser.add_argument("--pairs", help="stored pairs, to compare verdicts on")
    parser.add_argument("--limit", type=int, default=320, help="at most so many pairs (default: 320)")
    parser.add_argument("--sizes", default=",".join(f"{b}x{n}" for b, n in SIZES), metavar="BxN,...")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement (default: 0.5)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    sizes = [tuple(int(part) for part in size.split("x")) for size in arguments.sizes.split(",")]
    rows = []
    for name in arguments.weights.split(","):
        network = load_network(bundled_path(name))[0].eval().to(device)
        engine = engine_for(load_network(bundled_path(name))[0], device)
        row: dict[str, Any] = {"weights": name}
        for batch, length in sizes:
            matches = torch.rand(batch, length, network.settings.channels, device=device) * 2 - 1
            row[f"{batch} x {length}, ms"] = milliseconds(engine, matches, arguments.seconds)
        if arguments.pairs:
            row |= compare(network, engine, arguments.pairs, arguments.limit, device)
        rows.append(row)
    print(json.dumps(rows) if arguments.json else format_table(rows))


def milliseconds(engine: Engine, matches: Tensor, seconds: float) -> float:
    """Mean time of a call, one after another: the device is never waited for in between."""
    engine(matches)
    wait(matches)
    calls, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        engine(matches)
        calls += 1
        if calls % 50 == 0:  # or the queue would grow beyond the time
            wait(matches)
    wait(matches)
    return 1000 * (time.perf_counter() - begin) / calls


def wait(matches: Tensor) -> None:
    if matches.is_cuda:
        torch.cuda.synchronize()


@torch.no_grad()
def compare(network: Network, engine: Engine, folder: str, limit: int, device: torch.device) -> dict[str, Any]:
    """How many verdicts differ, and how far scores do where a pair has company. Side input is left unknown."""
    pairs = open_stored_pairs(folder)
    chosen = range(0, len(pairs), max(1, len(pairs) // limit))[:limit]
    differing = verdicts = 0
    company = 0.0
    for start in range(0, len(chosen), AT_ONCE):
        some = [pairs[number].matches._as_tensors().normalized().float() for number in chosen[start : start + AT_ONCE]]
        lengths = torch.tensor([len(matches) for matches in some], device=device)
        batch = torch.zeros(len(some), int(lengths.max()), network.settings.channels, device=device)
        for row, matches in zip(batch, some, strict=True):
            row[: len(matches), :4] = matches
        mask = torch.arange(batch.shape[1], device=device) < lengths[:, None]
        plain, fast = network(batch, mask), engine(batch, lengths)
        differing += int(((plain > 0) != (fast > 0))[mask].sum())
        verdicts += int(mask.sum())
        alone = engine(batch[:1, : len(some[0])].contiguous())[0]
        company = max(company, float((alone.sigmoid() - fast[0, : len(some[0])].sigmoid()).abs().max()))
    return {"differing verdicts": differing, "of": verdicts, "score, alone and in company": company}


if __name__ == "__main__":
    main()
