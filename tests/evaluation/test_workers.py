import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ananet.evaluation.workers import AT_ONCE, ONE_THREAD, map_ahead, worker_pool

_given: tuple[object, ...] = ()


def start(*given):
    global _given
    _given = given


def told(number):
    return number, _given, {name: os.environ.get(name) for name in ONE_THREAD}


def fails(number):
    raise ValueError(f"no {number}")


def process(_):
    return os.getpid()


def test_workers_are_prepared_and_have_one_thread_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with worker_pool(2, start, "a", 3) as pool:
        found = list(pool.map(told, range(5)))
    assert [number for number, _, _ in found] == list(range(5))
    assert all(given == ("a", 3) and threads == ONE_THREAD for _, given, threads in found)
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ, "as they were before"


def ends(pid, seconds=10.0):
    """Whether a process is gone before long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_an_error_comes_back_and_ends_the_workers():
    with pytest.raises(ValueError, match="no 0"), worker_pool(1, start) as pool:
        (pid,) = pool.map(process, [0])
        list(pool.map(fails, range(3)))
    assert ends(pid)


def test_an_error_in_this_process_ends_the_workers_at_once():
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt), worker_pool(1, start) as pool:
        (pid,) = pool.map(process, [0])
        pool.submit(time.sleep, 60)
        time.sleep(0.2)
        raise KeyboardInterrupt
    assert ends(pid) and time.monotonic() - before < 30


@pytest.mark.skipif(sys.platform == "win32", reason="children end otherwise there")
def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import os, time\n"
        "from ananet.evaluation.workers import worker_pool\n"
        "def nothing(): pass\n"
        "def process(_): return os.getpid()\n"
        "if __name__ == '__main__':\n"
        "    with worker_pool(1, nothing) as pool:\n"
        "        print(*pool.map(process, [0]), flush=True)\n"
        "        pool.submit(time.sleep, 60).result()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
    assert ends(worker)


def test_arguments_are_taken_as_results_are():
    taken = done = most = 0

    def arguments():
        nonlocal taken, most
        for number in range(30):
            taken += 1
            most = max(most, taken - done)
            yield number, 2

    with ThreadPoolExecutor(2) as pool:
        for number, result in enumerate(map_ahead(pool, pow, arguments(), 8)):
            assert result == number**2
            done += 1
    assert done == 30 and most <= 8 + AT_ONCE
