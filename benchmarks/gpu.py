"""Check and time second-order attention and the networks built on it, on one GPU.

    PYTHONPATH=src python3 benchmarks/gpu.py [results.json]

Checks: outputs and every gradient against float64, on odd sizes and masks, with all fresh memory poisoned by NaN;
the error may be at most twice that of plain PyTorch in the same precision. Times: medians of CUDA events over
fresh random inputs after warm-up. Needs torch, numpy, safetensors and triton.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ananet.attention import Seeds, second_order_attention, seeded_attention
from ananet.attention.second_order import VARIABLE
from ananet.core.conflicts import penalize_conflicts
from ananet.inference import engine_for
from ananet.networks import ANANet, ANANetSettings

DEVICE = torch.device("cuda")
PRECISIONS = {
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "float16": (torch.float16, False),
    "bfloat16": (torch.bfloat16, False),
}
# An error this small is rounding of the result itself, whatever plain PyTorch happened to reach.
ROUNDING = {"float32": 1e-6, "tf32": 5e-4, "float16": 5e-4, "bfloat16": 4e-3}


# ----------------------------------------------------------------------------------------------- checks


def check_attention(precision: str) -> list[dict[str, Any]]:
    """Errors of the fused op over those of plain PyTorch, for every output and gradient."""
    dtype, torch.backends.cuda.matmul.allow_tf32 = PRECISIONS[precision]
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
    # Shape, form, whether values are keys, whether there is a mask; and how many seeds, if any.
    cases: list[tuple[Any, ...]] = [
        ((2, 4, 509, 32), "quadratic", True, True),
        ((2, 2, 333, 32), "linear", False, False),
        ((1, 2, 1, 32), "linear", True, False),
        ((3, 4, 257, 32), "linear", True, True),
        ((1, 2, 300, 16), "quadratic", False, True),
        ((1, 2, 190, 24), "linear", True, False),
        ((1, 2, 270, 64), "quadratic", True, True),
        ((1, 1, 131, 128), "quadratic", False, False),
        ((2, 2, 200, 32), None, True, False),
        ((1, 2, 300, 32), "cubic", True, True),
        ((1, 2, 0, 32), "linear", True, False),
        ((2, 4, 509, 32), "quadratic", True, True, 70),
        ((1, 2, 300, 32), "linear", False, False, 33),
        ((3, 4, 257, 32), "linear", True, True, 257),
        ((1, 2, 190, 24), None, True, False, 1),
    ]
    if precision == "tf32":  # cuBLAS leaves tf32 for float32 where rows are not aligned: no comparison there
        cases = [((*shape[:2], shape[2] // 4 * 4, shape[3]), *rest) for shape, *rest in cases]
    return [check_case(precision, dtype, *case) for case in cases]


def check_case(
    precision: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    form: Any,
    shared: bool,
    masked: bool,
    seeds: int = 0,
) -> dict[str, Any]:
    batch, _, length, _ = shape
    inputs = [torch.randn(shape, device=DEVICE).to(dtype) for _ in range(3)]
    mask = None
    if masked:
        lengths = torch.linspace(length, length // 3, batch, device=DEVICE).round()
        mask = torch.arange(length, device=DEVICE) < lengths[:, None]
        mask &= torch.rand(batch, length, device=DEVICE) < 0.9
    groups = None
    if seeds:
        group = torch.randint(seeds, (batch, length), device=DEVICE)
        real = torch.ones(batch, length, device=DEVICE) if mask is None else mask.float()
        groups = Seeds(group, torch.zeros(batch, seeds, device=DEVICE).scatter_add(1, group, real))
    grad_output = torch.randn(shape, device=DEVICE, dtype=torch.float64)
    grad_context = torch.randn(shape[:3], device=DEVICE, dtype=torch.float64)
    if mask is not None:
        grad_context *= mask[:, None]

    def run(backend: Any, as_type: torch.dtype) -> dict[str, Tensor]:
        query, key, value = (x.detach().to(as_type).requires_grad_() for x in inputs)
        value = key if shared else value
        if groups is None:
            output, context = second_order_attention(query, key, value, form, mask, backend=backend)
        else:
            output, context = seeded_attention(query, key, value, groups, form, mask, backend=backend)
        grads: list[Tensor] = [grad_output.to(output.dtype)]
        outputs: list[Tensor] = [output]
        if context is not None:
            outputs.append(context)
            grads.append(grad_context.to(context.dtype))
        torch.autograd.backward(outputs, grads)
        named = {"output": output, "context": context, "d query": query.grad, "d key": key.grad}
        if not shared:
            named["d value"] = value.grad
        return {name: x.detach().double() for name, x in named.items() if x is not None}

    exact, plain, fused = run("reference", torch.float64), run("reference", dtype), run("fused", dtype)
    errors = {}
    for name, truth in exact.items():
        scale = truth.norm().item() or 1.0
        # Where the truth is zero (one match attends to itself alone) the size of the inputs is the yardstick.
        scale = max(scale, 1e-3 * truth.numel() ** 0.5)
        ours, theirs = ((x[name] - truth).norm().item() / scale for x in (fused, plain))
        errors[name] = {"fused": ours, "plain": theirs, "ok": ours <= max(2 * theirs, ROUNDING[precision])}
    return {
        "precision": precision, "shape": shape, "form": form, "shared": shared, "masked": masked,
        "seeds": seeds, "errors": errors, "ok": all(error["ok"] for error in errors.values()),
    }  # fmt: skip


def check_engine() -> dict[str, Any]:
    """Logits of the half-precision engine, and of plain PyTorch in half precision, against float64."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    results = {}
    for form in ("linear", "quadratic"):
        network = random_network(form)
        engine = engine_for(network, DEVICE)
        for length in (1, 100, 777, 2048):
            matches = torch.rand(2, length, 4, device=DEVICE) * 2 - 1
            lengths = torch.tensor([length, (length + 1) // 2], device=DEVICE)
            mask = torch.arange(length, device=DEVICE) < lengths[:, None]
            with plain_attention(), torch.no_grad():
                truth = network.double()(matches.double(), mask)
                half = network.half()(matches.half(), mask).double()
            network.float()
            ours = engine(matches, lengths).double()
            again = engine(matches, lengths).double()
            error, plain = ((x - truth).norm() / truth.norm() for x in (ours, half))
            results[f"{form} {length}"] = {
                "fused": error.item(), "plain": plain.item(),
                "ok": bool(error <= 2 * plain) and bool((ours == again).all()),
            }  # fmt: skip
    return results


def check_conflicts() -> bool:
    """Whether the kernel that doubts conflicting matches says exactly what plain PyTorch says."""
    for batch, length in ((1, 0), (1, 1), (3, 777), (2, 2048)):
        matches, logits = crowded_matches(batch, length), torch.randn(batch, length, device=DEVICE)
        mask = torch.rand(batch, length, device=DEVICE) < 0.8
        ours = [penalize_conflicts(logits, matches, 10.0), penalize_conflicts(logits, matches, 10.0, mask)[mask]]
        with plain_attention():
            plain = [penalize_conflicts(logits, matches, 10.0), penalize_conflicts(logits, matches, 10.0, mask)[mask]]
        if not all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True)):
            return False
    return True


def check_estimate() -> dict[str, float]:
    """Relative error of the cubic form estimated from random signs, beside the exact one."""
    query, key = 2 * torch.randn(2, 1, 4, 2048, 32, device=DEVICE)
    _, exact = second_order_attention(query, key, key, "cubic")
    errors = {}
    for signs in (4, 16, 64, 256):
        _, estimate = second_order_attention(query, key, key, "cubic", signs=signs)
        errors[str(signs)] = ((estimate - exact).norm() / exact.norm()).item()
    return errors


# ------------------------------------------------------------------------------------------------ times


def median_ms(run: Callable[[int], object], least: int = 20, seconds: float = 0.4) -> float:
    """Median time of run(i) by CUDA events, after warm-up."""
    for i in range(3):
        run(i)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run(0)
    torch.cuda.synchronize()
    count = max(least, min(1000, int(seconds / max(time.perf_counter() - begin, 1e-5))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for i in range(count):
        run(i)
        events[i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


def time_inference() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in ("none", "linear", "quadratic", "seeds"):
        network = random_network(name)
        engine = engine_for(network, DEVICE)
        shapes = ((1, 2048), (1, 4096), (1, 8192), (1, 16384), (64, 2048))
        for batch, length in (*shapes, (1, 131_072)) if name == "seeds" else shapes:
            inputs = [torch.rand(batch, length, 4, device=DEVICE) * 2 - 1 for _ in range(8)]
            results[f"engine {name} {batch}x{length}"] = median_ms(lambda i, x=inputs, run=engine: run(x[i % 8], None))
            if batch == 1 and length <= 8192 and name != "seeds":
                with plain_attention(), torch.no_grad():
                    results[f"eager {name} {batch}x{length}"] = median_ms(
                        lambda i, x=inputs, net=network: net(x[i % 8]), least=10
                    )
    for batch, length in ((1, 2048), (1, 8192), (64, 2048)):
        matches, logits = crowded_matches(batch, length), torch.randn(batch, length, device=DEVICE)
        results[f"conflicts {batch}x{length}"] = median_ms(
            lambda i, x=matches, y=logits: penalize_conflicts(y, x, 10.0)
        )
        with plain_attention():
            results[f"eager conflicts {batch}x{length}"] = median_ms(
                lambda i, x=matches, y=logits: penalize_conflicts(y, x, 10.0)
            )
    network = random_network("cubic")
    engine = engine_for(network, DEVICE)
    for length in (2048, 8192):
        inputs = [torch.rand(1, length, 4, device=DEVICE) * 2 - 1 for _ in range(4)]
        results[f"engine cubic 1x{length}"] = median_ms(lambda i, x=inputs: engine(x[i % 4], None), least=5)
        with plain_attention(), torch.no_grad():
            results[f"eager cubic 1x{length}"] = median_ms(lambda i, x=inputs: network(x[i % 4]), least=5)
    return results


def time_training() -> dict[str, Any]:
    """Milliseconds and peak GiB of a training step: forward, loss, backward, Adam."""
    results: dict[str, Any] = {}

    def measure(label: str, step: Callable[[int], None], least: int) -> None:
        step(0)
        release_memory()
        results[f"train {label}"] = median_ms(step, least)
        results[f"train {label} GiB"] = torch.cuda.max_memory_allocated() / 2**30

    for masked in (True, False):
        network = random_network("linear").train()
        # One CUDA graph: launching a thousand small kernels one by one takes longer than running them.
        compiled = torch.compile(network, mode="reduce-overhead", fullgraph=True, dynamic=False)
        label = f"compiled bf16 32x2000{' masked' if masked else ''}"
        measure(label, training_step(network, 32, 2000, masked=masked, forward=compiled), 20)
    torch._dynamo.reset()
    measure("bf16 32x2000", training_step(random_network("linear").train(), 32, 2000), 10)
    torch.backends.cuda.matmul.allow_tf32 = True
    measure("tf32 32x2000", training_step(random_network("linear").train(), 32, 2000, autocast=False), 10)
    torch.backends.cuda.matmul.allow_tf32 = False
    measure("bf16 1x65536", training_step(random_network("quadratic").train(), 1, 65_536), 3)
    with plain_attention():
        measure("reference bf16 32x2000", training_step(random_network("linear").train(), 32, 2000), 5)
    return results


def training_step(
    network: ANANet,
    batch: int,
    length: int,
    *,
    autocast: bool = True,
    masked: bool = False,
    forward: Callable[..., Tensor] | None = None,
) -> Callable[[int], None]:
    run = network if forward is None else forward
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    inputs = [torch.rand(batch, length, 4, device=DEVICE) * 2 - 1 for _ in range(4)]
    labels = (torch.rand(batch, length, device=DEVICE) < 0.4).float()
    mask = None
    if masked:
        lengths = torch.randint(length // 2, length + 1, (batch, 1), device=DEVICE)
        mask = torch.arange(length, device=DEVICE) < lengths

    def step(i: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            logits = run(inputs[i % 4], mask)
        torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels).backward()
        optimizer.step()

    return step


def ceilings() -> dict[str, float]:
    """What this GPU reaches at best: a large copy, and a large half-precision matrix product."""
    source = torch.randn(2**28, device=DEVICE)
    target = torch.empty_like(source)
    a, b = torch.randn(2, 8192, 8192, device=DEVICE, dtype=torch.float16)
    return {
        "copy TB/s": 2 * source.nbytes / median_ms(lambda i: target.copy_(source)) / 1e9,
        "float16 TFLOP/s": 2 * 8192**3 / median_ms(lambda i: a @ b) / 1e9,
    }


# --------------------------------------------------------------------------------------------- plumbing


def random_network(form: str) -> ANANet:
    """A network with the statistics of a trained one: batch norms that do something. "seeds" is linear, with 256."""
    torch.manual_seed(0)
    others = {"none": ANANetSettings(second_order=False), "seeds": ANANetSettings(seeds=256)}
    network = ANANet(others[form] if form in others else ANANetSettings(form=form))  # type: ignore[arg-type]
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.3)
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
    return network.eval().to(DEVICE)


def crowded_matches(batch: int, length: int) -> Tensor:
    """Matches on a grid, so that many share a point."""
    return (torch.rand(batch, length, 4, device=DEVICE) * 32).round() / 32


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    os.environ[VARIABLE] = "reference"
    try:
        yield
    finally:
        del os.environ[VARIABLE]


def release_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    begin = time.perf_counter()
    # A process for each precision: most of the time goes into compiling kernels.
    with ProcessPoolExecutor(5, multiprocessing.get_context("spawn")) as pool:
        engine = pool.submit(check_engine)
        results["attention"] = [case for cases in pool.map(check_attention, PRECISIONS) for case in cases]
        results["engine"] = engine.result()
    results["conflicts ok"] = check_conflicts()
    results["cubic estimate error"] = check_estimate()
    print(f"checks took {time.perf_counter() - begin:.0f} s", flush=True)
    failed = [case for case in results["attention"] if not case["ok"]]
    for case in failed:
        print("FAILED", json.dumps(case))
    failed += [f"{name} {case}" for name, case in results["engine"].items() if not case["ok"]]
    if not results["conflicts ok"]:
        failed.append("conflicts")
    print("engine", json.dumps(results["engine"]))
    results["ceilings"] = ceilings()
    results["ms"] = time_inference()
    for name, value in results["ms"].items():
        print(f"{name:36} {value:9.3f}", flush=True)
    training = time_training()
    results["ms"].update(training)
    print(f"all took {time.perf_counter() - begin:.0f} s")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    for name, value in training.items():
        print(f"{name:36} {value:9.3f}")
    print("ceilings", results["ceilings"])
    print("cubic estimate error", results["cubic estimate error"])
    for line in bars(results["ms"]):
        print(line)
    checks = len(results["attention"]) + len(results["engine"]) + 1
    print(f"{checks} checks (attention, engine, conflicts), {len(failed)} failed")


def bars(ms: dict[str, float]) -> Iterator[str]:
    """The targets beside what was reached."""
    ratio = max(ms[f"engine quadratic 1x{n}"] / ms[f"engine linear 1x{n}"] for n in (2048, 4096, 8192, 16384))
    for name, value, bar in (
        ("network, N = 2048, ms", ms["engine linear 1x2048"], 0.30),
        ("network, N = 8192, ms", ms["engine linear 1x8192"], 1.6),
        ("quadratic over linear, worst N", ratio, 1.05),
        ("second order at N = 8192, extra ms", ms["engine linear 1x8192"] - ms["engine none 1x8192"], 0.6),
        ("N = 2048, batch 64, pairs/s", 64_000 / ms["engine linear 64x2048"], 6000),
        ("256 seeds, N = 8192, ms", ms["engine seeds 1x8192"], 0.5),
        ("256 seeds, N = 131,072, ms", ms["engine seeds 1x131072"], 12),
        ("256 seeds, N = 2048, batch 64, pairs/s", 64_000 / ms["engine seeds 64x2048"], 25_000),
        ("training step 32 x 2000, masked, ms", ms["train compiled bf16 32x2000 masked"], 25),
        ("training step 32 x 2000, masked, GiB", ms["train compiled bf16 32x2000 masked GiB"], 4),
        ("N = 65,536 forward + backward, GiB", ms["train bf16 1x65536 GiB"], 6),
    ):
        yield f"{name:38} {value:10.3f}   bar {bar}"


if __name__ == "__main__":
    main()
