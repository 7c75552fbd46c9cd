"""Who does the work: Ray, on this machine or on many, or a plain loop as the reference."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ananet._util.devices import choose_device
from ananet.errors import InputError, MissingExtraError

Row = dict[str, Any]
Step = Callable[[Row], Row]


class Engine(Protocol):
    """Takes rows through three steps; what the last one says of each may come in any order."""

    device: str
    """Where the heavy step runs, "cpu" or "cuda"."""

    def run(self, rows: Sequence[Row], before: Step, heavy: tuple[Any, ...] | None, after: Step) -> Iterator[Row]:
        """Run all steps on every batch of rows.

        Args:
            before, after: light steps.
            heavy: a class and the arguments it is made with, once in a process; called with rows too.
        """


class Serial:
    """One row after another, in this process."""

    def __init__(self, device: str) -> None:
        self.device = choose_device(device).type

    def run(self, rows: Sequence[Row], before: Step, heavy: tuple[Any, ...] | None, after: Step) -> Iterator[Row]:
        if rows:
            yield from map(_AllSteps(before, heavy, after), rows)


class _AllSteps:
    """All that is done to a row, in one process."""

    def __init__(self, before: Step, heavy: tuple[Any, ...] | None, after: Step) -> None:
        self.before, self.after = before, after
        self.heavy: Step | None = heavy[0](*heavy[1:]) if heavy else None

    def __call__(self, row: Row) -> Row:
        row = self.before(row)
        return self.after(row if self.heavy is None else self.heavy(row))


class Cluster:
    """Ray Data. A row is a block of its own: Ray takes up no more rows than its object store can hold.

    Where the heavy step runs on GPUs, it is an actor on each, and the others are tasks that run beside, so that a GPU
    need not wait for them. On CPUs there is nothing to wait for: an actor takes a row through all steps. What a killed
    process was working on is done again by another.

    Args:
        workers: actors; None for as many as there is room for.
    """

    def __init__(self, ray: Any, workers: int | None, device: str) -> None:
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        if device.startswith("cuda") and not gpus:
            raise InputError(f"device: expected 'auto' or 'cpu', as this Ray has no GPU, got {device!r}")
        self.ray, self.cpus = ray, cpus
        self.device = "cuda" if gpus and device != "cpu" else "cpu"
        self.steps_apart = self.device == "cuda"
        # Actors that hold every CPU would leave none for the steps beside them.
        most = min(gpus, cpus - 1) if self.steps_apart else cpus
        self.workers = most if workers is None else workers
        if not 1 <= self.workers <= most:
            raise InputError(f"workers: expected 1 to {most} on a Ray of {cpus} CPUs and {gpus} GPUs, got {workers}")

    def run(self, rows: Sequence[Row], before: Step, heavy: tuple[Any, ...] | None, after: Step) -> Iterator[Row]:
        if not rows:
            return
        data = self.ray.data
        data.DataContext.get_current().enable_progress_bars = False
        dataset = data.from_items(list(rows), override_num_blocks=len(rows))
        # Without a heavy step there are no GPUs to be counted.
        size = min(len(rows), self.cpus if heavy is None and self.steps_apart else self.workers)
        actors = {"compute": data.ActorPoolStrategy(size=size), "num_cpus": 1}
        if heavy is None or not self.steps_apart:
            dataset = dataset.map(_AllSteps, fn_constructor_args=(before, heavy, after), **actors)
        else:
            gpus = 1 if self.device == "cuda" else None
            dataset = dataset.map(before).map(heavy[0], fn_constructor_args=heavy[1:], num_gpus=gpus, **actors)
            dataset = dataset.map(after)
        try:
            yield from dataset.iter_rows()
        except self.ray.exceptions.RayError as error:
            # What the step itself said is the last line before what Ray has to say of it.
            told, _, _ = str(error).partition("The above exception was the direct cause")
            raise RuntimeError(told.strip().splitlines()[-1]) from error


@contextmanager
def open_engine(workers: int | None, address: str | None, device: str) -> Iterator[Engine]:
    """Ray at an address, one that runs in this process already, or one of this machine's own; none for 0 workers."""
    if workers == 0:
        yield Serial(device)
        return
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtraError("ray[data]", "ray") from None
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if ray.is_initialized():
        yield Cluster(ray, workers, device)
        return
    # Ray would tell its makers how it is used.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        cpus = max(os.cpu_count() or 1, workers or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    else:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"address: expected that of a Ray cluster, got {address!r} ({error})") from None
    try:
        yield Cluster(ray, workers, device)
    finally:
        ray.shutdown()
