import io

import numpy as np
import pytest

import ananet
from ananet.pruners import learned, progress
from ananet.pruners.progress import progress_bar
from tests.conftest import make_problem


def test_a_network_says_how_far_it_is(weights, problem, monkeypatch):
    pruner = ananet.load(weights / "plain.safetensors", device="cpu")
    calls = []
    quiet = pruner(problem.matches).logits
    pruner.progress = lambda done, total: calls.append((done, total))
    np.testing.assert_array_equal(pruner(problem.matches).logits, quiet)
    assert calls == [(1, 2), (2, 2)]
    calls.clear()
    monkeypatch.setattr(learned, "MATCHES_AT_ONCE", 100)
    pruner.batch([make_problem(n, n, seed=n).matches for n in (40, 45)])
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("name", ["ananet", "all+ananet"])
def test_pruners_made_of_networks_pass_progress_on(name, problem):
    pruner, calls = ananet.load(name, device="cpu"), []
    pruner.progress = lambda done, total: calls.append((done, total))
    pruner(problem.matches)
    assert calls[-1] == (5, 5) and pruner.progress is not None


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("name", ["{}", "all+{}"])
def test_a_bar_shows_where_one_waits(name, weights, problem, monkeypatch):
    pruner = ananet.load(name.format(weights / "plain.safetensors"), device="cpu")
    monkeypatch.setattr(progress, "WORTH_A_BAR", len(problem.matches) - 1)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        with progress_bar(pruner, len(problem.matches)):
            pruner(problem.matches)
        assert ("plain" in stream.getvalue()) == shown
    few = Terminal()
    monkeypatch.setattr("sys.stderr", few)
    with progress_bar(pruner, 5):
        pruner(problem.matches)
    assert few.getvalue() == ""
    with progress_bar(ananet.load("all"), 10**6):
        pass
    assert few.getvalue() == ""


def test_afterwards_the_pruner_is_as_before(weights, monkeypatch):
    pruner = ananet.load(weights / "plain.safetensors", device="cpu")
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), progress_bar(pruner, 10**6):
        assert pruner.progress is not None
        raise KeyboardInterrupt
    assert pruner.progress is None
