import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.networks import ANANet, ANANetSettings, load_network, save_network
from ananet.pruners import LearnedPruner, learned
from ananet.weights import bundled_path
from tests.conftest import make_problem
from tests.pruners.answers import check_answer


def test_learned_pruner_without_side_input_still_answers(weights, problem):
    m = problem.matches
    pruner = ananet.load(weights / "side.safetensors")
    bare = pruner(m.points0, m.points1, K0=m.K0, K1=m.K1)
    check_answer(bare, len(m), pruner.decision)
    assert not np.array_equal(bare.logits, pruner(m).logits)


def test_learned_pruner_needs_cameras_or_sizes(weights):
    with pytest.raises(InputError, match="camera matrices .* or image sizes"):
        ananet.load(weights / "plain.safetensors")(np.zeros((3, 2)), np.zeros((3, 2)))


def test_an_option_that_weights_do_not_have(weights):
    with pytest.raises(InputError, match="unknown option colour of pruner .*: it has threshold, conflict_odds"):
        ananet.load(weights / "plain.safetensors", colour=1)


def test_a_probability_decides(weights, problem):
    scores = ananet.load(weights / "plain.safetensors")(problem.matches).scores
    for threshold in (0.01, np.median(scores), 0.99):
        kept = ananet.load(weights / "plain.safetensors", threshold=threshold)(problem.matches)
        np.testing.assert_array_equal(kept.scores, scores)
        np.testing.assert_array_equal(kept.mask, scores > np.float32(threshold))
    for wrong in (0, 1, -0.5):
        with pytest.raises(InputError, match="threshold: expected a probability above 0 and below 1"):
            ananet.load(weights / "plain.safetensors", threshold=wrong)
    for wrong in (math.nan, "a", None, True):
        with pytest.raises(InputError, match="threshold: expected a number, got"):
            ananet.load(weights / "plain.safetensors", threshold=wrong)


@pytest.mark.parametrize(("name", "probability"), [("cne", 0.5), ("lmcnet", 0.95)])
def test_the_authors_decide_by_what_the_network_said_before_calibration(name, probability, problem, tmp_path):
    network, card = load_network(bundled_path(name))
    path = tmp_path / "calibrated.safetensors"
    before = LearnedPruner(network, "cpu", probability, 1)(problem.matches)
    network.rescale_logits(0.5, -1.25)
    save_network(path, network, card | {"calibration": {"line": [0.5, -1.25]}})
    kept = ananet.load(f"{path}@threshold=authors@conflict_odds=1", device="cpu")(problem.matches)
    np.testing.assert_array_equal(kept.mask, before.mask)
    assert kept.mask.any() and not np.array_equal(kept.mask, kept.scores > 0.5)
    for broken in ({}, {"line": 3}, {"line": ["a", "b"]}):
        save_network(path, network, {"calibration": broken})
        with pytest.raises(InputError, match="threshold: expected a number, as these weights do not record"):
            ananet.load(path, threshold="authors")


def test_coordinates_beyond_reason_are_undecided(weights):
    huge = np.full((5, 2), 1e38)
    kept = ananet.load(weights / "plain.safetensors")(huge, huge, image_size0=(640, 480), image_size1=(640, 480))
    assert np.isfinite(kept.logits).all()


def test_the_first_call_does_not_wait_for_the_compiler(tmp_path):
    code = (
        "import sys, numpy as np, ananet\n"
        "points = np.random.default_rng(0).random((20, 2)) * 100\n"
        "ananet.load('ananet', device='cpu')(points, points, image_size0=(100, 100), image_size1=(100, 100))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_network_in_memory_prunes_as_its_file_does(weights, problem):
    network, card = load_network(weights / "side.safetensors")
    pruner = LearnedPruner(network, "cpu", 0.3, 5.0, name="mine", card=card)
    stored = LearnedPruner.from_file(weights / "side.safetensors", "cpu", 0.3, 5.0)
    np.testing.assert_array_equal(pruner(problem.matches).logits, stored(problem.matches).logits)
    assert (pruner.name, stored.name) == ("mine", "side")
    assert LearnedPruner(network).name == "ananet" and LearnedPruner(network).card == {}
    assert pruner.decision == pytest.approx(math.log(0.3 / 0.7))
    for wrong, message in (
        ({"threshold": "high"}, "threshold: expected a probability above 0 and below 1, got 'high'"),
        ({"conflict_odds": "many"}, "conflict_odds: expected a number of at least 1, got 'many'"),
        ({"device": "toaster"}, "device: expected"),
    ):
        with pytest.raises(InputError, match=message):
            LearnedPruner(network, **wrong)


def test_seeds_are_an_option_of_any_weights(weights, problem):
    path = weights / "plain.safetensors"
    whole, few = ananet.load(path)(problem.matches), ananet.load(f"{path}@seeds=8")(problem.matches)
    check_answer(few, len(problem.matches), 0.0)
    assert few.pruner == "plain@seeds=8" and not np.array_equal(few.logits, whole.logits)
    for many in (0, len(problem.matches)):
        kept = ananet.load(path, seeds=many)(problem.matches)
        np.testing.assert_allclose(kept.logits, whole.logits, atol=1e-4)
    again = LearnedPruner(ananet.load(path, seeds=8).network, seeds=0)
    np.testing.assert_array_equal(again(problem.matches).logits, whole.logits)
    with pytest.raises(InputError, match="seeds: expected a network that attends to matches, such as ananet, got cne"):
        ananet.load("cne", seeds=8)
    for wrong in (-1, 2.5, "many"):
        with pytest.raises(InputError, match="seeds: expected"):
            ananet.load(path, seeds=wrong)


def test_a_label_is_chosen(weights, problem, tmp_path):
    network = ANANet(ANANetSettings(blocks=1, width=16, heads=2, right=True)).eval()
    network.rescale_logits(1.0, 3.0, "right")
    save_network(tmp_path / "both.safetensors", network)
    right, line = (ananet.load(f"{tmp_path}/both.safetensors@label={name}") for name in ("right", "line"))
    by_right, by_line = right(problem.matches), line(problem.matches)
    assert (by_right.scores > by_line.scores).all()
    default = ananet.load(tmp_path / "both.safetensors")(problem.matches)
    np.testing.assert_array_equal(default.logits, by_right.logits)
    with pytest.raises(InputError, match="label: expected line of these weights, got 'right'"):
        ananet.load(weights / "plain.safetensors", label="right")


def test_a_file_may_get_a_name_of_ones_own(weights, problem):
    path = weights / "plain.safetensors"
    mine = ananet.load(f"mine={path}")
    assert mine.name == "mine"
    np.testing.assert_array_equal(mine(problem.matches).logits, ananet.load(path)(problem.matches).logits)
    assert ananet.load(f"mine={path}@threshold=0.3").name == "mine@threshold=0.3"
    assert ananet.load(f"mutual+mine={path}").name == "mutual+mine"
    for wrong in (f"={path}", "mine=ratio"):
        with pytest.raises(InputError, match="pruner: expected a name of your own and a weight file, as name=path"):
            ananet.load(wrong)
    with pytest.raises(InputError, match="no file nowhere.safetensors"):
        ananet.load("mine=nowhere.safetensors")


@pytest.mark.parametrize("name", ["plain", "side"])
def test_large_batches_are_cut(name, weights, monkeypatch):
    pairs = [make_problem(n, n // 2, seed=n).matches for n in (40, 3, 90, 20)]
    pruner = ananet.load(weights / f"{name}.safetensors")
    whole = pruner.batch(pairs)
    monkeypatch.setattr(learned, "MATCHES_AT_ONCE", 100)
    for one, other in zip(whole, pruner.batch(pairs), strict=True):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4, rtol=1e-4)


def test_groups_of_similar_size():
    groups = list(learned.groups_of_similar_size([0, 7, 300, 280, 5, 0, 6], limit=700))
    assert groups == [[2, 3], [1, 6, 4]]
    assert list(learned.groups_of_similar_size([], 10)) == []
    assert list(learned.groups_of_similar_size([50, 50], 10)) == [[0], [1]], "a pair above the limit goes alone"
    assert list(learned.groups_of_similar_size([60, 55, 40, 38], 1000, most=50)) == [[0], [1], [2, 3]]


def test_half_precision_points_are_answered_in_single(weights, problem):
    m = problem.matches
    half = (torch.from_numpy(points).half() for points in (m.points0, m.points1))
    kept = ananet.load(weights / "plain.safetensors")(*half, K0=m.K0, K1=m.K1)
    assert kept.logits.dtype == torch.float32 and kept.logits.isfinite().all()


@pytest.mark.parametrize("name", ["plain", "side"])
def test_matches_out_of_view_are_wrong_and_spoil_nothing(name, weights, problem):
    m, pruner = problem.matches, ananet.load(weights / f"{name}.safetensors")
    points0 = m.points0.copy()
    points0[::50] = 65535
    spoiled, rest = m.replace(points0=points0), np.arange(len(m)) % 50 != 0
    kept = pruner(spoiled)
    check_answer(kept, len(m), pruner.decision)
    assert not kept.mask[~rest].any()
    np.testing.assert_allclose(kept.logits[rest], pruner(m[rest]).logits, atol=1e-4, rtol=1e-4)
    nothing = spoiled[~rest]
    for found, pair in zip(pruner.batch([nothing, m, nothing[:1]]), (nothing, m, nothing[:1]), strict=True):
        np.testing.assert_allclose(found.logits, pruner(pair).logits, atol=1e-4, rtol=1e-4)
    lenient = ananet.load(weights / f"{name}.safetensors", threshold=1e-9)
    assert lenient(spoiled).mask.tolist() == rest.tolist()


@pytest.mark.parametrize("name", ["ananet-small", "ananet", "ratio+ananet-small"])
def test_a_stream_says_what_a_batch_says(name, monkeypatch):
    pairs = [make_problem(n, n // 2, seed=n).matches for n in (40, 3, 90, 20, 1)]
    pairs += [pairs[0][:0], pairs[2].replace(ratio=None, mutual=None)] if name != "ratio+ananet-small" else []
    pruner = ananet.load(name, device="cpu")
    monkeypatch.setattr(learned, "STREAMED_ON_CPU", 100)
    for one, other in zip(pruner.stream(iter(pairs)), pruner.batch(pairs), strict=True):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4, rtol=1e-4)
        assert one.pruner == other.pruner
