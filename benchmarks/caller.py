"""Check and time pruners on one GPU as a caller sees them: from numpy arrays or tensors to verdicts.

    PYTHONPATH=src python3 benchmarks/caller.py --pairs FOLDER ... [--output caller.json]

Whole calls are compared with the plain road (`ANANET_CALLS=plain`) and with the network in plain PyTorch and single
precision: on random and odd input, and on the pairs of a folder from `ananet data build`. Wrong input has to raise what
it raises on a CPU, and what is beside a pair in a batch must change nothing. Times are medians of whole calls by the
wall clock, fresh input, after warm-up; targets stand beside them. Calls are timed in three processes, of which the
fastest counts: what Python takes differs by half between one process and the next.

Rows run one after another in a worker process. One that fails or takes too long is noted, and another worker goes on
with the next. The file is written after every row. Needs torch, numpy and safetensors (and triton on a GPU).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ananet import Correspondences, InputError, load
from ananet._util.devices import CALLS_VARIABLE
from ananet.attention.second_order import VARIABLE
from ananet.core.conflicts import penalize_conflicts
from ananet.pruners import LearnedPruner, Pruned

# Times are of the first, whose network the targets are for, and of the second, which is the default.
NETWORKS = ("ananet-paper", "ananet", "ananet-small")
TIMED = NETWORKS[:2]
K = np.array([[800.0, 0, 512], [0, 810, 384], [0, 0, 1]])
# Of verdicts that half precision may turn, by matches near the decision.
MAX_TURNED = 0.01
SIZES = (500, 2048, 8192, 65_536, 131_072)
# Targets in ms, and in pairs per second.
BARS = {
    "numpy 500": 0.30, "tensors 500": 0.25, "numpy 2048": 0.40, "tensors 2048": 0.30, "numpy 8192": 1.5,
    "numpy 65536": 70.0, "numpy 131072": 280.0,
    "batch of 512 x 2000, pairs/s": 10_000.0, "batch of 512 x 100 to 2000, pairs/s": 14_000.0,
    "first call, s": 2.0, "conflicts 1 x 8192": 0.06, "conflicts 64 x 2048": 0.25,
}  # fmt: skip

FIRST_CALL = """
import json, sys, time
times = {}
def lap(name):
    global begin
    times[name] = time.perf_counter() - begin
    begin = time.perf_counter()
begin = time.perf_counter()
import numpy, torch; lap("import torch, s")
device = torch.device(sys.argv[2]); torch.zeros(1, device=device).item(); lap("CUDA, s")
import ananet; pruner = ananet.load(sys.argv[1], device=device); lap("load, s")
points = numpy.random.default_rng(0).uniform(0, 600, (2048, 2))
given = {"image_size0": (640, 480), "image_size1": (640, 480)}
begin = time.perf_counter()
pruner(points, points, **given); lap("call alone, s")
pruner(points, points, **given); lap("second call, s")
times["first call, s"] = times["CUDA, s"] + times["load, s"] + times["call alone, s"]
print(json.dumps(times))
"""

COMPILE = """
import json, sys, ananet
ananet.load(sys.argv[1], device=sys.argv[2]).warm_up(json.loads(sys.argv[3]))
"""


class Row(NamedTuple):
    name: str
    run: str
    """A function below."""
    given: tuple[Any, ...]
    limit: float
    """Seconds."""
    processes: int = 1
    """How many run it, one after another."""


class Found:
    """What a row has measured, and what it expected in vain."""

    def __init__(self) -> None:
        self.measured: dict[str, Any] = {}
        self.checks = 0
        self.failed: list[str] = []

    def expect(self, good: bool, what: str) -> None:
        self.checks += 1
        if not good:
            self.failed.append(what)


def two_views(count: int, seed: int) -> dict[str, np.ndarray]:
    """Points of a wavy surface seen by two cameras, 60 % of them matched rightly."""
    rng = np.random.default_rng(seed)
    points0 = rng.uniform([0, 0], [1024, 768], (count, 2))
    depth = 6 + np.sin(points0[:, 0] / 90) + np.cos(points0[:, 1] / 70)
    angle = 0.15
    R = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    rays = np.c_[points0, np.ones(count)] @ np.linalg.inv(K).T * depth[:, None]
    seen = (rays @ R.T + [0.8, 0.1, 0.3]) @ K.T
    points1 = seen[:, :2] / seen[:, 2:] + rng.normal(0, 0.5, (count, 2))
    wrong = rng.random(count) < 0.4
    points1[wrong] = rng.uniform([0, 0], [1024, 768], (int(wrong.sum()), 2))
    # Some matches share a point.
    points0[: count // 10] = points0[rng.integers(0, max(count, 1), count // 10)] if count else points0[:0]
    return {"points0": points0, "points1": points1, "K0": K, "K1": K}


def descriptors(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "ratio": rng.random(count, np.float32),
        "mutual": rng.random(count) < 0.5,
        "keypoint_sizes0": rng.uniform(2, 30, count).astype(np.float32),
        "keypoint_sizes1": rng.uniform(2, 30, count).astype(np.float32),
        "angles0": rng.uniform(0, 6, count).astype(np.float32),
        "angles1": rng.uniform(0, 6, count).astype(np.float32),
    }


def odd_input() -> dict[str, dict[str, np.ndarray]]:
    same = {**two_views(50, 1), "points0": np.full((50, 2), 40.0), "points1": np.full((50, 2), 50.0)}
    far = two_views(300, 2)
    far["points0"][::7] = 65535
    nowhere = {**two_views(5, 3), "points0": np.full((5, 2), 1e30)}
    sized = {**two_views(200, 4), "image_size0": np.array([1024, 768]), "image_size1": np.array([1024, 768])}
    only_sized = {name: values for name, values in sized.items() if name[0] != "K"}
    return {
        "none": two_views(0, 0),
        "identical points": same,
        "some far away": far,
        "all far away": nowhere,
        "sizes too": sized,
        "sizes only": only_sized,
    }


# ----------------------------------------------------------------------------------------------- checks


def check_conflicts(found: Found, device: str) -> None:
    """The kernels that doubt conflicting matches say exactly what plain PyTorch says, ties and padding included."""
    everywhere = torch.zeros(1, 4096, 4, device=device)
    everywhere[0, :, 2] = torch.linspace(0, 1, 4096, device=device)
    cases = {"all in one point": everywhere}
    for batch, length in ((1, 0), (1, 1), (3, 7), (3, 777), (2, 2048), (64, 2048), (1, 8192)):
        cases[f"{batch} x {length}"] = (torch.rand(batch, length, 4, device=device) * 32).round() / 32
    for case, matches in cases.items():
        logits = torch.randn(matches.shape[:2], device=device).mul(4).round() / 4
        mask = torch.rand(matches.shape[:2], device=device) < 0.8
        for given in (None, mask):
            ours = penalize_conflicts(logits, matches, 10.0, given)
            with variable(CALLS_VARIABLE, "plain"):
                plain = penalize_conflicts(logits, matches, 10.0, given)
            real = torch.ones_like(mask) if given is None else given
            found.expect(torch.equal(ours[real], plain[real]), f"{case}, mask {given is not None}")


def check_calls(found: Found, device: str, name: str) -> None:
    """Single calls on odd input: twice, from numpy and from tensors, beside the plain road and single precision."""
    pruner, plain, exact = load_learned(name, device), calls_by("plain", name, device), calls_by("single", name, device)
    cases = odd_input()
    for seed, count in enumerate((1, 7, 500, 2048, 3000)):
        cases[f"{count} matches"] = two_views(count, seed)
        cases[f"{count} matches with descriptors"] = two_views(count, seed) | descriptors(count, seed)
    turned = from_plain = total = 0
    largest = 0.0
    for case, given in cases.items():
        answer = pruner(**given)
        same_answer(found, f"{case}: twice", answer, pruner(**given))
        tensors = on_device(given, device)
        as_tensors = pruner(**tensors)
        found.expect(as_tensors.mask.device.type == torch.device(device).type, f"{case}: where tensors came from")
        same_answer(found, f"{case}: tensors as numpy", answer, as_tensors)
        strided = {k: v.repeat_interleave(2, 0)[::2] if k[:6] == "points" else v for k, v in tensors.items()}
        same_answer(found, f"{case}: tensors with gaps", answer, pruner(**strided))
        differ, _ = disagreement(answer, plain(**given))
        from_plain += differ
        differ, off = disagreement(answer, exact(**given))
        turned, total, largest = turned + differ, total + len(answer.mask), max(largest, off)
    found.expect(from_plain == 0, f"{from_plain} of {total} verdicts differ from the plain road")
    found.expect(turned <= MAX_TURNED * total, f"{turned} of {total} verdicts differ from single precision")
    found.measured |= {"verdicts": total, "other than the plain road": from_plain, "other than single": turned}
    found.measured["largest difference of scores from single"] = largest
    with torch.inference_mode():
        same_answer(found, "in inference mode", answer, pruner(**given))
    same_answer(found, "after inference mode", answer, pruner(**given))


def check_batches(found: Found, device: str, name: str) -> None:
    """Batches and streams do not depend on what is in them, and hardly differ from calls."""
    pruner = load_learned(name, device)
    rng = np.random.default_rng(0)
    given = [two_views(int(n), seed) for seed, n in enumerate(rng.integers(1, 2100, 60))]
    given += [two_views(0, 0), two_views(1, 1), *odd_input().values()]
    pairs = [Correspondences(**each, **descriptors(len(each["points0"]), 5)) for each in given]
    pairs[5] = Correspondences(**on_device(given[5], device))
    pairs[6] = Correspondences(**given[6])
    whole = pruner.batch(pairs)
    order = rng.permutation(len(pairs))[: len(pairs) // 2]
    for number, answer in zip(order, pruner.batch([pairs[number] for number in order]), strict=True):
        same_answer(found, f"pair {number} beside others", whole[number], answer)
    for number in (0, 6):
        same_answer(found, f"pair {number} in a batch of one", whole[number], pruner.batch([pairs[number]])[0])
    streamed = list(pruner.stream(iter(pairs)))
    found.expect(len(streamed) == len(pairs), "as many answers as pairs")
    for number, (one, other) in enumerate(zip(whole, streamed, strict=True)):
        same_answer(found, f"pair {number} in a stream", one, other)
    alone = [pruner(pair) for pair in pairs]
    differences = [disagreement(one, other) for one, other in zip(alone, whole, strict=True)]
    turned, total = sum(differ for differ, _ in differences), sum(map(len, pairs))
    found.expect(turned <= MAX_TURNED * total, f"{turned} of {total} verdicts differ between batch and call")
    found.measured |= {"verdicts": total, "other than in a call": turned}
    found.measured["largest difference of scores"] = max(off for _, off in differences)
    with ThreadPoolExecutor(4) as threads:
        for number, answer in enumerate(threads.map(pruner, pairs)):
            same_answer(found, f"pair {number} among threads", alone[number], answer)
    if device != "cpu":
        with torch.cuda.stream(torch.cuda.Stream()):
            same_answer(found, "another stream", alone[6], pruner(**on_device(given[6], device)))


def check_errors(found: Found, device: str, name: str) -> None:
    """Wrong input on the GPU raises what it raises on the CPU, and leaves the pruner as it was."""
    pruner, on_cpu = load_learned(name, device), load_learned("ananet-small", "cpu")
    good = two_views(20, 0) | descriptors(20, 0)
    before = pruner(**good)
    wrong: dict[str, dict[str, Any]] = {
        "points0": {"points0": _with(good["points0"], (3, 1), np.nan)},
        "points1": {"points1": _with(good["points1"], (0, 0), -np.inf)},
        "K0": {"K0": -K},
        "K1": {"K1": K.T},
        "K of NaN": {"K0": _with(K, (0, 2), np.nan)},
        "shapes": {"points1": good["points1"][:5]},
        "no camera": {"K0": None, "K1": None},
        "one camera": {"K1": None},
        "ratio": {"ratio": _with(good["ratio"], 4, 1.5)},
        "ratio of NaN": {"ratio": _with(good["ratio"], 4, np.nan)},
        "keypoint_sizes1": {"keypoint_sizes1": _with(good["keypoint_sizes1"], 2, 0.0)},
        "angles0": {"angles0": _with(good["angles0"], 2, np.inf)},
    }
    for case, change in wrong.items():
        given = {key: values for key, values in (good | change).items() if values is not None}
        expected, numpy, tensors = (
            _message(lambda g=given: on_cpu(**g)),
            _message(lambda g=given: pruner(**g)),
            _message(lambda g=given: pruner(**on_device(g, device))),
        )
        found.expect(
            expected is not None and expected == numpy == tensors,
            f"{case}: expected {expected!r}, got {numpy!r} for numpy and {tensors!r} for tensors",
        )
    same_answer(found, "after errors", before, pruner(**good))


def check_real_pairs(found: Found, device: str, name: str, folders: list[str], most: int) -> None:
    """Verdicts on real pairs: calls and batches beside the plain road, a part also beside single precision."""
    from ananet.datasets.formats.shards import PairShards

    stored = [(pairs, number) for pairs in map(PairShards, map(Path, folders)) for number in range(len(pairs))]
    count = min(most, len(stored))
    chosen = [stored[number * len(stored) // count] for number in range(count)]
    pairs = [folder[number].matches for folder, number in chosen]
    pruner, plain, exact = load_learned(name, device), calls_by("plain", name, device), calls_by("single", name, device)
    batch = pruner.batch(pairs)
    for number, (one, other) in enumerate(zip(batch, list(pruner.stream(pairs[::-1]))[::-1], strict=True)):
        same_answer(found, f"real pair {number} in a stream", one, other)
    alone = [pruner(pair) for pair in pairs]
    plainly = [plain(pair) for pair in pairs]
    found.measured |= {"pairs": count, "matches": sum(map(len, pairs))}
    found.measured["a call and the plain road"] = differences_of(alone, plainly)
    found.measured["a call and a batch"] = differences_of(alone, batch)
    part = slice(None, None, 5)
    exactly = [exact(pair) for pair in pairs[part]]
    found.measured["a call and single precision, every fifth pair"] = differences_of(alone[part], exactly)
    found.measured["the plain road and single precision, every fifth pair"] = differences_of(plainly[part], exactly)
    turned = found.measured["a call and the plain road"]["verdicts that differ"]
    found.expect(turned == 0, f"{turned} verdicts on real pairs differ from the plain road")


def differences_of(some: list[Pruned], others: list[Pruned]) -> dict[str, float]:
    found = [disagreement(one, other) for one, other in zip(some, others, strict=True)]
    return {
        "pairs that differ": sum(differ > 0 for differ, _ in found),
        "verdicts that differ": sum(differ for differ, _ in found),
        "largest difference of scores": max(off for _, off in found),
        "median of the largest in a pair": statistics.median(off for _, off in found),
    }


def disagreement(one: Pruned, other: Pruned) -> tuple[int, float]:
    """How many verdicts differ, and by how much scores do."""
    masks, scores = (
        [torch.as_tensor(getattr(each, name)).cpu() for each in (one, other)] for name in ("mask", "scores")
    )
    most = (scores[0] - scores[1]).abs().max().item() if len(scores[0]) else 0.0
    return int((masks[0] != masks[1]).sum()), most


def same_answer(found: Found, what: str, one: Pruned, other: Pruned) -> None:
    pairs = [
        [torch.as_tensor(getattr(each, name)).cpu() for each in (one, other)] for name in ("mask", "scores", "logits")
    ]
    found.expect(all(torch.equal(a, b) for a, b in pairs), f"{what}: (verdicts, scores) {disagreement(one, other)}")


def _with(values: np.ndarray, place: Any, value: float) -> np.ndarray:
    changed = np.array(values, np.float64)
    changed[place] = value
    return changed


def _message(call: Callable[[], object]) -> str | None:
    try:
        call()
    except InputError as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------------------------ times


def time_calls(found: Found, device: str, name: str, road: str) -> None:
    pruner = load_learned(name, device, road)
    with chosen(road):
        _time_calls(found, device, pruner)


def _time_calls(found: Found, device: str, pruner: LearnedPruner) -> None:
    for count in SIZES if device != "cpu" else SIZES[:2]:
        given = [two_views(count, seed) for seed in range(8 if count < 60_000 else 2)]
        least, seconds = (20, 0.3) if count < 60_000 else (3, 0.3)
        found.measured[f"numpy {count}"] = wall_ms(lambda i, g=given: pruner(**g[i % len(g)]), seconds, least)
        tensors = [on_device(each, device) for each in given]
        found.measured[f"tensors {count}"] = wall_ms(lambda i, g=tensors: pruner(**g[i % len(g)]), seconds, least)
        if pruner.calls is not None and count < 60_000:
            shape = next(shape for shape in reversed(pruner.calls.graphs) if shape.alone)
            found.measured[f"device {count}"] = device_ms(pruner.calls.graphs[shape])


def time_batches(found: Found, device: str, name: str, road: str) -> None:
    pruner = load_learned(name, device, road)
    with chosen(road):
        _time_batches(found, device, pruner)


def _time_batches(found: Found, device: str, pruner: LearnedPruner) -> None:
    rng = np.random.default_rng(0)
    count = 512 if device != "cpu" else 4
    for label, lengths in (("2000", [2000] * count), ("100 to 2000", rng.integers(100, 2001, count).tolist())):
        pairs = [Correspondences(**two_views(n, seed % 16)) for seed, n in enumerate(lengths)]
        least = 5 if device != "cpu" else 1
        batch = wall_ms(lambda i, p=pairs: pruner.batch(p), 0.5, least, warm_up=2)
        stream = wall_ms(lambda i, p=pairs: list(pruner.stream(iter(p))), 0.5, least, warm_up=2)
        found.measured[f"batch of {count} x {label}, pairs/s"] = 1000 * count / batch
        found.measured[f"stream of {count} x {label}, pairs/s"] = 1000 * count / stream


def time_conflicts(found: Found, device: str) -> None:
    for batch, length in ((1, 2048), (1, 8192), (64, 2048)):
        matches = (torch.rand(batch, length, 4, device=device) * 32).round() / 32
        logits = torch.randn(batch, length, device=device)
        if device == "cpu":
            ms = wall_ms(lambda i, m=matches, x=logits: penalize_conflicts(x, m, 10.0), 0.1, 3)
        else:
            ms = device_ms(graphed(lambda m=matches, x=logits: penalize_conflicts(x, m, 10.0)))
        found.measured[f"conflicts {batch} x {length}"] = ms


def time_first_call(found: Found, device: str, name: str) -> None:
    """Seconds of each step in a fresh process; kernels were compiled before."""
    finished = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, name, device], capture_output=True, text=True, check=True
    )
    found.measured |= json.loads(finished.stdout.splitlines()[-1])


def compile_kernels(found: Found, device: str, names: list[str]) -> None:
    """Fill the cache of compiled kernels: most of the time on a fresh machine, so in processes side by side."""
    if device == "cpu":
        return
    begin = time.perf_counter()
    running = {
        f"{name}, {sizes}": subprocess.Popen(
            [sys.executable, "-c", COMPILE, name, device, sizes], stderr=subprocess.PIPE, text=True
        )
        for name in names
        for sizes in ("[500, 2048]", "[3000, 8192]")
    }
    for label, process in running.items():
        try:
            _, said = process.communicate(timeout=max(1.0, 90 - (time.perf_counter() - begin)))
        except subprocess.TimeoutExpired:
            process.kill()
            said = "took more than 90 s"
        found.expect(process.returncode == 0, f"{label}: {said}")
        found.measured[f"{label}, s"] = time.perf_counter() - begin


def wall_ms(run: Callable[[int], object], seconds: float, least: int, warm_up: int = 3) -> float:
    """Median time of run(i), which waits for its answer, by the wall clock."""
    for number in range(warm_up):
        run(number)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < least or (time.perf_counter() < until and len(taken) < 2000):
        begin = time.perf_counter()
        run(len(taken))
        taken.append((time.perf_counter() - begin) * 1000)
    return statistics.median(taken)


def device_ms(run: Callable[[], object], count: int = 100) -> float:
    """Median time on the device, without what it takes to launch."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    run()
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


def graphed(run: Callable[[], object]) -> Callable[[], None]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


# --------------------------------------------------------------------------------------------- plumbing

_loaded: dict[tuple[str, str, str], LearnedPruner] = {}


def load_learned(name: str, device: str, road: str = "graph") -> LearnedPruner:
    if (name, device, road) not in _loaded:
        with chosen(road):
            pruner = load(name, device=device)
        assert isinstance(pruner, LearnedPruner)
        assert (pruner.calls is not None) == (road == "graph" and device != "cpu"), f"{name} does not run by {road}"
        _loaded[name, device, road] = pruner
    return _loaded[name, device, road]


def calls_by(road: str, name: str, device: str) -> Callable[..., Pruned]:
    """Calls that go this road: some of it is decided in every call."""
    pruner = load_learned(name, device, road)

    def call(*given: Any, **named: Any) -> Pruned:
        with chosen(road):
            return pruner(*given, **named)

    return call


def chosen(road: str) -> contextlib.AbstractContextManager[None]:
    """By "graph", by the "plain" road around the same kernels, or in plain PyTorch and "single" precision."""
    return variable(VARIABLE, "reference") if road == "single" else variable(CALLS_VARIABLE, road)


def on_device(given: dict[str, np.ndarray], device: str) -> dict[str, Tensor]:
    return {name: torch.as_tensor(values).to(device) for name, values in given.items()}


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def rows_for(names: list[str], pairs: list[str], most: int) -> list[Row]:
    """What is worth most comes first. The plain road's times are beside those of whole calls."""
    rows = [
        (place + 3 * number, row)
        for number, name in enumerate(names)
        for place, row in enumerate(rows_of(name, pairs, most))
    ]
    return [
        Row("kernels", "compile_kernels", (names,), 100),
        Row("conflicts", "check_conflicts", (), 20),
        Row("conflicts, times", "time_conflicts", (), 20),
        *(row for _, row in sorted(rows, key=lambda each: each[0])),
    ]


def rows_of(name: str, pairs: list[str], most: int) -> Iterator[Row]:
    yield Row(f"{name}: calls", "check_calls", (name,), 40)
    if name in TIMED:
        yield Row(f"{name}: times of calls", "time_calls", (name, "graph"), 30, processes=3)
        yield Row(f"{name}: times of batches", "time_batches", (name, "graph"), 30)
    if pairs:
        yield Row(f"{name}: real pairs", "check_real_pairs", (name, pairs, most), 60)
    if name in TIMED:
        yield Row(f"{name}: first call", "time_first_call", (name,), 40)
    yield Row(f"{name}: batches", "check_batches", (name,), 40)
    yield Row(f"{name}: errors", "check_errors", (name,), 20)
    if name in TIMED:
        yield Row(f"{name}: times of calls, plain road", "time_calls", (name, "plain"), 30)
        yield Row(f"{name}: times of batches, plain road", "time_batches", (name, "plain"), 30)


def work(connection: Any, device: str) -> None:
    """Run rows as they are asked for. After an error of the device the process is of no more use."""
    while True:
        run, given = connection.recv()
        found, broken = Found(), False
        begin = time.perf_counter()
        try:
            globals()[run](found, device, *given)
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as error:
            found.failed.append(traceback.format_exc())
            broken = not isinstance(error, InputError | AssertionError)
        taken = time.perf_counter() - begin
        result = {**vars(found), "failed": found.failed[:20], "failures": len(found.failed), "seconds": taken}
        connection.send((result, broken))
        if broken:
            return


class Worker:
    """A process that runs rows; a new one when the last has died or had to be stopped."""

    def __init__(self, device: str) -> None:
        self.device, self.process, self.connection = device, None, None

    def run(self, row: Row, limit: float) -> dict[str, Any]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=work, args=(theirs, self.device), daemon=True)
            self.process.start()
            theirs.close()
        broken, result = True, {"failed": [f"took more than {limit:.0f} s"], "failures": 1}
        try:
            self.connection.send((row.run, row.given))
            if self.connection.poll(limit):
                result, broken = self.connection.recv()
        except (EOFError, OSError):
            result = {"failed": ["the process died"], "failures": 1}
        if broken:
            self.stop()
        return result

    def run_anew(self, row: Row, limit: float) -> dict[str, Any]:
        """Run in fresh processes: the least of what they measure, and the largest beside it."""
        runs = []
        for _ in range(row.processes):
            self.stop()
            runs.append(self.run(row, limit))
            if runs[-1]["failures"]:
                return runs[-1]
        measured = [run["measured"] for run in runs]
        least, largest = ({name: pick(each[name] for each in measured) for name in measured[0]} for pick in (min, max))
        return {**runs[-1], "measured": least, "largest": largest}

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def bars(results: dict[str, Any]) -> Iterator[str]:
    """What was measured beside the plain road and the targets."""
    for row, result in results.items():
        if row.endswith(", plain road"):
            continue
        plain = results.get(f"{row}, plain road", {}).get("measured", {})
        for what, value in result.get("measured", {}).items():
            if what not in BARS and what not in plain:
                continue
            beside = f"{plain[what]:12.3f}" if what in plain else " " * 12
            bar = BARS.get(what)
            verdict = ""
            if bar is not None:
                verdict = f"{bar:10g}   {'met' if (value >= bar) == what.endswith('pairs/s') else 'NOT MET'}"
            largest = result.get("largest", {}).get(what)
            to = "" if largest is None else f"   (to {largest:.3f})"
            yield f"{row:32}{what:38}{value:12.3f}{beside}{verdict}{to}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", nargs="+", default=[], help="folders that 'ananet data build' wrote, for checks on real pairs"
    )
    parser.add_argument("--limit", type=int, default=1000, help="at most so many real pairs (default: 1000)")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="by commas (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=200, help="no row starts after this (default: 200)")
    parser.add_argument("--output", type=Path, default=Path("caller.json"), help="(default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="'cpu' tries this file out (default: cuda)")
    given = parser.parse_args()
    begin = time.perf_counter()
    results: dict[str, Any] = {}
    worker = Worker(given.device)
    about = {"torch": torch.__version__, "seconds": given.seconds, "device": given.device}
    for row in rows_for(given.networks.split(","), given.pairs, given.limit):
        left = given.seconds - (time.perf_counter() - begin)
        if left <= 0:
            results[row.name] = {"failed": ["no time was left"], "failures": 1}
        else:
            run = worker.run if row.processes == 1 else worker.run_anew
            results[row.name] = run(row, min(row.limit, left))
        given.output.write_text(json.dumps({**about, "rows": results}, indent=1))
        result = results[row.name]
        print(f"[{time.perf_counter() - begin:5.0f} s] {row.name}: {result['failures']} failed of "
              f"{result.get('checks', 0)}; {json.dumps(result.get('measured', {}))}", flush=True)  # fmt: skip
        for failure in result["failed"][:3]:
            print("    FAILED", failure.strip()[-600:], flush=True)
    worker.stop()
    print(f"\n{'':70}{'measured':>12}{'plain road':>12}{'bar':>10}")
    for line in bars(results):
        print(line)
    failed = [name for name, result in results.items() if result["failures"]]
    print(f"{len(results)} rows, of which failed: {', '.join(failed) or 'none'}; {time.perf_counter() - begin:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
