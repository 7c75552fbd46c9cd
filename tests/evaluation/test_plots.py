from dataclasses import replace

import numpy as np
import pytest

from ananet.evaluation import evaluate, plots
from ananet.evaluation.explain import view_blocks
from ananet.networks import load_network
from tests.conftest import make_problem
from tests.datasets.planes import write_planes

pytest.importorskip("matplotlib")


def is_a_picture(image: np.ndarray) -> bool:
    return image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.std() > 5


def test_an_evaluation_has_its_plots(evaluation):
    found = plots.evaluation_plots(evaluation)
    assert sorted(found) == [
        "auc-poselib", "auc-ransac", "f1-by-inlier-ratio", "neighbours-first", "neighbours-second", "precision-recall",
        "reliability",
    ]  # fmt: skip
    for name, picture in found.items():
        assert is_a_picture(picture), name


def test_a_source_without_poses_has_no_plot_of_them(evaluation):
    assert not any(name.startswith("auc") for name in plots.evaluation_plots(replace(evaluation, estimators=())))


def test_homographies_are_drawn_by_their_corner_errors(tmp_path, in_this_process):
    folder, options = write_planes(tmp_path / "wall"), {"max_keypoints": 100, "device": "cpu", "progress": False}
    (found,) = evaluate(folder, "mutual", estimators="poselib", **options)
    assert is_a_picture(plots.evaluation_plots(found)["auc-poselib"])


def test_every_pruner_is_drawn(evaluation):
    alone = replace(evaluation, scores={"all": evaluation.scores["all"]})
    assert not np.array_equal(plots.plot_f1(alone), plots.plot_f1(evaluation))


def test_contexts_of_two_groups(world):
    problem = make_problem(30, 30)
    views = view_blocks(load_network(world.weights)[0], problem.matches)
    picture = plots.plot_context(views, problem.inlier, name="tiny")
    assert is_a_picture(picture)
    assert not np.array_equal(plots.plot_context(views, np.zeros(60, bool), name="tiny"), picture)
