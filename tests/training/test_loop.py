import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ananet
from ananet import InputError
from ananet.cli import main
from ananet.datasets.batches import BatchSettings, PairBatches
from ananet.datasets.build import BuildSettings, build_pairs
from ananet.datasets.formats.shards import PairShards
from ananet.networks import ANANet, ANANetSettings, load_network
from ananet.training import loop
from ananet.training.calibration import fit_probabilities, score
from ananet.training.loop import BEST, LAST, LOG, WEIGHTS, train
from ananet.training.settings import TrainSettings
from tests.datasets.scenes import write_scene

ROOT = Path(__file__).parents[2]
SMALL = ANANetSettings(blocks=1, width=16, heads=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    build = BuildSettings(max_keypoints=200, least_consistent=15, least_parallax=0.5)
    for name, seed in (("a", 0), ("b", 20)):
        write_scene(folder / "train" / name, images=3, seed=seed)
    write_scene(folder / "val", images=2, seed=40)
    build_pairs(folder / "train", folder / "pairs", build, progress=False)
    build_pairs(folder / "val", folder / "validation", build, progress=False)
    return folder


@pytest.fixture
def settings(data):
    return TrainSettings(
        pairs=str(data / "pairs"),
        validation=str(data / "validation"),
        calibration_scenes=("b",),
        steps=8,
        warmup=2,
        validate_every=4,
        checkpoint_every=3,
        log_every=2,
        synthetic_share=0.5,
        network=SMALL,
        batches=BatchSettings(batch_size=4, matches=128),
    )


def weights(run):
    return load_file(run / LAST)


def test_a_run_leaves_weights_checkpoints_and_a_log(settings, tmp_path):
    result = train(settings, tmp_path / "run", device="cpu")
    assert result["step"] == 8
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {LAST, BEST, WEIGHTS, LOG}
    lines = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    assert {"loss", "learning_rate", "pairs_per_second"} <= set(lines[0])
    assert any("validation_f1" in line for line in lines)
    network, card = load_network(tmp_path / "run" / WEIGHTS)
    assert network.settings == SMALL
    assert card["steps"] == 8 and card["settings"]["seed"] == 0 and {"f1", "auc_5"} <= set(card["validation"])
    assert ananet.load(tmp_path / "run" / WEIGHTS).name == "weights"


@pytest.mark.parametrize(("side_channels", "optimizer"), [(0, "adamw"), (2, "adamw"), (2, "muon")])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(settings, tmp_path, side_channels, optimizer):
    settings = replace(settings, optimizer=optimizer, network=replace(SMALL, side_channels=side_channels))
    train(settings, tmp_path / "whole", device="cpu")
    train(settings, tmp_path / "parts", device="cpu", until=3)
    train(settings, tmp_path / "parts", device="cpu", until=5)
    train(settings, tmp_path / "parts", device="cpu")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert set(whole) == set(parts)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=0, msg=name)


def test_other_settings_do_not_continue_a_run(settings, tmp_path):
    train(settings, tmp_path, device="cpu", until=3)
    with pytest.raises(InputError, match=r"other settings \(learning_rate\)"):
        train(replace(settings, learning_rate=1e-4), tmp_path, device="cpu")


def test_learning_lowers_the_loss(settings, tmp_path):
    longer = replace(settings, steps=150, log_every=50, validate_every=150, synthetic_share=0.0, learning_rate=3e-3)
    train(longer, tmp_path, device="cpu")
    losses = [line["loss"] for line in map(json.loads, (tmp_path / LOG).read_text().splitlines()) if "loss" in line]
    assert losses[-1] < losses[0] - 0.03, losses


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named(tmp_path, capsys):
    assert main(["train", "-o", str(tmp_path / "run"), "--steps", "1", "--device", "cuda"]) == 2
    assert "device: expected 'auto', 'cpu' or a GPU" in capsys.readouterr().err


def test_synthetic_problems_alone(tmp_path):
    settings = TrainSettings(steps=2, network=SMALL, batches=BatchSettings(batch_size=2, matches=64))
    assert train(settings, tmp_path, device="cpu")["step"] == 2


def test_geometric_loss_joins(settings, tmp_path):
    train(replace(settings, steps=2, geometric_weight=0.5, geometric_from=1), tmp_path, device="cpu")


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(settings, tmp_path, monkeypatch):
    train(settings, tmp_path, device="cpu", until=3)
    before = (tmp_path / LAST).read_bytes()
    real = loop.class_loss
    monkeypatch.setattr(loop, "class_loss", lambda *a: real(*a) * float("nan"))
    with pytest.raises(FloatingPointError, match="last good checkpoint"):
        train(settings, tmp_path, device="cpu")
    assert (tmp_path / LAST).read_bytes() == before


def test_fine_tuning_starts_from_given_weights(settings, data, tmp_path, capsys):
    train(settings, tmp_path / "first", device="cpu")
    start = tmp_path / "first" / WEIGHTS
    arguments = ["train", "--from", start, "--pairs", data / "pairs", "--steps", 1, "-o", tmp_path / "tuned", "--json"]
    assert main([*(str(a) for a in arguments), "--device", "cpu", "--learning-rate", "1e-5"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 1
    tuned, first = load_network(result["weights"])[0], load_network(start)[0]
    # All but the last layer, which holds the fit of the scores, is where it was.
    torch.testing.assert_close(tuned.blocks[0].query.weight, first.blocks[0].query.weight, atol=1e-3, rtol=0)
    with pytest.raises(InputError, match="the run wants"):
        train(replace(settings, network=ANANetSettings()), tmp_path / "x", start_from=start, device="cpu")


def test_other_forms_and_side_input_start_from_the_same_weights(settings, tmp_path):
    train(settings, tmp_path / "first", device="cpu", until=3)
    first = load_network(tmp_path / "first" / WEIGHTS)[0]
    wider = replace(SMALL, form="quadratic", side_channels=2)
    network = ANANet(wider)
    loop._copy_weights(network, tmp_path / "first" / WEIGHTS)
    torch.testing.assert_close(network.head.weight, first.head.weight)
    matches = torch.rand(1, 20, 6)
    first.blocks[0].settings = first.settings = replace(SMALL, form="quadratic")
    torch.testing.assert_close(network.eval()(matches), first(matches[..., :4]))
    with pytest.raises(InputError, match="the run wants"):
        loop._copy_weights(ANANet(replace(SMALL, blocks=2)), tmp_path / "first" / WEIGHTS)


def test_side_input_is_withheld_in_every_way():
    known = loop._known_side_input(3000, 0.6, step=1, device=torch.device("cpu"))
    shares = [(known == torch.tensor(kind)).all(1).float().mean() for kind in ([1, 1], [1, 0], [0, 1], [0, 0])]
    assert torch.stack(shares).tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=0.04)
    assert loop._known_side_input(9, 0.0, step=1, device=torch.device("cpu")).all()


def test_batches_made_at_once_are_full_or_say_so(settings):
    source = loop.BatchSource(settings, PairShards(settings.pairs), torch.device("cpu"), 0, 1)
    batch, full = source.draw(0)
    assert len(batch.matches) == 4 and full == bool(batch.mask.all())
    source = loop.BatchSource(settings, PairShards(settings.pairs), torch.device("cpu"), 0, 1)
    source.steps_at_once = 3
    source.real = PairBatches(PairShards(settings.pairs), replace(settings.batches, batch_size=6), 0)
    assert [len(source.draw(step)[0].matches) for step in range(4)] == [4] * 4


def test_a_tighter_label(settings, tmp_path):
    train(replace(settings, inlier_distance=1e-5, steps=2), tmp_path, device="cpu")
    assert load_network(tmp_path / WEIGHTS)[1]["settings"]["inlier_distance"] == 1e-5
    with pytest.raises(InputError, match="inlier_distance: expected a positive number"):
        replace(settings, inlier_distance=0.0)


def test_settings_come_from_toml(settings, data, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(
        f"pairs = {str(data / 'pairs')!r}\nsteps = 1\n[network]\nblocks = 1\nform = 'quadratic'\n"
        "[batches]\nbatch_size = 2\nmatches = 50\n"
    )
    assert main(["train", str(path), "-o", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert load_network(tmp_path / "run" / WEIGHTS)[0].settings.form == "quadratic"
    for text, message in [
        ("stepz = 3", "unknown setting stepz"),
        ("[network]\nblokcs = 3", "unknown setting network.blokcs"),
        ("steps = 'many'", "steps: expected int, got 'many'"),
        ("steps = 0", "steps: expected at least 1"),
        ("steps = ", "is not TOML"),
        ("precision = 'fp8'", "precision: expected bf16 or fp32"),
    ]:
        path.write_text(text)
        assert main(["train", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", str(tmp_path / "none.toml")]) == 2


@pytest.mark.parametrize("path", sorted((ROOT / "settings").glob("*.toml")), ids=lambda path: path.stem)
def test_settings_that_come_along_are_valid(path):
    assert TrainSettings.from_toml(path).steps > 0


def test_ablation_prints_both_tables(data, tmp_path):
    script = [sys.executable, str(ROOT / "benchmarks" / "ablation.py"), str(data / "pairs"), str(data / "validation")]
    options = ["-o", str(tmp_path), "--steps=1", "--batch-size=2", "--matches=32", "--device=cpu"]
    done = subprocess.run([*script, *options], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Table 6" in done.stdout and "+ learnable normalisation" in done.stdout
    assert "Table 5" in done.stdout and "cubic" in done.stdout
    assert {p.stem for p in tmp_path.glob("*.safetensors")} == {"none", "sigmoid", "linear", "quadratic", "cubic"}


def test_two_processes_share_gradients(settings, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(settings.to_dict()))
    code = (
        "import json, sys\n"
        "from ananet.training.loop import train\n"
        "from ananet.training.settings import TrainSettings\n"
        f"settings = TrainSettings.from_dict(json.load(open({str(tmp_path / 's.json')!r})))\n"
        f"train(settings, {str(tmp_path / 'run')!r}, device='cpu', until=3)\n"
    )
    (tmp_path / "job.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path / "job.py")], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / WEIGHTS).exists()


def test_probabilities_are_fitted():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(20_000, generator=generator) * 2 - 1
    labels = torch.rand(20_000, generator=generator) < truth.sigmoid()
    scale, shift = fit_probabilities([((truth - 0.5) * 3, labels)])
    assert scale == pytest.approx(1 / 3, abs=0.02)
    assert shift == pytest.approx(0.5, abs=0.1)


def test_scores_by_hand():
    answers = [(torch.tensor([1.0, -1.0, 1.0]), torch.tensor([True, True, False]))]
    found = score(answers)
    assert found["precision"] == found["recall"] == found["f1"] == 0.5
