"""What `toys.py` adds, from outside of the package, trains, evaluates and matches."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import ananet
from ananet.cli.main import main
from ananet.datasets.sources import SOURCES, open_source
from ananet.estimators import ESTIMATORS
from ananet.evaluation import evaluate
from ananet.features import DETECTORS, MATCHERS
from ananet.networks import NETWORKS, NetworkSettings, load_network
from ananet.pruners import CLASSICAL, LearnedPruner
from ananet.training.loop import WEIGHTS, train
from ananet.training.settings import TrainSettings
from tests.conftest import make_problem
from tests.datasets.scenes import write_scene


@pytest.fixture(scope="module", autouse=True)
def toys():
    """The toys, known while these tests run."""
    made = import_module("tests.toys")
    yield made
    for registry in (NETWORKS, DETECTORS, MATCHERS, ESTIMATORS, SOURCES, CLASSICAL):
        registry._added.clear()


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "problems.toy"
    path.write_text(json.dumps(list(range(6))))
    return path


@pytest.fixture(scope="module")
def weights(problems, tmp_path_factory) -> Path:
    """The toy network, trained on the toy source from a TOML file."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "toy.toml").write_text(
        "steps = 40\nwarmup = 2\nlearning_rate = 1e-2\nlog_every = 20\nsynthetic_share = 0.0\n"
        "[network]\nname = 'toy'\nwidth = 16\nside = ['ratio', 'mutual']\n[batches]\nbatch_size = 4\nmatches = 64\n"
    )
    settings = TrainSettings.from_toml(folder / "toy.toml")
    settings = settings.replace(pairs=str(problems), validation=str(problems), pose_estimator="eight-point")
    result = train(settings, folder / "run", device="cpu")
    assert result["step"] == 40 and {"f1", "auc_5"} <= set(result["validation"])
    return folder / "run" / WEIGHTS


def test_the_toy_network_trains_and_comes_back(weights, toys):
    network, card = load_network(weights)
    assert isinstance(network, toys.ToyNetwork) and network.settings.width == 16
    assert card["settings"]["network"]["name"] == "toy"
    pruner = ananet.load(weights)
    assert isinstance(pruner, LearnedPruner)
    problem = make_problem(seed=9)
    kept = pruner(problem.matches)
    # Ratios and mutual flags say much in these problems, and one layer can see that.
    assert problem.inlier[kept.mask].mean() > 0.8


def test_everything_is_evaluated_in_worker_processes(problems, weights):
    pruners = [str(weights), "every-other", "every-other@offset=1"]
    (found,) = evaluate(problems, pruners, estimators=("eight-point", "ransac"), workers=1, progress=False)
    assert found.kind == "toy problems" and found.estimators == ("eight-point", "ransac")
    assert found.scores["every-other"].column("kept").tolist() == [50.0] * 6
    assert found.pruners["weights"].network["name"] == "toy"
    assert found.scores["weights"].matches_summary()["f1"] > 0.7


def test_the_toy_detector_builds_training_pairs_and_matches(tmp_path, capsys):
    write_scene(tmp_path / "scene", images=2, seed=0)
    arguments = ["data", "build", tmp_path / "scene", tmp_path / "pairs", "--detector", "grid@step=6", "--json"]
    assert main([str(argument) for argument in arguments]) == 0
    assert json.loads(capsys.readouterr().out)["photos"] == 2
    assert open_source(tmp_path / "pairs").name == "training pairs"
    photos = sorted((tmp_path / "scene" / "images").iterdir())
    found = ananet.match_photos(
        photos[0], photos[0], detector="grid", pruner="every-other", estimator="eight-point", K0=np.eye(3), K1=np.eye(3)
    )
    assert found.detector == "grid" and found.pruner == "every-other" and found.estimator == "eight-point"
    assert (found.matches.indices[:, 0] == torch.arange(len(found.matches))).all()


def test_names_that_nobody_added_are_told():
    for call, message in (
        (lambda: ananet.load("toys"), "pruner: expected one of .* every-other, all,"),
        (
            lambda: DETECTORS.make("grid@stride=3"),
            "of detector 'grid': it has",
        ),
        (lambda: NetworkSettings.from_dict({"name": "oracle"}), "network: expected one of toy, .*, got 'oracle'"),
    ):
        with pytest.raises(ananet.InputError, match=message):
            call()
