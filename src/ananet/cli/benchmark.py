"""`ananet benchmark`: time and memory of pruners and networks."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ananet._util.checks import check_whole_number
from ananet.cli.arguments import add_json, numbers, print_json
from ananet.errors import InputError

# torch misreads larger numbers.
MAX_THREADS = 1024
MAX_MATCHES = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    pruners = "all,mutual,ratio,gms,lpm,ransac,magsac,ananet"
    add("--pruner", default=pruners, metavar="A,B,...", help="names and .safetensors files (default: one of each kind)")
    only = "measure only networks: needs torch, numpy and safetensors only"
    add("--networks-only", action="store_true", help=only)
    add("--matches", type=int, default=2048, metavar="N", help="matches per pair (default: 2048)")
    lengths = "numbers of matches for the table of forms (default: 2048,4096,8192)"
    add("--lengths", default="2048,4096,8192", metavar="N,...", help=lengths)
    add("--batch", default="1,8,32", metavar="B,...", help="batch sizes for the throughput (default: 1,8,32)")
    add("--runs", type=int, default=4000, help="most runs per measurement (default: 4000)")
    add("--seconds", type=float, default=10.0, help="most seconds per measurement (default: 10)")
    photos = "two photos for SIFT + NN (default: a synthetic texture)"
    add("--photos", nargs=2, type=Path, metavar=("A", "B"), help=photos)
    add("--threads", type=int, help="threads of torch on the CPU (default: one per core)")
    plain = "measure networks as trained, without the fast path of 'ananet.load'"
    add("--plain", action="store_true", help=plain)
    dtypes = ("float32", "float16", "bfloat16")
    add("--dtype", choices=dtypes, default="float32", help="precision of plain networks (default: float32)")
    add("--device", default="cpu", help="device of the networks: cpu or cuda (default: cpu)")
    add("--style", choices=("text", "markdown"), default="text", help="style of tables (default: text)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    import torch

    from ananet._util.devices import choose_device
    from ananet._util.tables import format_table
    from ananet.evaluation import speed

    device = choose_device(arguments.device)
    if arguments.threads is not None:
        if not 1 <= arguments.threads <= MAX_THREADS:
            raise InputError(f"--threads: expected at least 1 and at most {MAX_THREADS}, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    if arguments.dtype != "float32" and not arguments.plain:
        raise InputError("--dtype: expected together with --plain; the fast path chooses its own precision")
    execution = speed.Execution(device, arguments.plain, getattr(torch, arguments.dtype))
    whole_numbers = partial(numbers, kind=int, expected="whole numbers of at least 1 such as 2048,4096")
    lengths, batches = whole_numbers("--lengths", arguments.lengths), whole_numbers("--batch", arguments.batch)
    whole_numbers("--matches", str(arguments.matches))
    for name, given in (("--matches", [arguments.matches]), ("--lengths", lengths), ("--batch", batches)):
        check_whole_number(name, max(given), 1, MAX_MATCHES)
    effort = speed.Effort(arguments.runs, arguments.seconds)

    def log(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[Kmeasuring {what}", end="", file=sys.stderr, flush=True)
        else:
            print(f"measuring {what}", file=sys.stderr, flush=True)

    machine = execution.describe()
    result: dict[str, Any] = {"machine": machine, "matches": arguments.matches}
    parts = [f"{machine}; fresh random input for every run"]

    def add(title: str, rows: list[dict[str, Any]]) -> None:
        parts.append(f"{title}\n\n{format_table(rows, arguments.style, decimals=2)}")

    if not arguments.networks_only:
        log("SIFT + NN")
        reference = speed.measure_reference(arguments.photos, effort)
        pruners = speed.measure_pruners(arguments.pruner.split(","), arguments.matches, effort, execution, log)
        pruners["Ref."] = reference
        result["pruners"] = {name: asdict(timing) for name, timing in pruners.items()}
        what = "two photos given" if arguments.photos else "texture of 1024 x 768"
        title = f"Table 2: inference time (ms), N = {arguments.matches}. Ref.: SIFT and NN, 2000 keypoints, {what}, CPU"
        add(title, speed.table_2(pruners))
    forms = speed.measure_forms(lengths, effort, execution, log)
    result["forms"] = speed.timings_as_json(forms)
    add("Table 5, right: extra time (ms) of each form, beside the network without", speed.forms_table(forms))
    add("Whole network, batch 1", speed.details_table(forms))
    log("throughput")
    result["throughput"] = speed.measure_throughput(batches, arguments.matches, effort, execution)
    add("Throughput, linear form", result["throughput"])
    log("done\n")
    if arguments.json:
        print_json(result)
    else:
        print("\n\n".join(parts))
    return 0
