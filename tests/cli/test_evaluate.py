"""What the command adds to an evaluation: several detectors, keypoints of one's own, trained matchers."""

import json

import numpy as np
import pytest
from safetensors.torch import save_file

from ananet.features import load_detector
from ananet.io.images import read_image
from tests.datasets.planes import write_planes
from tests.datasets.scenes import write_scene
from tests.features.learned_detectors import random_detector, random_matcher


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes") / "walls"
    write_scene(folder, images=3, seed=0, pairs=[("000.png", "001.png"), ("002.png", "000.png")])
    return folder


def options(*more):
    return ("--pruner", "mutual", "--estimator", "poselib", "--max-keypoints", 300, "--workers", 1, *more)


def test_several_detectors_in_one_command(scene, tmp_path, run):
    """Also the paper's Table 4, which has a column for each."""
    more = ("--detector", "sift,orb", "--table", 4, "--predictions", tmp_path, "--scores", tmp_path / "scores.json")
    code, out, _ = run("evaluate", scene, *options(*more))
    assert code == 0 and out.splitlines()[1].split() == ["Method", "walls-sift", "walls-orb"]
    sift, orb = json.loads((tmp_path / "scores.json").read_text())
    assert (sift["source"], orb["source"]) == ("walls-sift", "walls-orb")
    assert sift["matches"].startswith("SIFT, 300 keypoints") and orb["matches"].startswith("ORB, 300 keypoints")
    assert {path.name for path in tmp_path.iterdir()} == {"orb", "sift", "scores.json"}


def test_only_some_scenes(scene, run):
    code, out, _ = run("evaluate", scene, *options("--scenes", "walls"))
    assert code == 0 and "of walls" in out
    code, _, err = run("evaluate", scene, *options("--scenes", "walls,floors"))
    assert code != 0 and "scenes: expected some of walls, got floors" in err


def test_keypoints_of_ones_own(scene, tmp_path, run):
    for path in (scene / "images").iterdir():
        found = load_detector("sift", max_keypoints=300).detect(read_image(path))
        np.savez(tmp_path / f"{path.stem}.npz", points=found.points, descriptors=found.descriptors)
    code, out, _ = run("evaluate", scene, *options("--features", tmp_path, "--json"))
    assert code == 0
    (answer,) = json.loads(out)
    assert answer["pairs"] == 2 and answer["pruners"]["mutual"]["precision"] > 0.5


def test_a_trained_matcher(scene, tmp_path, run):
    """With random weights: what counts is that its matches are those that pruners get."""
    random_detector("xfeat", tmp_path)
    save_file(random_matcher("xfeat", layers=1).state_dict(), tmp_path / "matcher.safetensors")
    detector = ("--detector", "xfeat@threshold=0", "--detector-weights", tmp_path / "xfeat.safetensors")
    matcher = ("--matcher", "lighterglue@threshold=0", "--matcher-weights", tmp_path / "matcher.safetensors")
    scores = tmp_path / "scores.json"
    more = ("--pruner", "all", "--device", "cpu", "--scores", scores)
    code, out, _ = run("evaluate", scene, *options(*detector, *matcher, *more))
    assert code == 0 and "matched by lighterglue@threshold=0" in out
    (answer,) = json.loads(scores.read_text())
    assert answer["match_settings"]["matcher"].startswith("lighterglue@threshold=0@weights=")
    assert 0 < max(answer["pruners"]["all"]["pairs"]["kept"]) < 300


def test_models(scene, tmp_path, run):
    code, out, _ = run("evaluate", scene, *options("--model", "fundamental", "--json"))
    assert code == 0 and json.loads(out)[0]["model"] == "fundamental"
    plane = write_planes(tmp_path / "wall")
    code, out, _ = run("evaluate", plane, *options("--by-scene"))
    assert code == 0 and "wall (photos with homographies): 2 pairs of 1 scene" in out and "AUC@3 px" in out
    code, _, err = run("evaluate", plane, *options("--model", "fundamental"))
    assert code == 2 and "model: expected homography for" in err
    code, _, err = run("evaluate", plane, *options("--table", 1))
    assert code == 2 and "--table: 1 needs poses" in err


def test_motions_of_labelled_matches(tmp_path, run):
    random = np.random.default_rng(0)
    points0 = random.uniform(0, 400, (80, 2))
    points1 = np.where(np.arange(80)[:, None] < 45, points0, points0 + np.array([40, 9]))
    arrays = {"points0": points0, "points1": points1, "motion": np.where(np.arange(80) < 45, 1, 2)}
    (tmp_path / "pair").mkdir()
    np.savez(tmp_path / "pair" / "matches.npz", **arrays)
    code, out, _ = run("evaluate", tmp_path, "--pruner", "all", "--motions", "--repeats", 2, "--json")
    assert code == 0
    (answer,) = json.loads(out)
    assert answer["rows"][0]["number right"] == 1 and answer["rows"][0]["error % mean"] < 3
    assert "over seed 0" in run("evaluate", tmp_path, "--pruner", "all", "--motions")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--detector", "sift,sift"], "detectors: expected different ones, got sift, sift"),
        (["--detector", "sift,surf"], "detector: expected one of sift, orb, aliked"),
        (
            ["--detector", "aliked,disk", "--detector-weights", "a.pth"],
            "--detector: expected one with --detector-weights, got several",
        ),
        (
            ["--detector", "aliked,disk", "--matcher", "lightglue", "--matcher-weights", "a.pth"],
            "--detector: expected one with --matcher-weights, got several",
        ),
        (["--matcher", "superglue"], "matcher: expected one of nearest, lightglue, lighterglue, got 'superglue'"),
        (["--matcher", "lightglue"], "matcher 'lightglue': expected keypoints of aliked or disk, got 'sift'"),
    ],
)
def test_wrong_detectors(arguments, message, scene, run):
    code, _, err = run("evaluate", scene, *options(*arguments))
    assert code == 2 and message in err
