from dataclasses import replace

import numpy as np
import pytest

from ananet import InputError
from ananet.cli.main import main
from ananet.networks import ANANetSettings, load_network
from ananet.recipes import recipe_path, recipes
from ananet.training import train
from ananet.training.loop import WEIGHTS
from ananet.training.settings import TrainSettings


def test_settings_come_from_toml(data, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f"pairs = {str(data / 'pairs')!r}\nsteps = 1\n[network]\nblocks = 1\nform = 'quadratic'\n"
        "[batches]\nbatch_size = 2\nmatches = 50\n"
    )
    assert main(["train", str(path), "-o", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert load_network(tmp_path / "run" / WEIGHTS)[0].settings.form == "quadratic"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "unknown setting stepz"),
        ("[network]\nblokcs = 3", "unknown setting network.blokcs"),
        ("steps = 'many'", "steps: expected a whole number, got 'many'"),
        ("steps = 2.5", "steps: expected a whole number, got 2.5"),
        ("steps = true", "steps: expected a whole number, got True"),
        ("steps = 0", "steps: expected a whole number of at least 1, got 0"),
        ("steps = ", "is not TOML"),
        ("precision = 'fp8'", "precision: expected one of bf16, fp32, got 'fp8'"),
        ("compile = 'no'", "compile: expected true or false, got 'no'"),
        ("tensorboard = 1", "tensorboard: expected true or false, got 1"),
        ("pairs = 5", "pairs: expected text, got 5"),
        ("calibration_scenes = 'scene_a'", "calibration_scenes: expected a list of texts, got 'scene_a'"),
        ("excluded_scenes = [3]", "excluded_scenes: expected text, got 3"),
        ("learning_rate = 'fast'", "learning_rate: expected a number, got 'fast'"),
        ("learning_rate = nan", "learning_rate: expected a number, got nan"),
        ("final_learning_rate = 1.0", "final_learning_rate: expected a number above 0 and at most learning_rate"),
        ("inlier_distance = 0.0", "inlier_distance: expected a positive number, got 0.0"),
        ("labels = 'reprojection'", "labels: expected one of line, depth, got 'reprojection'"),
        ("unknown_weight = -0.1", "unknown_weight: expected at least 0, got -0.1"),
        ("[batches]\nempty = 2.0", "batches.empty: expected a number from 0 to 1, got 2.0"),
        ("synthetic_share = 1.5", "synthetic_share: expected a number from 0 to 1, got 1.5"),
        ("small_share = -0.5", "small_share: expected a number from 0 to 1, got -0.5"),
        ("optimizer = 'sgd'", "optimizer: expected adamw or muon, got 'sgd'"),
        ("seed = -1", "seed: expected a whole number from 0 to"),
        ("network = 3", "network: expected"),
        (
            "[network]\nname = 'oracle'",
            "network: expected one of ananet, cne, acne, oanet, lmcnet, dematch, got 'oracle'",
        ),
        ("[network]\nside = ['colour']", "side: expected different ones of ratio, mutual, size, angle"),
        ("[network]\nside = ['ratio', 'ratio']", "side: expected different ones"),
        ("[network]\nwidth = 10\nheads = 4", "width: expected a multiple of heads"),
        ("steps = " + "9" * 5000, "is not TOML"),
        ("warmup = -1", "warmup: expected a whole number of at least 0, got -1"),
        ("weight_decay = -0.1", "weight_decay: expected at least 0, got -0.1"),
        ("geometric_weight = inf", "geometric_weight: expected at least 0, got inf"),
        ("clip_gradient = 0.0", "clip_gradient: expected a number above 0, got 0.0"),
        ("[batches]\nbatch_size = 0", "batches.batch_size: expected a whole number of at least 1, got 0"),
        ("[small_batches]\nmin_matches = 9999", "small_batches.min_matches: expected a whole number from 1 to 2000"),
    ],
)
def test_wrong_settings_are_told_in_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert main(["train", str(path), "-o", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_told(tmp_path, capsys):
    assert main(["train", str(tmp_path / "none.toml")]) == 2
    assert "settings: expected a recipe (ananet, " in capsys.readouterr().err


@pytest.mark.parametrize("name", recipes())
def test_recipes_that_come_along_are_valid(name):
    path = recipe_path(name)
    assert TrainSettings.from_toml(path).steps > 0
    assert f"ananet train {name}" in path.read_text(), "each says the command that uses it"


def test_recipes_go_by_name_and_others_by_path(tmp_path):
    assert {"ananet", "ananet-quadratic", "trunk"} <= set(recipes())
    assert recipe_path("ananet").parent.name == "recipes"
    (tmp_path / "mine.toml").touch()
    assert recipe_path(str(tmp_path / "mine.toml")) == tmp_path / "mine.toml"
    assert TrainSettings.from_toml(recipe_path("ananet")).network.side == ("ratio", "mutual", "size", "angle")


def test_settings_survive_a_dictionary():
    settings = TrainSettings(
        pairs="somewhere", calibration_scenes=("a", "b"), network=ANANetSettings(blocks=2, side=("size",))
    )
    assert TrainSettings.from_dict(settings.to_dict()) == settings
    assert TrainSettings.from_dict({"steps": np.int64(3)}).steps == 3


def test_changes_leave_out_what_is_none():
    settings = TrainSettings(steps=5)
    assert settings.replace(steps=None, seed=3) == replace(settings, seed=3)
    with pytest.raises(InputError, match="steps: "):
        settings.replace(steps=0)


def test_an_unknown_change_is_named():
    with pytest.raises(InputError, match="unknown setting step: expected some of .*; did you mean 'steps'"):
        train(step=4)
