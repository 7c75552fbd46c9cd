"""What holds for every pruner: one call, one answer, defined behaviour at the edges."""

import inspect

import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.pruners import CLASSICAL, describe_pruners
from ananet.pruners.registry import look_up
from tests.conftest import make_problem
from tests.pruners.answers import check_answer

NAMES = sorted(ananet.list_pruners())


@pytest.fixture(params=[*NAMES, "plain", "side"])
def pruner(request, weights):
    learned = request.param in ("plain", "side")
    return ananet.load(weights / f"{request.param}.safetensors" if learned else request.param)


def test_one_call_one_answer(pruner, problem):
    kept = pruner(problem.matches)
    check_answer(kept, len(problem.matches), pruner.decision)
    m = problem.matches
    again = pruner(
        m.points0,
        m.points1,
        K0=m.K0,
        K1=m.K1,
        image_size0=m.image_size0,
        image_size1=m.image_size1,
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
    kept = pruner(same, same, image_size0=(640, 480), image_size1=(640, 480), ratio=np.ones(n), mutual=np.ones(n))
    check_answer(kept, n, pruner.decision)


def test_points_on_a_line(pruner):
    line = np.c_[np.arange(40.0), np.arange(40.0)]
    kept = pruner(line, line + 3, image_size0=(640, 480), image_size1=(640, 480), ratio=np.ones(40), mutual=np.ones(40))
    check_answer(kept, 40, pruner.decision)


def test_torch_in_torch_out(pruner, problem):
    m = problem.matches.to("cpu")
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


def test_loading():
    assert ananet.load().name in ananet.list_pruners()
    assert ananet.load("none").name == "all"
    for wrong, message in [
        (("nonsense",), "pruner: expected one of .*, got 'nonsense'"),
        (("missing.safetensors",), "no file missing.safetensors"),
        (("a" * 300,), "pruner: expected one of .*, got 'aaa"),
        (("a\0b",), "pruner: expected one of"),
        (("",), "pruner: expected one of .*, got ''"),
        (("+",), r"pruner: expected one of .*, got '\+'"),
        (("magsac++",), r"pruner: expected one of .*, got 'magsac\+\+'"),
        (
            ("ratio@treshold=1",),
            "unknown option treshold of pruner 'ratio': it has threshold; did you mean 'threshold'",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            ananet.load(*wrong)
    for long in (
        "a" * 5000,
        "ratio@" + "a" * 5000,
        "ratio@threshold=" + "a" * 5000,
        f"ratio@{'a' * 5000}=1",
        "=" * 5000,
    ):
        with pytest.raises(InputError) as refused:
            ananet.load(long)
        assert len(str(refused.value)) < 500
    with pytest.raises(InputError, match="unknown option colour of pruner 'gms': it has "):
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
        ("ratio@threshold", "pruner: expected an option as name=value after '@', got 'threshold'"),
        ("ratio@threshold=high", "threshold: expected a number, got 'high'"),
        ("all@conflict_odds=1", "unknown option conflict_odds of pruner 'all': it has none"),
        ("ratio@colour=1", "unknown option colour of pruner 'ratio': it has threshold"),
        ("nonsense@threshold=1", "expected one of .*, got 'nonsense'"),
    ]:
        with pytest.raises(InputError, match=message):
            ananet.load(wrong)


def test_every_pruner_says_what_it_does():
    for name, summary in ananet.list_pruners().items():
        assert summary.endswith("."), name
        assert inspect.getdoc(type(ananet.load(name)))


def test_pruners_are_described_with_their_options():
    described = describe_pruners()
    assert {name: found.summary for name, found in described.items()} == ananet.list_pruners()
    assert set(CLASSICAL.names) < set(described)
    assert described["ratio"].options["threshold"].default == 0.8
    assert str(described["lpm"].options["neighbours"]) == "a list of whole numbers, 4/6/8 unless given"
    assert set(described["ananet"].options) == {"threshold", "conflict_odds", "seeds", "label", "side_input"}
    assert described["all"].options == {}


def test_names_are_looked_up_without_loading(weights):
    path = weights / "plain.safetensors"
    first, second = look_up(f"none+{path}@conflict_odds=2")
    assert first == ("all", None, {})
    assert (second.plain, second.file, second.options) == ("plain", path, {"conflict_odds": 2.0})
    assert second.name == "plain@conflict_odds=2.0"
    assert second.all_options == {
        "threshold": 0.4,
        "conflict_odds": 2.0,
        "seeds": None,
        "label": None,
        "side_input": True,
    }
    (bundled,) = look_up("ananet")
    assert bundled.plain == "ananet" and bundled.file.name == "ananet.safetensors"
    (lpm,) = look_up("lpm@neighbours=4")
    assert lpm.options == {"neighbours": (4,)} and lpm.all_options["agreement"] == 0.2


def test_a_path_may_hold_any_sign(weights, tmp_path):
    odd = tmp_path / "a+b@c=d.safetensors"
    odd.write_bytes((weights / "plain.safetensors").read_bytes())
    assert ananet.load(odd).name == "a+b@c=d"


def test_a_pruner_moves_and_answers_as_before(pruner, problem):
    before = pruner(problem.matches)
    assert pruner.to("cpu") is pruner
    np.testing.assert_array_equal(pruner(problem.matches).logits, before.logits)
    assert ananet.load is ananet.load_pruner
