"""What holds for every pruner: one call, one answer, defined behaviour at the edges."""

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import ananet
from ananet import Correspondences, InputError
from ananet.networks import ANANet, ANANetSettings, save_network
from ananet.pruners.base import Pruned
from tests.conftest import make_problem

CLASSICAL = sorted(ananet.list_pruners())


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Files with untrained networks, one without and one with side input."""
    folder = tmp_path_factory.mktemp("weights")
    for name, channels in (("plain", 0), ("side", 2)):
        torch.manual_seed(0)
        network = ANANet(ANANetSettings(side_channels=channels, blocks=2))
        if network.side_encoder is not None:
            torch.nn.init.normal_(network.side_encoder.linears[-1].weight)
        save_network(folder / f"{name}.safetensors", network)
    return folder


@pytest.fixture(params=[*CLASSICAL, "plain", "side"])
def pruner(request, weights):
    learned = request.param in ("plain", "side")
    return ananet.load(weights / f"{request.param}.safetensors" if learned else request.param)


def check_answer(kept: Pruned, n: int, decision: float = 0.0) -> None:
    assert kept.mask.shape == kept.scores.shape == kept.logits.shape == (n,)
    assert kept.mask.dtype == bool
    assert kept.scores.dtype == kept.logits.dtype == np.float32
    assert np.isfinite(kept.logits).all()
    assert ((kept.scores >= 0) & (kept.scores < 1)).all()
    np.testing.assert_array_equal(kept.mask, kept.logits > np.float32(decision))


def test_one_call_one_answer(pruner, problem):
    kept = pruner(problem.matches)
    check_answer(kept, len(problem.matches), pruner.decision)
    m = problem.matches
    again = pruner(
        m.points0.numpy(),
        m.points1.numpy(),
        K0=m.K0,
        K1=m.K1,
        size0=m.size0,
        size1=m.size1,
        ratio=m.ratio,
        mutual=m.mutual,
    )
    np.testing.assert_array_equal(again.mask, kept.mask)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_few_matches(pruner, n):
    check_answer(pruner(make_problem().matches[:n]), n, pruner.decision)


@pytest.mark.parametrize("n", [1, 7, 50])
def test_identical_points(pruner, n):
    same = np.full((n, 2), 100.0)
    kept = pruner(same, same, size0=(640, 480), size1=(640, 480), ratio=np.ones(n), mutual=np.ones(n))
    check_answer(kept, n, pruner.decision)


def test_points_on_a_line(pruner):
    line = np.c_[np.arange(40.0), np.arange(40.0)]
    kept = pruner(line, line + 3, size0=(640, 480), size1=(640, 480), ratio=np.ones(40), mutual=np.ones(40))
    check_answer(kept, 40, pruner.decision)


def test_torch_in_torch_out(pruner, problem):
    m = problem.matches
    kept = pruner(m.points0, m.points1, K0=m.K0, K1=m.K1, ratio=m.ratio, mutual=m.mutual)
    assert isinstance(kept.mask, torch.Tensor) and kept.mask.dtype == torch.bool
    assert kept.scores.dtype == torch.float32


def test_batch_equals_single_calls(pruner):
    pairs = [make_problem(n, n // 2, seed=n).matches for n in (40, 3, 0, 90)]
    pairs[2] = pairs[2][:0]
    for single, together in zip((pruner(pair) for pair in pairs), pruner.batch(pairs), strict=True):
        np.testing.assert_allclose(together.logits, single.logits, atol=1e-4, rtol=1e-4)
    assert pruner.batch([]) == []


def test_answers_repeat(pruner, problem):
    np.testing.assert_array_equal(pruner(problem.matches).logits, pruner(problem.matches).logits)


@pytest.mark.parametrize("name", ["ratio", "gms", "lpm", "ransac", "magsac"])
def test_classical_pruners_prune(name):
    dense = make_problem(inliers=2500, outliers=1500)
    kept = ananet.load(name)(dense.matches).mask
    precision = dense.inlier[kept].mean()
    recall = kept[dense.inlier].mean()
    assert precision > 0.9, precision
    assert recall > 0.7, recall


@pytest.mark.parametrize("name", ["ransac", "magsac"])
def test_robust_pruners_without_calibration(name, problem):
    m = problem.matches
    kept = ananet.load(name, threshold=2.0)(m.points0.numpy(), m.points1.numpy()).mask
    assert problem.inlier[kept].mean() > 0.9
    assert kept[problem.inlier].mean() > 0.9


def test_lpm_agrees_with_a_literal_evaluation():
    problem = make_problem(inliers=60, outliers=40)
    lpm = ananet.load("lpm", neighbours=(4,))
    p0, p1 = problem.matches.numpy_points()
    motion = p1 - p0

    def costs(candidates):
        result = np.zeros(len(p0))
        for i in range(len(p0)):
            others = [j for j in candidates if j != i]
            near0 = sorted(others, key=lambda j: np.linalg.norm(p0[j] - p0[i]))[:4]
            near1 = sorted(others, key=lambda j: np.linalg.norm(p1[j] - p1[i]))[:4]
            good = 0
            for j in set(near0) & set(near1):
                a, b = np.linalg.norm(motion[i]), np.linalg.norm(motion[j])
                good += min(a, b) / max(a, b) * (motion[i] @ motion[j]) / (a * b) >= 0.2
            result[i] = 1 - good / 4
        return result

    likely = np.flatnonzero(costs(range(len(p0))) < 0.8)
    expected = costs(likely) < 0.5
    np.testing.assert_array_equal(lpm(problem.matches).mask, expected)


def test_lpm_is_fast_enough():
    import time

    many = make_problem(inliers=2500, outliers=2500).matches
    lpm = ananet.load("lpm")
    start = time.perf_counter()
    lpm(many)
    assert time.perf_counter() - start < 3


def test_gms_keeps_company_through_rotation_and_scale():
    rng = np.random.default_rng(0)
    points = rng.uniform(200, 600, (1500, 2))
    turned = (points - 400) @ np.array([[0, 1], [-1, 0]]) * 0.5 + 400
    wrong = rng.uniform(0, 800, (500, 2))
    p0, p1 = np.r_[points, rng.uniform(0, 800, (500, 2))], np.r_[turned, wrong]
    size = {"size0": (800, 800), "size1": (800, 800)}
    kept = ananet.load("gms")(p0, p1, **size).mask
    assert kept[:1500].mean() > 0.8
    assert kept[1500:].mean() < 0.1
    assert ananet.load("gms", rotation=False, scale=False)(p0, p1, **size).mask.sum() < 0.2 * kept.sum()


def test_gms_agrees_with_a_literal_evaluation():
    """One grid, no rotation, no scale: votes and neighbours counted cell by cell."""
    from ananet.pruners import gms

    matches = make_problem(inliers=900, outliers=300).matches
    p0, p1 = (p / np.array([640, 480]) * 20 for p in matches.numpy_points())
    expected = np.zeros(len(p0), bool)
    for sx, sy in gms.SHIFTS:
        a = [(int(np.floor(x + sx)), int(np.floor(y + sy))) for x, y in p0]
        b = [(int(np.floor(x)), int(np.floor(y))) for x, y in p1]
        a, b = ([c if 0 <= c[0] < 20 and 0 <= c[1] < 20 else None for c in cells] for cells in (a, b))
        votes: dict = {}
        for ca, cb in zip(a, b, strict=True):
            if ca and cb:
                votes.setdefault(ca, {}).setdefault(cb, 0)
                votes[ca][cb] += 1
        winner = {ca: max(sorted(v, key=lambda c: (c[1], c[0])), key=v.get) for ca, v in votes.items()}
        for i, (ca, cb) in enumerate(zip(a, b, strict=True)):
            if not ca or not cb or winner[ca] != cb:
                continue
            support = crowd = cells = 0
            for dx in (-1, 0, 1):
                for dy in (-1, 0, 1):
                    na, nb = (ca[0] + dx, ca[1] + dy), (cb[0] + dx, cb[1] + dy)
                    if all(0 <= v < 20 for v in (*na, *nb)):
                        support += votes.get(na, {}).get(nb, 0)
                        crowd += sum(votes.get(na, {}).values())
                        cells += 1
            expected[i] |= support >= 6 * np.sqrt(crowd / cells)
    np.testing.assert_array_equal(ananet.load("gms", rotation=False, scale=False)(matches).mask, expected)


def test_ratio_test():
    points = np.zeros((4, 2))
    ratio = [0.79, 0.81, 0.5, 0.0]
    assert ananet.load("ratio")(points, points, ratio=ratio).mask.tolist() == [True, False, True, True]
    kept = ananet.load("ratio")(points, points, ratio=ratio, mutual=[1, 1, 0, 1])
    assert kept.mask.tolist() == [True, False, False, True]
    assert kept.indices.tolist() == [3, 0]


def test_missing_side_input_is_named():
    points = np.zeros((4, 2))
    with pytest.raises(InputError, match="needs the ratio of every match"):
        ananet.load("ratio")(points, points)
    with pytest.raises(InputError, match="needs the mutual flag"):
        ananet.load("mutual")(points, points)


def test_learned_pruner_without_side_input_still_answers(weights, problem):
    m = problem.matches
    pruner = ananet.load(weights / "side.safetensors")
    bare = pruner(m.points0.numpy(), m.points1.numpy(), K0=m.K0, K1=m.K1)
    check_answer(bare, len(m), pruner.decision)
    assert not np.array_equal(bare.logits, pruner(m).logits)


def test_learned_pruner_needs_cameras_or_sizes(weights):
    with pytest.raises(InputError, match="camera matrices .* or image sizes"):
        ananet.load(weights / "plain.safetensors")(np.zeros((3, 2)), np.zeros((3, 2)))


def test_loading():
    assert ananet.load().name in ananet.list_pruners()
    assert ananet.load("none").name == "all"
    for wrong, message in [
        (("nonsense",), "pruner: expected one of .*, got 'nonsense'"),
        (("missing.safetensors",), "no file missing.safetensors"),
    ]:
        with pytest.raises(InputError, match=message):
            ananet.load(*wrong)
    with pytest.raises(InputError, match="options of the pruner 'gms@colour=green': expected .*, got colour"):
        ananet.load("gms", colour="green")
    with pytest.raises(InputError, match="threshold: expected a ratio between 0 and 1, got 2"):
        ananet.load("ratio", threshold=2)
    for absent in ("toaster", "meta", None, *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(InputError, match="device: expected"):
            ananet.load("ratio", device=absent)


def test_options_come_with_the_name(problem, weights):
    m = problem.matches
    strict = ananet.load("ratio@threshold=0.5")
    assert strict.name == ananet.load("ratio", threshold=0.5).name == "ratio@threshold=0.5"
    assert np.array_equal(strict(m).mask, ananet.load("ratio", threshold=0.5)(m).mask)
    chain = ananet.load(f"mutual+{weights / 'plain.safetensors'}@conflict_odds=inf")
    assert chain.name == "mutual+plain@conflict_odds=inf"
    for wrong, message in [
        ("ratio@threshold", "expected an option as name=number after '@', got 'threshold'"),
        ("ratio@threshold=high", "got 'threshold=high'"),
        ("all@conflict_odds=1", "expected none, got conflict_odds"),
        ("ratio@colour=1", "options of the pruner 'ratio@colour=1': expected some of threshold, got colour"),
        ("nonsense@threshold=1", "expected one of .*, got 'nonsense'"),
    ]:
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)


def test_an_option_that_weights_do_not_have(weights):
    with pytest.raises(
        InputError, match="options of the pruner .*expected some of threshold, conflict_odds, got colour"
    ):
        ananet.load(weights / "plain.safetensors", colour=1)


def test_a_probability_decides(weights, problem):
    scores = ananet.load(weights / "plain.safetensors")(problem.matches).scores
    for threshold in (0.01, np.median(scores), 0.99):
        kept = ananet.load(weights / "plain.safetensors", threshold=threshold)(problem.matches)
        np.testing.assert_array_equal(kept.scores, scores)
        np.testing.assert_array_equal(kept.mask, scores > np.float32(threshold))
    for wrong in (0, 1, -0.5, math.nan, "a", None, True):
        with pytest.raises(InputError, match="threshold: expected a probability above 0 and below 1"):
            ananet.load(weights / "plain.safetensors", threshold=wrong)


def test_a_chain_keeps_what_its_last_pruner_keeps(weights, problem):
    m = problem.matches
    path = weights / "plain.safetensors"
    alone = ananet.load(path)(m[m.mutual])
    threshold = float(np.quantile(alone.scores, 0.7))
    chained = ananet.load(f"mutual+{path}@threshold={threshold}")(m)
    assert 0 < chained.mask.sum() < alone.mask.size
    tensors = ananet.load(f"mutual+{path}@threshold={threshold}")(
        m.points0, m.points1, K0=m.K0, K1=m.K1, mutual=m.mutual
    )
    for name in ("mask", "scores", "logits"):
        np.testing.assert_array_equal(getattr(tensors, name).numpy(), getattr(chained, name))
    np.testing.assert_array_equal(chained.mask[m.mutual.numpy()], alone.scores > np.float32(threshold))
    assert not chained.mask[~m.mutual.numpy()].any()


def test_wrong_calls(problem):
    pruner = ananet.load("all")
    with pytest.raises(InputError, match="points1: expected an array"):
        pruner(np.zeros((3, 2)))
    with pytest.raises(InputError, match="either Correspondences alone"):
        pruner(problem.matches, K0=np.eye(3))
    assert isinstance(pruner(Correspondences([], [])).mask, np.ndarray)
    with pytest.raises(InputError, match=r"pairs\[1\]: expected Correspondences, got tuple"):
        pruner.batch([problem.matches, (1, 2)])
    for wrong in (problem.matches, 3):
        with pytest.raises(InputError, match="pairs: expected a list of Correspondences"):
            pruner.batch(wrong)


def test_coordinates_beyond_reason_are_undecided(weights):
    huge = np.full((5, 2), 1e38)
    kept = ananet.load(weights / "plain.safetensors")(huge, huge, size0=(640, 480), size1=(640, 480))
    assert np.isfinite(kept.logits).all()


def test_lpm_does_not_depend_on_the_origin(problem):
    p0, p1 = (p.astype(np.float32).round() for p in problem.matches.numpy_points())
    lpm = ananet.load("lpm")
    np.testing.assert_array_equal(lpm(p0, p1).mask, lpm(p0 + 8192, p1 + 8192).mask)


def test_every_pruner_says_what_it_does():
    for name, summary in ananet.list_pruners().items():
        assert summary.endswith("."), name
        assert inspect.getdoc(type(ananet.load(name)))


def test_pruners_one_after_another(problem):
    m = problem.matches
    chain, mutual = ananet.load("mutual+lpm"), ananet.load("mutual")(m).mask
    kept = chain(m)
    check_answer(kept, len(m))
    assert chain.name == "mutual+lpm"
    assert not (kept.mask & ~mutual).any()
    assert np.array_equal(kept.mask[mutual], ananet.load("lpm")(m[mutual]).mask)
    assert not chain(m[~torch.as_tensor(mutual)]).mask.any(), "nothing is left for the second"
    together = chain.batch([m, m[:0], m[mutual]])
    assert np.array_equal(together[0].mask, kept.mask) and len(together[1].mask) == 0
    with pytest.raises(InputError, match="expected one of"):
        ananet.load("mutual+nonsense")
    with pytest.raises(InputError, match="threshold: which of 'mutual\\+ratio'"):
        ananet.load("mutual+ratio", threshold=0.7)


def test_the_first_call_does_not_wait_for_the_compiler(tmp_path):
    code = (
        "import sys, numpy as np, ananet\n"
        "points = np.random.default_rng(0).random((20, 2)) * 100\n"
        "ananet.load('ananet', device='cpu')(points, points, size0=(100, 100), size1=(100, 100))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
