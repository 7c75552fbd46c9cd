"""Run the steps on Ray, on one machine or many, or in a plain loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from ananet._util.devices import choose_device
from ananet.errors import InputError, MissingExtraError

Row = dict[str, Any]
Step = Callable[[Row], Row]
# A class and its arguments.
Heavy = tuple[Any, ...] | None


class _AllSteps:
    """All steps of a row, in one process."""

    def __init__(self, before: Step | None, heavy: Heavy, after: Step | None) -> None:
        self.steps: list[Step | None] = [before, heavy[0](*heavy[1:]) if heavy else None, after]

    def __call__(self, row: Row) -> Row:
        return reduce(lambda made, step: step(made) if step else made, self.steps, row)


class Serial:
    """One row after another, in this process: the reference for `Cluster`."""

    def __init__(self, device: str) -> None:
        self.device = choose_device(device).type

    def run(self, rows: Sequence[Row], before: Step | None, heavy: Heavy, after: Step | None) -> Iterator[Row]:
        """Yield the result of each row, on a cluster in any order.

        Args:
            before, after: cheap steps.
            heavy: constructed once per process, called with rows, runs on `device`.
        """
        if rows:
            yield from map(_AllSteps(before, heavy, after), rows)


class Cluster:
    """Ray Data. Every row is a block, so Ray starts no more rows than its object store can hold.

    On GPUs, the heavy step is one actor per GPU, and the other steps are tasks on the CPUs, so that a GPU does not wait
    for them. On CPUs alone, each actor does all steps of a row. Rows of a killed process are repeated by another.
    `workers` is the number of actors, None for as many as fit.
    """

    def __init__(self, ray: Any, workers: int | None, device: str) -> None:
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        if device.startswith("cuda") and not gpus:
            raise InputError(f"device: expected 'auto' or 'cpu', as this Ray has no GPU, got {device!r}")
        self.ray, self.cpus = ray, cpus
        self.device = "cuda" if gpus and device != "cpu" else "cpu"
        self.steps_apart = self.device == "cuda"
        # Each actor also takes a CPU: leave one for the other steps.
        most = min(gpus, cpus - 1) if self.steps_apart else cpus
        self.workers = most if workers is None else workers
        if not 1 <= self.workers <= most:
            raise InputError(f"workers: expected 1 to {most} on a Ray of {cpus} CPUs and {gpus} GPUs, got {workers}")

    def run(self, rows: Sequence[Row], before: Step | None, heavy: Heavy, after: Step | None) -> Iterator[Row]:
        """As `Serial.run`."""
        if not rows:
            return
        data = self.ray.data
        data.DataContext.get_current().enable_progress_bars = False
        dataset = data.from_items(list(rows), override_num_blocks=len(rows))
        # Cheap steps alone run on all CPUs, however few GPUs there are.
        size = min(len(rows), self.cpus if heavy is None and self.steps_apart else self.workers)
        actors = {"compute": data.ActorPoolStrategy(size=size), "num_cpus": 1}
        if heavy is None or not self.steps_apart:
            dataset = dataset.map(_AllSteps, fn_constructor_args=(before, heavy, after), **actors)
        else:
            gpus = 1 if self.device == "cuda" else None
            dataset = dataset if before is None else dataset.map(before)
            dataset = dataset.map(heavy[0], fn_constructor_args=heavy[1:], num_gpus=gpus, **actors)
            dataset = dataset if after is None else dataset.map(after)
        try:
            yield from dataset.iter_rows()
        except self.ray.exceptions.RayError as error:
            # The error of the step is in the last line before Ray's own traceback.
            told, _, _ = str(error).partition("The above exception was the direct cause")
            raise RuntimeError(told.strip().splitlines()[-1]) from error


Engine = Serial | Cluster


@contextmanager
def open_engine(workers: int | None, address: str | None, device: str) -> Iterator[Engine]:
    """A plain loop for 0 workers; else the Ray of this process, the one at the address, or a new local one."""
    if workers == 0:
        yield Serial(device)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # At lower levels, Ray's core prints an error about `max_restarts` for any actors of Ray Data.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
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
    local = {"address": "local", "num_cpus": max(os.cpu_count() or 1, workers or 1), "include_dashboard": False}
    try:
        with _stderr_dropped():
            ray.init(**({"address": address} if address else local), log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        if address is None:
            raise
        raise InputError(f"address: expected that of a Ray cluster, got {address!r} ({error})") from None
    try:
        yield Cluster(ray, workers, device)
    finally:
        ray.shutdown()


@contextmanager
def _stderr_dropped() -> Iterator[None]:
    """Drop what this process writes to stderr, native code included: Ray prints the log level it was given."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
