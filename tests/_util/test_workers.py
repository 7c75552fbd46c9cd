import threading
import time

import cv2
import pytest
import torch

from ananet._util.workers import AHEAD, worker_threads


def test_results_come_in_order_and_items_are_taken_late():
    taken = []

    def items():
        for number in range(20):
            taken.append(number)
            yield number

    def work(number):
        time.sleep(0.002 * (number % 3))
        return number, torch.get_num_threads(), cv2.getNumThreads(), threading.current_thread().name

    with worker_threads(2) as workers:
        results = workers.map(work, items())
        first = next(results)
        assert len(taken) == 2 * AHEAD
        found = [first, *results]
    assert [number for number, *_ in found] == list(range(20))
    assert {(torchs, opencvs) for _, torchs, opencvs, _ in found} == {(1, 1)}
    assert len({name for *_, name in found}) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_threads_of_libraries_are_as_before(fails):
    before = torch.get_num_threads(), cv2.getNumThreads()

    def work(number):
        if fails and number == 3:
            raise ValueError(number)
        return number

    try:
        with worker_threads() as workers:
            assert workers.count == before[0]
            assert list(workers.map(work, range(5))) == list(range(5)) and not fails
    except ValueError:
        assert fails
    assert (torch.get_num_threads(), cv2.getNumThreads()) == before
