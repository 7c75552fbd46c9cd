"""Every weight file that ships: undamaged, described, and answering as it did when it was bundled."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ananet
from ananet import Correspondences, InputError
from ananet.networks import load_network
from ananet.weights import bundled, bundled_path
from ananet.weights.index import FOLDER
from tests.conftest import make_problem

BUNDLED = sorted(bundled())
# What users are told to use; the paper's rivals are there to compare with.
OWN = [name for name in BUNDLED if name.startswith("ananet")]


def test_index_and_files_agree():
    files = {p.name.removesuffix(".safetensors") for p in FOLDER.glob("*.safetensors") if ".golden" not in p.name}
    assert files == set(BUNDLED)


@pytest.mark.parametrize("name", BUNDLED)
def test_golden_answers(name):
    golden = load_file(FOLDER / f"{name}.golden.safetensors")
    network, _ = load_network(bundled_path(name))
    with torch.no_grad():
        logits = network.double()(golden["matches"].double()).float()
    torch.testing.assert_close(logits, golden["logits"], atol=2e-3, rtol=2e-3)
    assert golden["logits"].std() > 0.5, "a trained network tells matches apart"


@pytest.mark.parametrize("name", BUNDLED)
def test_cards_say_what_a_user_must_know(name):
    _, card = load_network(bundled_path(name))
    assert {"name", "summary", "data", "licences", "limits", "validation", "steps", "settings"} <= set(card)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights_load_by_name_and_prune(name, problem):
    kept = ananet.load(name, device="cpu")(problem.matches)
    assert problem.inlier[kept.mask].mean() > (0.9 if name in OWN else 0.7)
    assert kept.mask[problem.inlier].mean() > 0.5


def problem_of(inliers: int, wrong: float, seed: int):
    """A scene with so many right matches and a share of wrong ones, and nothing known but points and image sizes."""
    problem = make_problem(inliers, round(inliers * wrong / (1 - wrong)), noise=0.5, seed=seed)
    m = problem.matches
    return Correspondences(m.points0, m.points1, image_size0=m.image_size0, image_size1=m.image_size1), problem.inlier


# Real input: careful matchers give few matches, most of them right.
@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("inliers", [20, 60, 150, 400])
@pytest.mark.parametrize("name", OWN)
def test_few_and_clean_matches_are_kept(name, inliers, wrong):
    pruner = ananet.load(name, device="cpu")
    recalls, precisions = [], []
    for seed in range(5):
        matches, inlier = problem_of(inliers, wrong, seed)
        mask = np.asarray(pruner(matches).mask)
        recalls.append(mask[inlier].mean())
        precisions.append(inlier[mask].mean() if mask.any() else 0.0)
    # The small network keeps one more of nine wrong matches beside twenty right ones.
    assert np.mean(recalls) > 0.97 and np.mean(precisions) > (0.85 if name == "ananet-small" else 0.88)


def test_damaged_weights_are_refused(tmp_path, monkeypatch):
    (tmp_path / "x.safetensors").write_bytes(b"damaged")
    (tmp_path / "index.json").write_text(json.dumps({"x": {"summary": "", "sha256": "0" * 64}}))
    monkeypatch.setattr("ananet.weights.index.FOLDER", tmp_path)
    monkeypatch.setattr("ananet.weights.index.INDEX", tmp_path / "index.json")
    with pytest.raises(InputError, match="is damaged"):
        ananet.load("x")


def test_default_is_listed():
    assert ananet.load(device="cpu").name in ananet.list_pruners()
    assert np.array_equal(sorted(ananet.list_pruners()), sorted(set(ananet.list_pruners())))
