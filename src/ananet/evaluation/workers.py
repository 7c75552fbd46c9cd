"""Processes with one thread each, so that sums and thus results do not depend on the number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Items that a worker takes at once; few, so that all workers end at about the same time.
AT_ONCE = 4
# Limit of Windows.
MAX_WORKERS = 61


@contextmanager
def worker_pool(
    workers: int | None, initializer: Callable[..., None], *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Processes that have each called `initializer(*arguments)`. An error or Ctrl-C ends them at once.

    Args:
        workers: number of processes; None for one per core.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    # numpy and OpenMP read these when a worker imports them.
    os.environ.update(ONE_THREAD)
    # Forking a process that runs threads is not safe.
    context = multiprocessing.get_context("spawn")
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        min(workers or os.cpu_count() or 1, MAX_WORKERS), context, _start, (lifeline, initializer, arguments)
    )
    try:
        yield pool
    except BaseException:
        held.close()
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown()
        held.close()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def map_ahead(
    pool: ProcessPoolExecutor, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], ahead: int
) -> Iterator[Any]:
    """`pool.map` in constant memory: at most `ahead` calls are submitted before their results are consumed."""
    given = iter(arguments)
    running: deque[Future[list[Any]]] = deque()
    while chunk := list(islice(given, AT_ONCE)):
        running.append(pool.submit(_call, function, chunk))
        if len(running) * AT_ONCE >= ahead:
            yield from running.popleft().result()
    while running:
        yield from running.popleft().result()


def _call(function: Callable[..., Any], chunk: list[tuple[Any, ...]]) -> list[Any]:
    return [function(*given) for given in chunk]


def _start(lifeline: Connection, initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # Ctrl-C reaches every process of the terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    initializer(*arguments)


def _end_with(lifeline: Connection) -> None:
    """End the process when the parent closes the other end of the pipe or is killed."""
    wait([lifeline])
    os._exit(1)
