"""Whole calls of a GPU on the CPU, in Triton's interpreter. `attention/test_fused.py` runs it in its own process."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ananet import Correspondences, InputError
from ananet.inference import calls
from ananet.inference.ananet.folded import FoldedANANet
from ananet.inference.ananet.fused import FusedANANet
from ananet.pruners import LearnedPruner
from tests.conftest import make_problem
from tests.inference.test_ananet import trained

SETTINGS = {"blocks": 1, "width": 32, "heads": 2}
K = np.array([[500.0, 2.0, 320], [0, 510, 240], [0, 0, 1]])


def pruners(**settings) -> tuple[LearnedPruner, LearnedPruner]:
    """The same network by the plain road, and in one go; both in single precision."""
    network = trained(**{**SETTINGS, **settings})
    plain, whole = LearnedPruner(network, "cpu"), LearnedPruner(network, "cpu")
    whole.engine = FusedANANet(FoldedANANet(network), torch.float32)
    whole.calls = calls.DeviceCalls(whole.engine, whole.decision, whole._wrong, whole.conflict_odds)
    return plain, whole


def odd_pairs() -> list[Correspondences]:
    """With and without cameras, sizes and descriptors; out of view, sharing points, next to nothing, nothing."""
    m = make_problem(60, 50).matches
    rng = np.random.default_rng(0)
    sizes, angles = rng.uniform(2, 30, (2, len(m))), rng.uniform(0, 6, (2, len(m)))
    described = m.replace(
        **{
            f"{name}{n}": torch.from_numpy(x[n]).float()
            for name, x in (("keypoint_sizes", sizes), ("angles", angles))
            for n in (0, 1)
        }
    )
    far = m.points0.copy()
    far[::9] = 65535
    shared = m.points1.copy()
    shared[::3] = shared[0]
    size = (640, 480)
    bare = Correspondences(m.points0, m.points1, image_size0=size, image_size1=size)
    same = Correspondences(np.full((7, 2), 30), np.full((7, 2), 40), K0=K, K1=K)
    return [described, m, m.replace(points0=far), m.replace(points1=shared), bare, same, bare[:1], m[:0], m[:130]]


@pytest.mark.parametrize(
    "settings", [{}, {"side": ("ratio", "mutual", "size", "angle")}, {"seeds": 16, "blocks": 2, "side": ("ratio",)}]
)
def test_as_the_plain_road(settings, monkeypatch):
    plain, whole = pruners(**settings)
    pairs = odd_pairs()
    expected = plain.batch(pairs)
    streamed = list(whole.stream(iter(pairs)))
    alone = [whole(pair) for pair in pairs]
    monkeypatch.setattr(calls, "_on_host", lambda pair: len(pair) % 2 == 0)  # what a GPU has already, too
    for found in (streamed, alone, whole.batch(pairs)):
        for one, other in zip(found, expected, strict=True):
            # The plain road computes some pairs in single precision from the start.
            np.testing.assert_allclose(one.logits, other.logits, atol=2e-4, rtol=1e-4)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
            near = np.abs(np.asarray(other.logits) - plain.decision) < 1e-3
            np.testing.assert_array_equal(np.asarray(one.mask)[~near], np.asarray(other.mask)[~near])
            assert one.mask.dtype == other.mask.dtype and one.pruner == other.pruner


@pytest.mark.parametrize("settings", [{}, {"seeds": 16, "blocks": 2}])
def test_what_is_beside_a_pair_changes_nothing(settings, monkeypatch):
    _, whole = pruners(**settings)
    pairs = odd_pairs()
    together = whole.batch(pairs)
    for chosen in ([4, 1], [8, 0, 2]):
        for number, found in zip(chosen, whole.batch([pairs[n] for n in chosen]), strict=True):
            np.testing.assert_array_equal(found.logits, together[number].logits)
    (streamed,) = whole.stream([pairs[1]])
    np.testing.assert_array_equal(streamed.logits, together[1].logits)
    shapes = []
    monkeypatch.setattr(whole.calls, "_run", lambda shape, memory: shapes.append(shape))
    whole.batch([pairs[1], pairs[7]])
    whole.batch([pairs[1]])
    list(whole.stream([pairs[1]]))
    whole(pairs[1])
    assert [shape.alone for shape in shapes] == [False, False, False, True], "a batch of one is still a batch"


def test_answers_come_as_the_points_came(monkeypatch):
    _, whole = pruners()
    m = make_problem(20, 10).matches.to("cpu")
    tensors = whole(m.points0, m.points1, K0=m.K0, K1=m.K1)
    assert all(isinstance(x, torch.Tensor) for x in (tensors.mask, tensors.scores, tensors.logits))
    monkeypatch.setattr(calls, "_on_host", lambda pair: False)
    on_device = whole(m.points0, m.points1, K0=m.K0, K1=m.K1)
    assert torch.equal(tensors.logits, on_device.logits) and on_device.mask.dtype == torch.bool
    before = on_device.logits.clone()
    whole(m.points1, m.points0, K0=m.K0, K1=m.K1)
    assert torch.equal(on_device.logits, before), "the next call has memory of its own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points0": [[np.nan, 1.0]]}, r"points0: expected finite numbers, .* 1 of 1 rows"),
        ({"points1": [[1.0, -np.inf]]}, "points1: expected finite numbers"),
        ({"K0": -K}, "K0: expected positive focal lengths"),
        ({"K1": K.T}, "K1: expected .*fx"),
        ({"ratio": [1.5]}, r"ratio: expected values in \[0, 1\], got 1.5"),
        ({"ratio": [np.nan]}, "ratio: expected finite numbers"),
        ({"keypoint_sizes1": [0.0]}, "keypoint_sizes1: expected positive numbers of pixels, got 0"),
        ({"angles0": [np.inf]}, "angles0: expected finite numbers"),
        ({"angles0": [90.0]}, "angles0: expected radians"),
    ],
)
def test_wrong_values_on_a_device_are_found_there(change, message, monkeypatch):
    _, whole = pruners(side=("ratio", "size", "angle"))
    good = {
        "points0": [[1.0, 2.0]], "points1": [[3.0, 4.0]], "K0": K, "K1": K, "ratio": [0.5],
        "keypoint_sizes0": [3.0], "keypoint_sizes1": [4.0], "angles0": [0.0], "angles1": [1.0],
    }  # fmt: skip
    monkeypatch.setattr(calls, "_on_host", lambda pair: False)
    found = []
    for given in (good, {**good, **change}, good):
        pair = Correspondences._unchecked(**{name: torch.as_tensor(np.array(values)) for name, values in given.items()})
        assert not pair._values_are_checked
        if given is good:
            found.append(whole(pair).logits)
        else:
            with pytest.raises(InputError, match=message):
                whole(pair)
    assert torch.equal(*found), "an error leaves nothing behind"


def test_one_variable_turns_whole_calls_off(monkeypatch):
    network = trained(**SETTINGS)
    monkeypatch.setenv("ANANET_ATTENTION", "fused")
    whole = LearnedPruner(network, "cpu")
    monkeypatch.setenv("ANANET_CALLS", "plain")
    plain = LearnedPruner(network, "cpu")
    assert whole.calls is not None and plain.calls is None
    monkeypatch.setattr("ananet.core.fused_conflicts.lower_conflicting", None)  # nor is this used
    pair = odd_pairs()[3]
    expected = plain(pair)
    monkeypatch.undo()
    np.testing.assert_allclose(whole(pair).logits, expected.logits, atol=0.05)  # half precision, padded otherwise
    monkeypatch.setenv("ANANET_ATTENTION", "fused")
    monkeypatch.setenv("ANANET_CALLS", "fast")
    with pytest.raises(InputError, match="ANANET_CALLS: expected 'graph' or 'plain', got 'fast'"):
        LearnedPruner(network, "cpu")


def test_inference_mode_leaves_nothing_behind():
    _, whole = pruners()
    m = make_problem(20, 10).matches.to("cpu")
    with torch.inference_mode():
        first = whole(m.points0.clone(), m.points1.clone(), K0=m.K0, K1=m.K1)
    second = whole(m.points0, m.points1, K0=m.K0, K1=m.K1)
    assert torch.equal(first.logits, second.logits) and not second.logits.is_inference()


def test_few_groups_are_on_their_way_at_once(monkeypatch):
    _, whole = pruners()
    pairs = odd_pairs()
    expected = whole.batch(pairs)
    monkeypatch.setattr(calls, "MATCHES_AT_ONCE", 128)
    monkeypatch.setattr(calls, "GROUPS_UNDER_WAY", 2)
    _, few = pruners()
    asked = few._start(pairs)
    for found in (asked(), asked()):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
    assert sum(map(len, few.calls._slots.values())) == 2


def test_a_pruner_that_has_run_can_be_sent_away(monkeypatch):
    monkeypatch.setenv("ANANET_ATTENTION", "fused")
    whole = LearnedPruner(trained(**SETTINGS), "cpu")
    pair = odd_pairs()[1]
    expected = whole(pair).logits
    other = pickle.loads(pickle.dumps(whole))
    assert other.calls is not None and other.calls is not whole.calls
    np.testing.assert_array_equal(other(pair).logits, expected)


def test_threads_share_a_pruner():
    _, whole = pruners()
    pairs = [pair[:40] for pair in odd_pairs()]
    expected = [whole(pair).logits for pair in pairs]
    with ThreadPoolExecutor(4) as threads:
        for found, other in zip(threads.map(whole, pairs * 3), expected * 3, strict=True):
            np.testing.assert_array_equal(found.logits, other)


def test_cameras_of_no_matches_are_checked():
    _, whole = pruners()
    nothing = torch.zeros(0, 2)
    pair = Correspondences._unchecked(nothing, nothing, K0=torch.from_numpy(-K), K1=torch.from_numpy(K))
    with pytest.raises(InputError, match="K0: expected positive focal lengths"):
        whole(pair)
