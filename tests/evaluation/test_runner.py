"""Evaluations, and the processes that run them."""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.cli.main import main
from ananet.datasets.sources import open_source
from ananet.evaluation import evaluate, runner
from ananet.evaluation.pairs import MatchSettings, open_pairs
from ananet.evaluation.predictions import PredictionStore, fingerprint, read_predictions
from ananet.evaluation.reports import scores_as_json
from ananet.evaluation.runner import AT_ONCE, ONE_THREAD, choose_pruners, map_ahead, worker_pool
from ananet.networks import ANANet, ANANetSettings, save_network
from tests.datasets.planes import write_plane_matches, write_planes

SMALL = ("--max-keypoints", "300", "--device", "cpu")
QUICK = {"max_keypoints": 100, "workers": 1, "progress": False}


def run(capsys, *arguments):
    code = main(["evaluate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_evaluate(world, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    weights = tmp_path / "tiny.safetensors"
    weights.write_bytes(world.weights.read_bytes())
    pruners = f"all,ratio,{weights}"
    keep = ("--predictions", tmp_path / "predictions")
    code, out, err = run(
        capsys, world.folder, "--pruner", pruners, *SMALL, *keep, "--workers", 2, "--neighbours", "--by-scene",
        "--plots", tmp_path / "plots", "--scores", tmp_path / "scores.json",
    )  # fmt: skip
    assert code == 0, err
    assert "scenes (posed scenes): 3 pairs of 1 scene" in out
    assert "Pose: ransac, threshold 1 px / mean focal length, confidence 0.99999, all kept matches; SIFT, 300" in out
    assert sorted(p.stem for p in (tmp_path / "plots").iterdir()) == [
        "auc-poselib", "auc-ransac", "f1-by-inlier-ratio", "neighbours-tiny", "precision-recall", "reliability",
    ]  # fmt: skip
    assert sorted(p.stem for p in (tmp_path / "predictions").iterdir()) == ["all", "ratio", "tiny"]
    (scores,) = json.loads((tmp_path / "scores.json").read_text())
    assert scores["pairs"] == ["room/0.png-1.png", "room/1.png-2.png", "room/2.png-0.png"]
    ratio = scores["pruners"]["ratio"]
    assert ratio["summary"]["f1"] == pytest.approx(np.mean(ratio["pairs"]["f1"]), abs=1e-5)
    assert ratio["summary"]["precision"] > 0.8 and scores["pruners"]["all"]["summary"]["recall"] == 1
    assert len(ratio["poses"]["ransac"]["rotation_error"][0]) == 3
    assert scores["pruners"]["tiny"]["network"]["blocks"] == 2

    # Again from the stored predictions, with another number of workers: the same scores.
    code, out, err = run(
        capsys, world.folder, "--pruner", pruners, *SMALL, *keep, "--workers", 1, "--scores", tmp_path / "again.json"
    )
    assert code == 0, err
    assert "predictions reused: all, ratio, tiny" in out
    assert json.loads((tmp_path / "again.json").read_text()) == [scores]

    # Other weights under the same name, or other keypoints: refused before any work.
    save_network(weights, ANANet(ANANetSettings(blocks=1, width=32, heads=2)))
    code, _, err = run(capsys, world.folder, "--pruner", pruners, *SMALL, *keep)
    assert code == 2 and "tiny.safetensors is stale: its weights (sha256) was" in err
    code, _, err = run(capsys, world.folder, "--pruner", "all", "--max-keypoints", 200, *keep)
    assert code == 2 and "all.safetensors is stale: its match settings was" in err


@pytest.mark.usefixtures("in_this_process")
def test_a_stopped_evaluation_goes_on_where_it_stopped(world, tmp_path, monkeypatch):
    pruners = ["mutual", str(world.weights)]

    def run_once(folder):
        return evaluate(world.folder, pruners, prediction_folder=folder, device="cpu", **QUICK)[0]

    whole = run_once(tmp_path / "whole")
    monkeypatch.setattr(runner, "PAIRS_AT_ONCE", 1)
    real = PredictionStore.add

    def stops_after_two(store, made):
        if store.added == 2:
            raise KeyboardInterrupt
        real(store, made)

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(PredictionStore, "add", stops_after_two)
        run_once(tmp_path / "parts")
    parts = [path.name for path in sorted((tmp_path / "parts" / "tiny.parts").iterdir())]
    assert parts == ["00000000.safetensors", "00000001.safetensors"]

    store = PredictionStore(tmp_path / "parts", {n: p.origin for n, p in whole.predictions.items()}, 3)
    assert [sorted(store.given(n)) for n in range(3)] == [["mutual", "tiny"], ["mutual", "tiny"], []]
    again = run_once(tmp_path / "parts")
    assert again.reused == () and scores_as_json(again) == scores_as_json(whole)
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == ["mutual.safetensors", "tiny.safetensors"]
    for name in ("mutual", "tiny"):
        first, second = (read_predictions(tmp_path / f / f"{name}.safetensors") for f in ("whole", "parts"))
        assert (first.names, first.fingerprints, first.origin) == (second.names, second.fingerprints, second.origin)
        for a, b in zip(first.results, second.results, strict=True):
            assert (a.mask == b.mask).all() and (a.logits == b.logits).all()


def test_a_killed_evaluation_goes_on_with_its_parts(world, tmp_path, capsys):
    arguments = [world.folder, "--pruner", "all,mutual", *SMALL, "--workers", 1, "--json", "--predictions"]
    code = (
        "import sys, time\nfrom ananet.cli.main import main\nfrom ananet.evaluation import runner\n"
        "from ananet.evaluation.predictions import PredictionStore\n"
        "add, runner.PAIRS_AT_ONCE = PredictionStore.add, 1\n"
        "def slow_add(store, made):\n"
        "    if store.added == 1: print('one', flush=True); time.sleep(60)\n"
        "    add(store, made)\n"
        "PredictionStore.add = slow_add\n"
        "main(['evaluate', *sys.argv[1:]])\n"
    )
    command = [sys.executable, "-c", code, *map(str, arguments), str(tmp_path / "parts")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        assert killed.stdout.readline() == b"one\n"
        killed.kill()
    assert [path.name for path in (tmp_path / "parts" / "all.parts").iterdir()] == ["00000000.safetensors"]
    first = read_predictions(tmp_path / "parts" / "mutual.parts" / "00000000.safetensors")
    status, _, error = run(capsys, *arguments, tmp_path / "parts")
    assert status == 0, error
    found = read_predictions(tmp_path / "parts" / "mutual.safetensors")
    assert len(found) == 3 and found.names[0] == first.names[0]
    assert (found.results[0].mask == first.results[0].mask).all()
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["all.safetensors", "mutual.safetensors"]


@pytest.mark.usefixtures("in_this_process")
def test_predictions_of_other_matches_are_refused(world, tmp_path):
    settings = MatchSettings(max_keypoints=100)
    evaluate(world.folder, ["all"], prediction_folder=tmp_path, **QUICK)
    found = read_predictions(tmp_path / "all.safetensors")
    pairs = open_pairs(open_source(world.folder), settings)
    assert found.fingerprints == [fingerprint(pairs[n].matches) for n in range(3)]
    other = world.folder.parent / "moved"
    if not other.exists():
        (other / "room").mkdir(parents=True)
        (other / "room" / "sparse").symlink_to(world.folder / "room" / "sparse")
        (other / "room" / "images").mkdir()
        for number, photo in enumerate(("1.png", "0.png", "2.png")):
            (other / "room" / "images" / f"{number}.png").symlink_to(world.folder / "room" / "images" / photo)
        (other / "room" / "pairs.txt").write_text((world.folder / "room" / "pairs.txt").read_text())
    with pytest.raises(InputError, match="all.safetensors is stale: other matches of room/0.png-1.png"):
        evaluate(other, "all", prediction_folder=tmp_path, **QUICK)


@pytest.mark.usefixtures("in_this_process")
def test_networks_on_another_device_prune_many_pairs_at_once(world, tmp_path, monkeypatch):
    """The road of a GPU, on a CPU: this process prunes, workers read and score."""
    pruners = ["ratio", str(world.weights)]
    (expected,) = evaluate(world.folder, pruners, device="cpu", **QUICK)
    monkeypatch.setattr(runner, "PAIRS_AT_ONCE", 2)
    monkeypatch.setattr(runner, "choose_device", lambda device: torch.device("meta"))
    real = runner.load
    monkeypatch.setattr(runner, "load", lambda given, device: real(given, device="cpu"))
    (found,) = evaluate(world.folder, pruners, prediction_folder=tmp_path, **QUICK)
    assert found.names == expected.names
    for name in ("ratio", "tiny"):
        for a, b in zip(found.predictions[name].results, expected.predictions[name].results, strict=True):
            np.testing.assert_allclose(a.logits, b.logits, atol=1e-4)
    (again,) = evaluate(world.folder, pruners, prediction_folder=tmp_path, **QUICK)
    assert again.reused == ("ratio", "tiny") and scores_as_json(again) == scores_as_json(found)


def test_pruners_are_chosen_by_name_and_file(world):
    keep, chain, tiny = choose_pruners(["none", "mutual+ratio@threshold=0.7", f"mine={world.weights}"])
    assert keep.name == "all" and keep.network is None and not keep.learned and keep.weights_sha256 is None
    assert chain.name == "mutual+ratio@threshold=0.7" and chain.options[1] == {"threshold": 0.7}
    assert tiny.name == "mine" and tiny.learned and len(tiny.weights_sha256) == 64
    assert tiny.network["blocks"] == 2 and tiny.network["name"] == "ananet" and tiny.network["parameters"] > 0
    with pytest.raises(InputError, match="pruner: expected different names, got tiny, tiny"):
        choose_pruners([str(world.weights), str(world.weights)])


def test_an_evaluation_knows_its_matches(evaluation):
    assert (evaluation.source, evaluation.kind, evaluation.scenes) == ("scenes", "posed scenes", ["room"] * 3)
    assert evaluation.inlier_ratios.shape == (3,) and evaluation.estimators == ("ransac", "poselib")
    scores, inlier = evaluation.pooled("second")
    assert len(scores) == len(inlier) == sum(map(len, evaluation.inliers))
    assert ((scores > 0) & (scores < 1)).all()
    written = scores_as_json(evaluation)
    assert written["match_settings"]["max_keypoints"] == 100 and written["pose_settings"]["threshold"] is None
    json.dumps(written, allow_nan=False)


@pytest.mark.usefixtures("in_this_process")
def test_several_estimators_with_options_score_the_same_matches(world):
    pytest.importorskip("poselib")
    names = ("magsac", "poselib@loss=cauchy@loss_scale=0.25")
    options = {**QUICK, "max_keypoints": 300}
    (found,) = evaluate(open_source(world.folder), "mutual", estimators=names, **options)
    assert found.estimators == names
    for name in names:
        assert found.scores["mutual"].pose_summary(name)["auc"][2] > 30


def test_protocols_and_several_sources(world, tmp_path):
    """One evaluation for each, with predictions in subfolders."""
    shutil.copytree(world.folder, tmp_path / "again")
    options = {**QUICK, "estimators": "eight-point", "limit": 1, "prediction_folder": tmp_path / "predictions"}
    sources = [open_source(world.folder), tmp_path / "again"]
    found = evaluate(sources, "mutual", protocol="yfcc", longest_side=300, **options)
    assert [each.source for each in found] == ["scenes", "again"]
    assert {path.name for path in (tmp_path / "predictions").glob("*/mutual.safetensors")} == {"mutual.safetensors"}
    assert all(each.match_settings.longest_side == 300 and each.pose_settings.threshold == 1 for each in found)
    # The paper's keypoints, unless others are named.
    assert {(each.match_settings.detector, each.match_settings.max_keypoints) for each in found} == {
        ("sift@root=false", 100)
    }
    orb, plain = (
        evaluate(world.folder, "mutual", **{**QUICK, "limit": 1, "max_keypoints": None}, **more)[0].match_settings
        for more in ({"protocol": "sun3d", "detectors": "orb"}, {})
    )
    assert (orb.detector, orb.max_keypoints, plain.detector, plain.max_keypoints) == ("orb", 2000, "sift", None)
    with pytest.raises(InputError, match="protocol: expected one of plain, yfcc, sun3d, got 'megadepth'"):
        evaluate(world.folder, protocol="megadepth")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nothing", "--pruner", "all"], "source: no such file or folder: nothing"),
        (["scenes", "--pruner", "wrong"], "pruner: expected one of "),
        (["scenes", "--pruner", "all,all"], "pruner: expected different names"),
        (
            ["scenes", "--pruner", "all", "--estimator", "lmeds"],
            "estimator: expected one of poselib, ransac, magsac",
        ),
        (["scenes", "--pruner", "all", "--pose-threshold", "-1"], "threshold: expected a positive number"),
        (["scenes", "--pruner", "ratio@threshold=-5"], "threshold: expected a ratio between 0 and 1, got -5"),
        (["scenes", "--pruner", "all", "--outlier-share", "1"], "outlier_share: expected a number from 0 to below 1"),
        (["scenes", "--pruner", "all", "--confidence", "1"], "confidence: expected a probability above 0 and below 1"),
        (["scenes", "--pruner", "all", "--workers", "0"], "workers: expected a whole number of at least 1"),
        (["scenes", "--pruner", "all", "--detector", "surf"], "detector: expected one of sift, orb, aliked"),
        (["scenes", "scenes", "--pruner", "all"], "sources: expected different names, got scenes, scenes"),
        (["scenes", "--pruner", "all", "--scores", "no/folder.json"], "--scores: the folder no does not exist"),
    ],
)
def test_wrong_arguments(world, capsys, monkeypatch, arguments, word):
    monkeypatch.chdir(world.folder.parent)
    code, out, err = run(capsys, *arguments)
    assert code == 2 and word in err and not out
    assert err.count("\n") == 1


def test_an_error_in_a_worker_is_told_in_one_line(world, capsys, tmp_path):
    pytest.importorskip("h5py")
    images = world.folder / "room" / "images"
    K, pose = "300 0 159.5 0 300 119.5 0 0 1", "1 0 0 0.5 0 1 0 0 0 0 1 0 0 0 0 1"
    (tmp_path / "pairs.txt").write_text(f"0.png gone.png {K} {K} {pose}\n")
    code, _, err = run(capsys, tmp_path / "pairs.txt", "--images", images, "--pruner", "all", "--workers", 1)
    assert code == 2 and "gone.png: no such file" in err


@pytest.mark.skipif("ANANET_TEST_DATA" not in os.environ, reason="needs photos: set ANANET_TEST_DATA")
def test_reference_numbers(capsys):
    """An independent scorer's numbers for the validation scenes, and MULTI's first part."""
    data = Path(os.environ["ANANET_TEST_DATA"])
    (multi,) = evaluate(data / "multi" / "part-a", ["all", "gms"], progress=False)
    for name, f1 in (("all", 0.569), ("gms", 0.760)):
        assert multi.scores[name].matches_summary()["f1"] == pytest.approx(f1, abs=0.005)
    (scenes,) = evaluate(data / "val", ["all", "mutual", "ratio", "gms"], progress=False)
    for name, f1, auc in (
        ("all", 0.320, (20.9, 28.9, 36.9)),
        ("mutual", 0.491, (42.4, 53.8, 64.0)),
        ("ratio", 0.605, (57.5, 71.2, 81.4)),
        ("gms", 0.471, (31.5, 41.8, 52.2)),
    ):
        assert scenes.scores[name].matches_summary()["f1"] == pytest.approx(f1, abs=0.005)
        # One draw of RANSAC against another: each is off by a point or so.
        assert scenes.scores[name].pose_summary("ransac")["auc"] == pytest.approx(auc, abs=3)


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
        "from ananet.evaluation.runner import worker_pool\n"
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


@pytest.mark.usefixtures("in_this_process")
def test_a_hidden_camera_is_another_input(world, tmp_path):
    """Pruners see other numbers, so predictions made with cameras are refused, and the other way round."""
    options = {"estimators": "poselib", "prediction_folder": tmp_path, "device": "cpu", **QUICK}
    (found,) = evaluate(world.folder, ["mutual", str(world.weights)], model="fundamental", **options)
    assert found.model == "fundamental" and found.matching.endswith("cameras hidden")
    assert found.scores["mutual"].pose_summary("poselib")["auc"][2] > 5
    again = evaluate(world.folder, ["mutual", str(world.weights)], model="fundamental", **options)[0]
    assert again.reused == ("mutual", "tiny")
    with pytest.raises(InputError, match="is stale: its match settings was .*'hide_cameras': True"):
        evaluate(world.folder, "mutual", **options)
    elsewhere = options | {"prediction_folder": None}
    (known,) = evaluate(world.folder, ["mutual", str(world.weights)], **elsewhere)
    assert known.model == "essential"
    first, second = (one.predictions["tiny"] for one in (known, found))
    assert first.fingerprints == second.fingerprints, "the matches are the same"
    assert not np.allclose(first.results[0].logits, second.results[0].logits)


@pytest.mark.usefixtures("in_this_process")
def test_homographies(tmp_path):
    folder = write_planes(tmp_path / "wall")
    (found,) = evaluate(folder, ["all", "mutual"], estimators=("magsac", "poselib"), repeats=2, device="cpu", **QUICK)
    assert found.model == "homography" and found.names == ["wall/1-2", "wall/1-3"]
    for estimator in found.estimators:
        assert found.scores["mutual"].homography_summary(estimator)["auc"][2] > 60


def test_models_that_a_source_does_not_know(world, tmp_path):
    with pytest.raises(InputError, match="model: expected essential or fundamental for .*scenes.* got 'homography'"):
        evaluate(world.folder, "all", model="homography", **QUICK)
    with pytest.raises(InputError, match="model: expected homography for .* got 'fundamental'"):
        evaluate(write_planes(tmp_path / "wall"), "all", model="fundamental", **QUICK)
    write_plane_matches(tmp_path / "evd" / "a_pts.txt")
    with pytest.raises(InputError, match="model: expected none, as its matches alone are scored, for .* got 'homog"):
        evaluate(tmp_path / "evd", "all", model="homography", **QUICK)
    with pytest.raises(InputError, match="threshold: expected a threshold in pixels"):
        evaluate(world.folder, "all", model="fundamental", protocol="sun3d", **QUICK)
