"""Time and memory of pruners and networks: the paper's Table 2, and the right half of its Table 5.

python benchmarks/speed.py
python benchmarks/speed.py --device cuda
python benchmarks/speed.py --networks-only --device cuda
python benchmarks/speed.py --networks-only --threads 1 --lengths 512,8192,131072 --stop-after 5 --plot growth.png

Torch, numpy and safetensors are enough: without OpenCV, LPM, RANSAC, MAGSAC++ and the
reference (SIFT) are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import Settings, check_positive, check_whole_number
from ananet._util.defaults import PAPER_DETECTOR, PAPER_KEYPOINTS
from ananet._util.devices import choose_device
from ananet._util.tables import format_table
from ananet.attention import FORMS, choose_backend
from ananet.cli.arguments import add_json, numbers, print_json
from ananet.core.correspondences import Correspondences
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.errors import InputError
from ananet.features import load_detector, match
from ananet.inference import engine_for
from ananet.io.files import atomic_path, check_output
from ananet.networks import (
    ACNeSettings,
    ANANetSettings,
    CNeSettings,
    DeMatchSettings,
    LMCNetSettings,
    NetworkSettings,
    OANetSettings,
    make_network,
)
from ananet.pruners import load

WARM_UP_RUNS = 3
FIRST_ORDER = "none"
PRUNERS = "all,mutual,ratio,gms,lpm,lmf,code,ransac,magsac,cne,acne,oanet,lmcnet,ananet-paper,ananet"
NEED_OPENCV = ("lpm", "ransac", "magsac")
# The paper's networks and a newer one. The eigenvectors that LMCNet's authors use are found on the CPU, whatever the
# device.
NETWORKS = {
    "CNe": CNeSettings(),
    "ACNe": ACNeSettings(),
    "OANet": OANetSettings(),
    "LMCNet, eigenvectors": LMCNetSettings(),
    "LMCNet, subspace": LMCNetSettings(basis="subspace"),
    "DeMatch": DeMatchSettings(),
    "ANA-Net": ANANetSettings(),
}
FORM_NAMES = {"cubic": "Cub.", "quadratic": "Qua.", "linear": "Lin.", FIRST_ORDER: "none"}
# Image of synthetic matches and textures.
WIDTH, HEIGHT, FOCAL = 1024, 768, 800.0
MEBIBYTE = 2**20
# torch misreads larger numbers.
MAX_THREADS = 1024
MAX_MATCHES = 10_000_000


@dataclass(frozen=True)
class Effort(Settings):
    """Limits of a measurement: it ends at the first that is reached."""

    runs: int = 4000
    """As in the paper."""
    seconds: float = 10.0

    def check(self) -> None:
        check_positive("runs", self.runs)
        check_positive("seconds", self.seconds)


@dataclass(frozen=True)
class Timing:
    """Times in milliseconds, and memory beyond that in use before; None where the system does not report it."""

    mean: float
    median: float
    runs: int
    peak_mebibytes: float | None

    @property
    def peak(self) -> str:
        return "-" if self.peak_mebibytes is None else f"{self.peak_mebibytes:.0f}"


Timings = dict[str, dict[int, Timing | None]]
"""By network and number of matches; None if out of memory."""
Scorer = Callable[[Tensor], Tensor]
"""[B x N x 4] matches to [B x N] logits."""
Log = Callable[[str], None]


def measure(
    call: Callable[[Any], object], make_input: Callable[[], Any], effort: Effort, device: torch.device
) -> Timing:
    """Time a call on fresh input for every run, which is made outside of the measured time.

    On a GPU, the time between two events around the call on an idle device.
    """
    timer = _gpu_milliseconds if device.type == "cuda" else _cpu_milliseconds
    # The first run takes the memory of CUDA graphs, which counts, or loads libraries on a CPU, which does not.
    peak = PeakMemory(device)
    start = time.perf_counter()
    for _ in range(WARM_UP_RUNS):
        timer(call, make_input())
        if time.perf_counter() - start > effort.seconds:
            break
    if device.type == "cpu":
        peak = PeakMemory(device)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < effort.runs and (not times or time.perf_counter() - start < effort.seconds):
        times.append(timer(call, make_input()))
    return Timing(float(np.mean(times)), float(np.median(times)), len(times), peak.mebibytes())


def _cpu_milliseconds(call: Callable[[Any], object], given: Any) -> float:
    start = time.perf_counter()
    call(given)
    return (time.perf_counter() - start) * 1000


def _gpu_milliseconds(call: Callable[[Any], object], given: Any) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call(given)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


class PeakMemory:
    """Peak memory since construction, beyond what was in use then."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before: float | None = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device) / MEBIBYTE
        elif platform.system() == "Linux":
            try:
                # Memory that was freed but not returned to the system would hide new allocations.
                ctypes.CDLL(None).malloc_trim(0)
                # Writing 5 resets the peak of the process.
                Path("/proc/self/clear_refs").write_text("5")
                self.before = _process_mebibytes("VmRSS")
            except (OSError, AttributeError):
                pass

    def mebibytes(self) -> float | None:
        if self.before is None:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MEBIBYTE - self.before
        return max(0.0, _process_mebibytes("VmHWM") - self.before)


def _process_mebibytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


@dataclass(frozen=True)
class Execution:
    """How networks are run."""

    device: torch.device
    plain: bool = False
    """Run the module as trained instead of the fast path of `ananet.load`."""
    dtype: torch.dtype = torch.float32
    """Of a plain network."""

    def network(self, settings: NetworkSettings) -> Scorer:
        """A network with random weights."""
        torch.manual_seed(0)
        network = make_network(settings).eval()
        if self.plain:
            return network.to(self.device, self.dtype)
        engine = engine_for(network, self.device)
        return lambda matches: engine(matches, None)

    def describe(self) -> str:
        """Machine and software, in one line."""
        threads = torch.get_num_threads()
        if self.device.type == "cuda":
            where = torch.cuda.get_device_name(self.device)
        else:
            where = f"{_processor()}, {threads} thread{'s' * (threads > 1)}"
        dtype = str(self.dtype).removeprefix("torch.")
        how = f"plain network in {dtype}" if self.plain else "network as ananet.load runs it"
        return f"{where}; torch {torch.__version__}; {how}, attention {choose_backend(self.device)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def networks_to_measure(seeds: Sequence[int]) -> dict[str, NetworkSettings]:
    """The paper's network without second-order context, with each form of it, and through seeds."""
    forms: dict[str, NetworkSettings] = {form: ANANetSettings(form=form) for form in FORMS}
    through = {f"{count} seeds": ANANetSettings(seeds=count) for count in seeds}
    return {FIRST_ORDER: ANANetSettings(second_order=False), **forms, **through}


@torch.inference_mode()
def measure_network(network: Scorer, batch: int, length: int, effort: Effort, execution: Execution) -> Timing:
    """Time one pass over a batch of random problems of `length` matches each."""
    generator = torch.Generator(execution.device).manual_seed(0)

    def make_input() -> Tensor:
        return (2 * torch.rand(batch, length, 4, generator=generator, device=execution.device) - 1).to(execution.dtype)

    return measure(network, make_input, effort, execution.device)


def measure_networks(length: int, effort: Effort, execution: Execution, log: Log) -> dict[str, Timing]:
    """Time the networks alone, and ANA-Net without its fast path too: the others have none."""
    found = {}
    for name, settings in NETWORKS.items():
        log(f"network, {name}")
        found[name] = measure_network(execution.network(settings), 1, length, effort, execution)
    plain = replace(execution, plain=True)
    found["ANA-Net, plain"] = measure_network(plain.network(NETWORKS["ANA-Net"]), 1, length, effort, plain)
    return found


def measure_forms(
    lengths: Sequence[int], seeds: Sequence[int], effort: Effort, execution: Execution, log: Log, stop_after: float
) -> Timings:
    """Time `networks_to_measure`; larger N than one that took more than `stop_after` seconds are left out."""
    found: Timings = {}
    for name, settings in networks_to_measure(seeds).items():
        network = execution.network(settings)
        found[name] = {}
        for length in sorted(lengths):
            log(f"network, {name}, N = {length}")
            try:
                timing = measure_network(network, 1, length, effort, execution)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                timing = None
            found[name][length] = timing
            if timing is not None and timing.median > stop_after * 1000:
                break
    return found


def forms_table(found: Timings) -> list[dict[str, Any]]:
    """Table 5 right: mean extra milliseconds of each form; last, the network without."""
    rows = []
    for form in (*reversed(FORMS), *(name for name in found if name not in FORM_NAMES)):
        row: dict[str, Any] = {"Form": FORM_NAMES.get(form, form)}
        for length, timing in found[form].items():
            base = found[FIRST_ORDER].get(length)
            row[f"N={length}"] = f"{timing.mean - base.mean:+.2f}" if timing and base else None
        rows.append(row)
    whole = {f"N={length}": f"{timing.mean:.2f}" if timing else None for length, timing in found[FIRST_ORDER].items()}
    return [*rows, {"Form": FORM_NAMES[FIRST_ORDER], **whole}]


def details_table(found: Timings) -> list[dict[str, Any]]:
    """Mean, median and peak memory of the whole network."""
    return [
        {"Form": FORM_NAMES.get(form, form), "N": length, **timing_row(timing)}
        for form, by_length in found.items()
        for length, timing in by_length.items()
    ]


def timing_row(timing: Timing | None) -> dict[str, Any]:
    if timing is None:
        return {"mean ms": None, "median ms": None, "runs": 0, "peak MiB": "out of memory"}
    return {"mean ms": timing.mean, "median ms": timing.median, "runs": timing.runs, "peak MiB": timing.peak}


def plot_growth(found: Timings, title: str, path: Path) -> None:
    """Draw time and memory over the number of matches."""
    from ananet._util.plots import import_matplotlib

    figure = import_matplotlib().figure(figsize=(11, 4.8), dpi=100, layout="constrained")
    for axis, unit in zip(figure.subplots(1, 2), ("time, ms", "peak memory beyond the idle process, MiB"), strict=True):
        for name, by_length in found.items():
            measured = {length: timing for length, timing in by_length.items() if timing is not None}
            memory = [timing.peak_mebibytes for timing in measured.values()]
            values = [timing.median for timing in measured.values()] if unit.startswith("time") else memory
            axis.plot(list(measured), values, marker="o", label="first order only" if name == FIRST_ORDER else name)
        axis.set(xscale="log", yscale="log", xlabel="number of matches N", ylabel=unit)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle(title, fontsize=10)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def timings_as_json(found: Timings) -> dict[str, dict[str, Any]]:
    return {
        form: {str(length): asdict(timing) if timing else None for length, timing in by_length.items()}
        for form, by_length in found.items()
    }


def measure_throughput(
    batches: Sequence[int], length: int, effort: Effort, execution: Execution
) -> list[dict[str, Any]]:
    """Pairs per second of the paper's network by batch size."""
    network = execution.network(ANANetSettings())
    rows = []
    for batch in batches:
        timing = measure_network(network, batch, length, effort, execution)
        rows.append({"batch": batch, "N": length, "pairs/s": batch * 1000 / timing.median, **timing_row(timing)})
    return rows


def measure_pruners(
    names: Sequence[str], length: int, effort: Effort, execution: Execution, log: Log
) -> dict[str, Timing]:
    """Time pruners on synthetic problems, from matches to mask."""
    problems = SyntheticProblems(length)
    found = {}
    for name in names:
        log(name)
        pruner = load(name, device=execution.device)
        found[pruner.name] = measure(pruner, problems, effort, execution.device)
    return found


class SyntheticProblems:
    """Matches between two cameras, different ones at every call."""

    def __init__(self, length: int) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.settings = SyntheticSettings(matches=length)

    def __call__(self) -> Correspondences:
        problem = synthesize(1, self.generator, self.settings)
        K = torch.tensor([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
        points = (problem.matches[0] * FOCAL + torch.tensor([WIDTH / 2, HEIGHT / 2] * 2)).numpy()
        size = (WIDTH, HEIGHT)
        side = {"ratio": problem.ratio[0], "mutual": problem.mutual[0]}
        with warnings.catch_warnings():
            # Synthetic cameras see more than a photo of this size.
            warnings.simplefilter("ignore", UserWarning)
            return Correspondences(points[:, :2], points[:, 2:], K0=K, K1=K, image_size0=size, image_size1=size, **side)


def measure_reference(photos: Sequence[Path] | None, effort: Effort) -> Timing:
    """Time SIFT on two photos and nearest neighbours (Ref. in Table 2); None for a random texture."""
    from ananet.io.images import read_image

    images = [_texture(seed) for seed in (0, 1)] if photos is None else [read_image(photo) for photo in photos]
    detector = load_detector(PAPER_DETECTOR, max_keypoints=PAPER_KEYPOINTS)
    return measure(lambda both: match(*detector.batch(both)), lambda: images, effort, device=torch.device("cpu"))


def _texture(seed: int) -> np.ndarray:
    """[H x W] uint8 noise at many scales, as in photos."""
    import cv2

    rng = np.random.default_rng(seed)
    layers = [
        cv2.resize(rng.normal(0, 16, (HEIGHT // step, WIDTH // step)), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        for step in (1, 2, 4, 8, 16, 32, 64)
    ]
    return (128 + sum(layers)).clip(0, 255).astype(np.uint8)


def table_2(found: dict[str, Timing]) -> list[dict[str, Any]]:
    """Table 2: a column for each method; mean and median in milliseconds, runs and memory."""
    texts: dict[str, Callable[[Timing], str]] = {
        "runtimes (mean, ms)": lambda timing: f"{timing.mean:.2f}",
        "median, ms": lambda timing: f"{timing.median:.2f}",
        "runs": lambda timing: str(timing.runs),
        "peak, MiB": lambda timing: timing.peak,
    }
    return [
        {"Method": title, **{name: text(timing) for name, timing in found.items()}} for title, text in texts.items()
    ]


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how fast pruners and networks are.")
    add = parser.add_argument
    names = "names and .safetensors files (default: all of the paper)"
    add("--pruner", default=PRUNERS, metavar="A,B,...", help=names)
    only = "measure only networks: needs torch, numpy and safetensors only"
    add("--networks-only", action="store_true", help=only)
    add("--matches", type=int, default=2048, metavar="N", help="matches per pair (default: 2048)")
    lengths = "numbers of matches for the table of forms (default: 2048,4096,8192)"
    add("--lengths", default="2048,4096,8192", metavar="N,...", help=lengths)
    add("--seeds", default="256", metavar="M,...", help="numbers of seeds to measure too (default: 256)")
    stop = "leave out larger numbers of matches than one whose run took longer than this (default: never)"
    add("--stop-after", type=float, default=1e9, metavar="SECONDS", help=stop)
    add("--plot", type=Path, metavar="PNG", help="draw time and memory over the number of matches")
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
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    device = choose_device(arguments.device)
    if arguments.threads is not None:
        if not 1 <= arguments.threads <= MAX_THREADS:
            raise InputError(f"--threads: expected at least 1 and at most {MAX_THREADS}, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    if arguments.dtype != "float32" and not arguments.plain:
        raise InputError("--dtype: expected together with --plain; the fast path chooses its own precision")
    execution = Execution(device, arguments.plain, getattr(torch, arguments.dtype))
    whole_numbers = partial(numbers, kind=int, expected="whole numbers of at least 1 such as 2048,4096")
    lengths, batches = whole_numbers("--lengths", arguments.lengths), whole_numbers("--batch", arguments.batch)
    seeds = whole_numbers("--seeds", arguments.seeds)
    check_positive("--stop-after", arguments.stop_after)
    if arguments.plot is not None:
        check_output(arguments.plot)
    whole_numbers("--matches", str(arguments.matches))
    for name, given in (
        ("--matches", [arguments.matches]),
        ("--lengths", lengths),
        ("--seeds", seeds),
        ("--batch", batches),
    ):
        check_whole_number(name, max(given), 1, MAX_MATCHES)
    effort = Effort(arguments.runs, arguments.seconds)

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
        opencv = find_spec("cv2") is not None
        names = [name for name in arguments.pruner.split(",") if opencv or name not in NEED_OPENCV]
        pruners = measure_pruners(names, arguments.matches, effort, execution, log)
        if opencv:
            log("SIFT + NN")
            pruners["Ref."] = measure_reference(arguments.photos, effort)
        result["pruners"] = {name: asdict(timing) for name, timing in pruners.items()}
        what = "two photos given" if arguments.photos else "texture of 1024 x 768"
        reference = f" Ref.: SIFT and NN, 2000 keypoints, {what}, CPU" if opencv else " Without OpenCV"
        add(f"Table 2: inference time (ms), N = {arguments.matches}.{reference}", table_2(pruners))
    networks = measure_networks(arguments.matches, effort, execution, log)
    result["networks"] = {name: asdict(timing) for name, timing in networks.items()}
    add(f"Networks alone (ms), N = {arguments.matches}, random weights", table_2(networks))
    forms = measure_forms(lengths, seeds, effort, execution, log, arguments.stop_after)
    result["forms"] = timings_as_json(forms)
    add("Table 5, right: extra time (ms) of each form, beside the network without", forms_table(forms))
    add("Whole network, batch 1", details_table(forms))
    if arguments.plot is not None:
        plot_growth(forms, f"whole network, batch 1; {machine}", arguments.plot)
    log("throughput")
    result["throughput"] = measure_throughput(batches, arguments.matches, effort, execution)
    add("Throughput, linear form", result["throughput"])
    log("done\n")
    if arguments.json:
        print_json(result)
    else:
        print("\n\n".join(parts))


if __name__ == "__main__":
    try:
        run(read_arguments(None))
    except InputError as error:
        sys.exit(str(error))
