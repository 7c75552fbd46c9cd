"""Check and time pruners on one GPU as a caller sees them: from numpy arrays or tensors to verdicts.

    PYTHONPATH=src python3 benchmarks/caller.py [results.json] [--pairs FOLDER]

Checks: a call, batches and streams against the plain road of the same engine and against the network in single
precision, on random and odd input, with the pairs of a folder from `ananet data build` on real ones; errors are those
of the CPU; what is beside a pair in a batch changes nothing. Times: medians of whole calls by the wall clock, fresh
input, after warm-up. Needs torch, numpy, safetensors and triton.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet import Correspondences, InputError, load
from ananet.attention import VARIABLE
from ananet.conflicts import doubt_conflicting
from ananet.inference.calls import MATCHES_AT_ONCE
from ananet.pruners import LearnedPruner, Pruned

DEVICE = torch.device("cuda")
NETWORKS = ("ananet", "ananet-ratio", "ananet-small", "ananet-quadratic", "ananet-paper")
TIMED = ("ananet-paper", "ananet")
K = np.array([[800.0, 0, 512], [0, 810, 384], [0, 0, 1]])
# Of verdicts that half precision may turn, by matches near the decision.
MOST_TURNED = 0.01

FIRST_CALL = """
import json, sys, time
begin = time.perf_counter()
import numpy, torch
times = {"import torch": time.perf_counter() - begin}
def lap(name):
    global begin
    times[name] = time.perf_counter() - begin
begin = time.perf_counter(); torch.zeros(1, device="cuda").item(); lap("CUDA")
begin = time.perf_counter(); import ananet; pruner = ananet.load(sys.argv[1], device="cuda"); lap("load")
points = numpy.random.default_rng(0).uniform(0, 600, (2048, 2))
given = {"size0": (640, 480), "size1": (640, 480)}
begin = time.perf_counter(); pruner(points, points, **given); lap("first call")
begin = time.perf_counter(); pruner(points, points, **given); lap("second call")
print(json.dumps(times))
"""


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
        "sizes0": rng.uniform(2, 30, count).astype(np.float32),
        "sizes1": rng.uniform(2, 30, count).astype(np.float32),
        "angles0": rng.uniform(0, 6, count).astype(np.float32),
        "angles1": rng.uniform(0, 6, count).astype(np.float32),
    }


def on_gpu(given: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(values).to(DEVICE) for name, values in given.items()}


# ----------------------------------------------------------------------------------------------- checks


class Checks:
    """What failed, and how far answers lie from the references."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.count = 0
        self.measured: dict[str, Any] = {}

    def expect(self, good: bool, what: str) -> None:
        self.count += 1
        if not good:
            self.failed.append(what)
            print("FAILED", what, flush=True)


def check_network(name: str, checks: Checks) -> None:
    pruner = load_learned(name)
    assert pruner.calls is not None
    odd = odd_input()
    for seed, count in enumerate((1, 7, 100, 500, 2000, 2048, 3000)):
        odd[f"{count} matches"] = two_views(count, seed)
        odd[f"{count} matches with descriptors"] = two_views(count, seed) | descriptors(count, seed)
    turned = total = 0
    largest = 0.0
    for case, given in odd.items():
        found, again = pruner(**given), pruner(**given)
        same_answer(checks, f"{name}, {case}: twice", found, again)
        tensors = pruner(**on_gpu(given))
        checks.expect(tensors.mask.is_cuda and not tensors.logits.is_inference(), f"{name}, {case}: tensors")
        same_answer(checks, f"{name}, {case}: tensors as numpy", found, tensors)
        in_single = {key: values.astype(np.float32) if key != "mutual" else values for key, values in given.items()}
        checks.expect(
            disagreement(found, pruner(**in_single))[0] <= max(2, 0.05 * len(found.mask)),
            f"{name}, {case}: float32 points",
        )
        pair = Correspondences(**given)
        (plain,) = pruner._batch([pair])
        # The same kernels: only padding is another.
        checks.expect(
            disagreement(found, plain)[0] <= 0.002 * len(found.mask), f"{name}, {case}: plain road of the engine"
        )
        with plain_attention():
            (exact,) = load_learned(name, cached=f"{name} in single precision")._batch([pair])
        differ, off = disagreement(found, exact)
        turned, total, largest = turned + differ, total + len(found.mask), max(largest, off)
    checks.expect(turned <= MOST_TURNED * total, f"{name}: {turned} of {total} verdicts differ from single precision")
    checks.measured[name] = {"verdicts that differ": turned, "of": total, "largest difference of scores": largest}
    check_batches(name, pruner, checks)
    check_errors(name, pruner, checks)


def odd_input() -> dict[str, dict[str, np.ndarray]]:
    same = {**two_views(50, 1), "points0": np.full((50, 2), 40.0), "points1": np.full((50, 2), 50.0)}
    far = two_views(300, 2)
    far["points0"][::7] = 65535
    nowhere = {**two_views(5, 3), "points0": np.full((5, 2), 1e30)}
    sized = {**two_views(200, 4), "size0": np.array([1024, 768]), "size1": np.array([1024, 768])}
    only_sized = {name: values for name, values in sized.items() if name[0] != "K"}
    return {
        "none": two_views(0, 0),
        "identical points": same,
        "some far away": far,
        "all far away": nowhere,
        "sizes too": sized,
        "sizes only": only_sized,
    }


def check_batches(name: str, pruner: LearnedPruner, checks: Checks) -> None:
    """Batches and streams do not depend on what is in them, and hardly differ from calls."""
    rng = np.random.default_rng(0)
    given = [two_views(int(n), seed) for seed, n in enumerate(rng.integers(1, 2100, 60))]
    given += [two_views(0, 0), two_views(1, 1), *odd_input().values()]
    pairs = [Correspondences(**each, **descriptors(len(each["points0"]), 5)) for each in given]
    pairs[5] = Correspondences(**on_gpu(given[5]))
    pairs[6] = Correspondences(**given[6])
    whole = pruner.batch(pairs)
    order = rng.permutation(len(pairs))[: len(pairs) // 2]
    for number, found in zip(order, pruner.batch([pairs[number] for number in order]), strict=True):
        same_answer(checks, f"{name}: pair {number} beside others", whole[number], found)
    streamed = list(pruner.stream(iter(pairs)))
    checks.expect(len(streamed) == len(pairs), f"{name}: as many answers as pairs")
    for number, (one, other) in enumerate(zip(whole, streamed, strict=True)):
        same_answer(checks, f"{name}: pair {number} in a stream", one, other)
    same_answer(checks, f"{name}: a stream of one", whole[6], next(pruner.stream([pairs[6]])))
    differences = [disagreement(found, pruner(pair)) for pair, found in zip(pairs, whole, strict=True)]
    turned, total = sum(differ for differ, _ in differences), sum(map(len, pairs))
    checks.expect(turned <= MOST_TURNED * total, f"{name}: {turned} of {total} verdicts differ between batch and call")
    checks.measured[name]["batch against calls, verdicts that differ"] = turned
    checks.measured[name]["batch against calls, largest difference of scores"] = max(off for _, off in differences)
    other_stream = torch.cuda.Stream()
    with torch.cuda.stream(other_stream):
        same_answer(checks, f"{name}: another stream", pruner(pairs[6]), pruner(**on_gpu(given[6])))


def check_errors(name: str, pruner: LearnedPruner, checks: Checks) -> None:
    """Wrong input on the GPU raises what it raises on the CPU, and leaves the pruner as it was."""
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
    }
    if "ratio" in pruner.network.settings.side:
        wrong["ratio"] = {"ratio": _with(good["ratio"], 4, 1.5)}
        wrong["ratio of NaN"] = {"ratio": _with(good["ratio"], 4, np.nan)}
        wrong["sizes1"] = {"sizes1": _with(good["sizes1"], 2, 0.0)}
        wrong["angles0"] = {"angles0": _with(good["angles0"], 2, np.inf)}
    for case, change in wrong.items():
        given = {key: values for key, values in (good | change).items() if values is not None}
        expected, numpy, tensors = (
            _message(lambda g=given: load_learned("ananet-small", device="cpu")(**g)),
            _message(lambda g=given: pruner(**g)),
            _message(lambda g=given: pruner(**on_gpu(g))),
        )
        checks.expect(
            expected is not None and expected == numpy == tensors,
            f"{name}, {case}: expected {expected!r}, got {numpy!r} for numpy and {tensors!r} for tensors",
        )
    same_answer(checks, f"{name}: after errors", before, pruner(**good))


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


def check_conflicts(checks: Checks) -> None:
    """The kernels that doubt conflicting matches say exactly what plain PyTorch says, ties and padding included."""
    for batch, length in ((1, 0), (1, 1), (3, 7), (3, 777), (2, 2048), (64, 2048), (1, 8192)):
        matches = (torch.rand(batch, length, 4, device=DEVICE) * 32).round() / 32
        logits = torch.randn(batch, length, device=DEVICE).mul(4).round() / 4
        mask = torch.rand(batch, length, device=DEVICE) < 0.8
        for given in (None, mask):
            ours = doubt_conflicting(logits, matches, 10.0, given)
            with plain_attention():
                plain = doubt_conflicting(logits, matches, 10.0, given)
            real = torch.ones_like(mask) if given is None else given
            checks.expect(
                torch.equal(ours[real], plain[real]), f"conflicts {batch} x {length}, mask {given is not None}"
            )
    same = torch.zeros(1, 4096, 4, device=DEVICE)
    same[0, :, 2] = torch.linspace(0, 1, 4096, device=DEVICE)
    logits = torch.randn(1, 4096, device=DEVICE)
    ours = doubt_conflicting(logits, same, 10.0)
    with plain_attention():
        checks.expect(torch.equal(ours, doubt_conflicting(logits, same, 10.0)), "conflicts, all in one point")


def check_real_pairs(folder: Path, checks: Checks, names: Sequence[str]) -> None:
    """Verdicts on real pairs: calls, batches, the plain road of the engine, and the network in single precision."""
    from ananet.datasets.formats.shards import PairShards

    stored = PairShards(folder)
    pairs = [stored[number * len(stored) // 1000 if len(stored) > 1000 else number].matches
             for number in range(min(1000, len(stored)))]  # fmt: skip
    for name in names:
        pruner = load_learned(name)
        batch = pruner.batch(pairs)
        streamed = list(pruner.stream(iter(pairs[::-1])))[::-1]
        for number, (one, other) in enumerate(zip(batch, streamed, strict=True)):
            same_answer(checks, f"{name}: real pair {number} in a stream", one, other)
        rows = {"call, plain road": [0, 0, 0.0], "call, batch": [0, 0, 0.0], "call, single precision": [0, 0, 0.0]}
        for pair, found in zip(pairs, batch, strict=True):
            alone = pruner(pair)
            with plain_attention():
                (exact,) = load_learned(name, cached=f"{name} in single precision")._batch([pair])
            others = pruner._batch([pair])[0], found, exact
            for row, other in zip(rows.values(), others, strict=True):
                differ, off = disagreement(alone, other)
                row[0], row[1], row[2] = row[0] + (differ > 0), row[1] + differ, max(row[2], off)
        matches = sum(map(len, pairs))
        print(
            f"{name}: {len(pairs)} real pairs, {matches} matches; pairs and matches whose verdicts differ, scores' most"
        )
        for label, (in_pairs, differ, off) in rows.items():
            print(f"    {label:26} {in_pairs:5} {differ:7} {off:9.4f}")
        checks.measured[f"{name}, real pairs"] = {"pairs": len(pairs), "matches": matches} | rows
        checks.expect(rows["call, plain road"][0] == 0, f"{name}: masks of real pairs are those of the plain road")


def disagreement(one: Pruned, other: Pruned) -> tuple[int, float]:
    """How many verdicts differ, and by how much scores do."""
    masks, scores = (
        [torch.as_tensor(getattr(each, name)).cpu() for each in (one, other)] for name in ("mask", "scores")
    )
    most = (scores[0] - scores[1]).abs().max().item() if len(scores[0]) else 0.0
    return int((masks[0] != masks[1]).sum()), most


def same_answer(checks: Checks, what: str, one: Pruned, other: Pruned) -> None:
    pairs = [
        [torch.as_tensor(getattr(each, name)).cpu() for each in (one, other)] for name in ("mask", "scores", "logits")
    ]
    checks.expect(all(torch.equal(a, b) for a, b in pairs), f"{what}: {disagreement(one, other)}")


# ------------------------------------------------------------------------------------------------ times


def wall_ms(run: Callable[[int], object], seconds: float = 0.5, least: int = 20) -> float:
    """Median time of run(i), which waits for its answer, by the wall clock."""
    for number in range(5):
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


def time_network(name: str) -> dict[str, float]:
    pruner = load_learned(name)
    assert pruner.calls is not None
    results: dict[str, float] = {}
    for count in (500, 2048, 8192, 65_536, 131_072):
        given = [two_views(count, seed) for seed in range(8 if count < 60_000 else 2)]
        least = 20 if count < 60_000 else 3
        results[f"numpy {count}"] = wall_ms(lambda i, g=given: pruner(**g[i % len(g)]), 0.4, least)
        tensors = [on_gpu(each) for each in given]
        results[f"tensors {count}"] = wall_ms(lambda i, g=tensors: pruner(**g[i % len(g)]), 0.4, least)
        if count < 60_000:
            shape = next(shape for shape in reversed(pruner.calls.graphs) if shape.alone)
            results[f"device {count}"] = device_ms(pruner.calls.graphs[shape])
    rng = np.random.default_rng(0)
    for label, lengths in (("512 of 2000", [2000] * 512), ("512 of 100 to 2000", rng.integers(100, 2001, 512))):
        pairs = [Correspondences(**two_views(int(n), seed % 16)) for seed, n in enumerate(lengths)]
        seconds = wall_ms(lambda i, p=pairs: pruner.batch(p), 0.6, 5) / 1000
        results[f"batch {label}, pairs/s"] = len(pairs) / seconds
        seconds = wall_ms(lambda i, p=pairs: list(pruner.stream(iter(p))), 0.6, 5) / 1000
        results[f"stream {label}, pairs/s"] = len(pairs) / seconds
    engine = pruner.calls.engine
    for batch, filled in ((1, None), (1, MATCHES_AT_ONCE), (32, 2048), (32, MATCHES_AT_ONCE)):
        matches = torch.rand(batch, 2048, pruner.calls.channels, device=DEVICE) * 2 - 1
        lengths = torch.full((batch,), 2000, dtype=torch.int32, device=DEVICE)
        with torch.no_grad():
            replay = graphed(lambda m=matches, n=lengths, f=filled: engine.run(m, n, f))
        results[f"network {batch}x2048, tiles for {filled or 'these'}"] = device_ms(replay)
    return results


def time_conflicts() -> dict[str, float]:
    results = {}
    for batch, length in ((1, 2048), (1, 8192), (64, 2048)):
        matches = (torch.rand(batch, length, 4, device=DEVICE) * 32).round() / 32
        logits = torch.randn(batch, length, device=DEVICE)
        results[f"conflicts {batch}x{length}"] = device_ms(
            graphed(lambda m=matches, x=logits: doubt_conflicting(x, m, 10.0))
        )
    return results


def time_first_call(name: str) -> dict[str, float]:
    """Seconds of each step in a fresh process; kernels were compiled before."""
    finished = subprocess.run([sys.executable, "-c", FIRST_CALL, name], capture_output=True, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def bars(times: dict[str, Any]) -> Iterator[str]:
    """The targets beside what was reached."""
    for name in TIMED:
        ms = times[name]
        yield f"{name}:"
        for label, key, bar in (
            ("N = 2048, numpy, ms", "numpy 2048", "0.40"),
            ("N = 2048, tensors, ms", "tensors 2048", "0.30"),
            ("N = 2048, on the device, ms", "device 2048", "-"),
            ("N = 500, numpy, ms", "numpy 500", "0.30"),
            ("N = 500, tensors, ms", "tensors 500", "0.25"),
            ("N = 8192, numpy, ms", "numpy 8192", "1.5"),
            ("N = 65,536, numpy, ms", "numpy 65536", "70"),
            ("N = 131,072, numpy, ms", "numpy 131072", "280"),
            ("batch, 512 pairs of 2000, pairs/s", "batch 512 of 2000, pairs/s", "10,000"),
            ("batch, 512 pairs of 100 to 2000, pairs/s", "batch 512 of 100 to 2000, pairs/s", "14,000"),
            ("stream, 512 pairs of 2000, pairs/s", "stream 512 of 2000, pairs/s", "10,000"),
        ):
            yield f"  {label:44} {ms[key]:10.3f}   bar {bar}"
        first = times[f"first call {name}"]
        after_torch = sum(seconds for step, seconds in first.items() if step not in ("import torch", "second call"))
        yield f"  {'first call in a process, s':44} {after_torch:10.3f}   bar 2"
    for size, bar in (("1x8192", 0.06), ("64x2048", 0.25)):
        value = times["conflicts"][f"conflicts {size}"]
        yield f"{f'doubt in conflicting matches, {size}, ms':46} {value:10.3f}   bar {bar}"


# --------------------------------------------------------------------------------------------- plumbing

_loaded: dict[str, LearnedPruner] = {}


def load_learned(name: str, device: str = "cuda", cached: str | None = None) -> LearnedPruner:
    key = cached or f"{name} on {device}"
    if key not in _loaded:
        pruner = load(name, device=device)
        assert isinstance(pruner, LearnedPruner)
        _loaded[key] = pruner
    return _loaded[key]


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Pruners that are loaded and called within run in plain PyTorch and single precision."""
    os.environ[VARIABLE] = "reference"
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def compile_kernels(name: str) -> float:
    """Fill the cache of compiled kernels; seconds that it takes."""
    begin = time.perf_counter()
    load_learned(name).warm_up((500, 2048, 3000, 8192, 65_536))
    return time.perf_counter() - begin


def measure(pairs: Path | None = None, names: Sequence[str] = NETWORKS, *, times_too: bool = True) -> dict[str, Any]:
    """Everything above, printed as it goes; times are of those in TIMED, whatever is checked."""
    begin = time.perf_counter()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    # A process for each network: most of the time goes into compiling kernels.
    compiled = tuple(dict.fromkeys((*names, *TIMED)))
    with ProcessPoolExecutor(len(compiled), multiprocessing.get_context("spawn")) as pool:
        results["compiling, s"] = dict(zip(compiled, pool.map(compile_kernels, compiled), strict=True))
    print(f"kernels compiled after {time.perf_counter() - begin:.0f} s: {results['compiling, s']}", flush=True)
    checks = Checks()
    check_conflicts(checks)
    for name in names:
        check_network(name, checks)
        print(f"{name} checked after {time.perf_counter() - begin:.0f} s: {checks.measured[name]}", flush=True)
    if pairs is not None:
        check_real_pairs(pairs, checks, [name for name in names if name in ("ananet", "ananet-ratio")])
        print(f"real pairs checked after {time.perf_counter() - begin:.0f} s", flush=True)
    results |= {"checks": checks.measured, "failed": checks.failed}
    print(f"{checks.count} checks, {len(checks.failed)} failed, after {time.perf_counter() - begin:.0f} s", flush=True)
    if not times_too:
        return results
    times: dict[str, Any] = {"conflicts": time_conflicts()}
    for name in TIMED:
        times[name] = time_network(name)
        for label, value in times[name].items():
            print(f"{name:14} {label:40} {value:12.3f}", flush=True)
    for name in TIMED:
        times[f"first call {name}"] = time_first_call(name)
        print(f"first call of {name}, s: {times[f'first call {name}']}", flush=True)
    results["times"] = times
    for line in bars(times):
        print(line)
    print(f"{checks.count} checks, {len(checks.failed)} failed; all took {time.perf_counter() - begin:.0f} s")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, help="JSON file to write")
    parser.add_argument("--pairs", type=Path, help="a folder that 'ananet data build' wrote, for checks on real pairs")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="those to check, by commas; empty for none")
    parser.add_argument("--checks-only", action="store_true", help="without the times")
    given = parser.parse_args()
    names = [name for name in given.networks.split(",") if name]
    results = measure(given.pairs, names, times_too=not given.checks_only)
    if given.results is not None:
        given.results.write_text(json.dumps(results, indent=1))
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
