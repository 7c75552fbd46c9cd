"""ONNX files decide as the pruners they come from do."""

import contextlib
import itertools
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ananet import InputError, MissingExtraError, load
from ananet.cli.main import main
from ananet.core.conflicts import doubt_at, penalize_conflicts
from ananet.integrations.onnx import export
from ananet.integrations.onnx.exporter import penalize_conflicts as doubt_conflicting_plainly
from ananet.integrations.onnx.exporter import side_channels
from ananet.networks import ANANet, ANANetSettings
from ananet.networks.input import side_input
from ananet.pruners import LearnedPruner
from tests.conftest import make_problem

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

ROOT = Path(__file__).parents[3]
EXAMPLE, PAGE = ROOT / "examples" / "prune_onnx.py", ROOT / "docs" / "pipelines.md"
SIDE = ("ratio", "mutual", "size", "angle")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="module")
def pruners():
    return {name: load(name, device="cpu") for name in ("ananet-paper", "ananet")}


@pytest.fixture(scope="module")
def files(folder, pruners):
    """The exported networks; each takes half a minute, so once for all tests. The first as the documentation says."""
    (command,) = re.findall(r"^ananet (export .*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    with contextlib.chdir(folder):
        assert main(shlex.split(command)) == 0
    export(pruners["ananet-paper"], folder / "ananet-paper.onnx")
    return {name: folder / f"{name}.onnx" for name in pruners}


def opened(path):
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def some_matches(count, seed=0):
    """Two fifths right, and every eighth sharing its second point with another."""
    matches = make_problem(count * 2 // 5, count - count * 2 // 5, seed=seed).matches
    shared = count // 8
    points1 = matches.points1.copy()
    points1[:shared] = points1[shared : 2 * shared]
    generator = torch.Generator().manual_seed(seed)
    sizes, angles = torch.rand(2, count, generator=generator) * 20 + 2, torch.rand(2, count, generator=generator) * 6
    known = {"keypoint_sizes0": sizes[0], "keypoint_sizes1": sizes[1], "angles0": angles[0], "angles1": angles[1]}
    return matches.replace(points1=points1, **known)


def inputs(pairs, session):
    feed = {"matches": np.stack([pair._as_tensors().normalized().float().numpy() for pair in pairs])}
    if len(session.get_inputs()) > 1:
        feed["side"] = np.stack([side_numbers(pair) for pair in pairs])
    return feed


def side_numbers(pair):
    columns = [pair.ratio, pair.mutual, *pair.normalized_sizes().mT, pair.angles0, pair.angles1]
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=-1)


@pytest.mark.parametrize(("count", "batch"), [*itertools.product([0, 1, 7, 100, 2000], [1, 4]), (5000, 1)])
@pytest.mark.parametrize("name", ["ananet-paper", "ananet"])
def test_the_same_masks(name, count, batch, files, pruners):
    session = opened(files[name])
    pairs = [some_matches(count, seed) for seed in range(batch)]
    logits, scores, mask = session.run(["logits", "scores", "mask"], inputs(pairs, session))
    assert mask.shape == scores.shape == logits.shape == (batch, count) and mask.dtype == bool
    for number, pair in enumerate(pairs):
        expected = pruners[name](pair)
        np.testing.assert_array_equal(mask[number], np.asarray(expected.mask))
        np.testing.assert_allclose(logits[number], np.asarray(expected.logits), atol=2e-3)
        np.testing.assert_allclose(scores[number], np.asarray(expected.scores), atol=2e-4)


def test_padding_and_matches_out_of_view_take_no_part(files, pruners):
    pair = some_matches(200)
    points = pair.points0.copy()
    points[17] = 65535.0
    pair = pair.replace(points0=points)
    session = opened(files["ananet-paper"])
    padded = np.full((1, 230, 4), np.nan, np.float32)
    padded[0, :200] = pair._as_tensors().normalized().float().numpy()
    logits, _, mask = session.run(["logits", "scores", "mask"], {"matches": padded})
    expected = pruners["ananet-paper"](pair)
    np.testing.assert_array_equal(mask[0, :200], np.asarray(expected.mask))
    assert not mask[0, 200:].any() and not mask[0, 17]
    np.testing.assert_allclose(logits[0, :200], np.asarray(expected.logits), atol=2e-3)


def test_side_input_may_be_unknown(files, pruners):
    pair = some_matches(300)
    session = opened(files["ananet"])
    feed = inputs([pair], session)
    feed["side"][..., 2:] = np.nan
    (mask,) = session.run(["mask"], feed)
    nothing = dict.fromkeys(("keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1"))
    np.testing.assert_array_equal(mask[0], np.asarray(pruners["ananet"](pair.replace(**nothing)).mask))


def test_no_map_of_all_pairs_in_memory(files):
    """Attention runs over blocks: there is one Scan for every block of the network, and no Softmax outside."""
    graph = onnx.load(files["ananet-paper"]).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Scan") == 5 and "Softmax" not in kinds


def test_metadata_say_how_to_use_the_file(files, pruners):
    model = onnx.load(files["ananet"])
    found = {entry.key: entry.value for entry in model.metadata_props}
    assert float(found["threshold"]) == pytest.approx(0.4)
    assert float(found["decision_logit"]) == pruners["ananet"].decision
    assert float(found["conflict_odds"]) == 30
    assert json.loads(found["side"]) == ["ratio", "mutual", "keypoint_size0", "keypoint_size1", "angle0", "angle1"]
    assert "0.7 max(width, height)" in found["normalization"]
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    assert [dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim][:2] == ["pairs", "count"]


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "quadratic"},
        {"form": "cubic"},
        {"second_order": False},
        {"seeds": 64},
        {"seeds": 64, "form": "quadratic", "feedback": True, "side": SIDE},
    ],
    ids=str,
)
def test_every_form_of_attention(settings, tmp_path):
    torch.manual_seed(0)
    network = ANANet(ANANetSettings(blocks=2, width=32, share_kv=False, **settings)).eval()
    pruner = LearnedPruner(network, "cpu", threshold=0.5, conflict_odds=1)
    export(pruner, tmp_path / "small.onnx")
    session = opened(tmp_path / "small.onnx")
    for count in (1, 7, 300):
        pair = some_matches(count)
        (logits,) = session.run(["logits"], inputs([pair], session))
        np.testing.assert_allclose(logits[0], np.asarray(pruner(pair).logits), atol=1e-4)


def test_pixels(tmp_path):
    """A file that takes pixels, with cameras or sizes, does all that a call does; nothing in it names this machine."""
    torch.manual_seed(0)
    settings = ANANetSettings(blocks=1, width=32, heads=2, side=SIDE, feedback=True, seeds=16)
    pruner = LearnedPruner(ANANet(settings).eval(), "cpu", threshold=0.3)
    path = tmp_path / "pixels.onnx"
    metadata = export(pruner, path, pixels=True)
    assert metadata["input"] == "pixels" and str(Path(__file__).parents[3]).encode() not in path.read_bytes()
    session = opened(path)
    for count in (0, 1, 60):
        pair = some_matches(count)
        given = {name: getattr(pair, name) for name in ("K0", "K1", "image_size0", "image_size1")}
        for left_out in (("K0", "K1"), ("image_size0", "image_size1")):
            known = {name: value for name, value in given.items() if name not in left_out and value is not None}
            if not known:
                continue
            unknown = {name: np.full((3, 3) if name[0] == "K" else 2, math.nan) for name in given}
            arrays = {name: np.asarray(value, np.float64) for name, value in (unknown | known).items()}
            for threshold, odds in ((0.3, 30.0), (0.6, math.inf)):
                pruner = LearnedPruner(pruner.network, "cpu", threshold, odds)
                expected = pruner(pair.points0, pair.points1, **known, ratio=pair.ratio)
                side = np.full((count, 6), math.nan, np.float32)
                side[:, 0] = pair.ratio
                logits, mask = session.run(
                    ["logits", "mask"],
                    {
                        **arrays,
                        "points0": np.asarray(pair.points0, np.float64),
                        "points1": np.asarray(pair.points1, np.float64),
                        "threshold": np.array(threshold),
                        "conflict_odds": np.array(odds),
                        "side": side,
                    },
                )
                np.testing.assert_allclose(logits, expected.logits, atol=1e-4)
                assert (mask == expected.mask).all()


@pytest.mark.parametrize("odds", [1.0, 30.0, math.inf])
def test_doubt_as_elsewhere(odds):
    generator = torch.Generator().manual_seed(0)
    # Few places, so that many points are shared.
    matches = torch.randint(-3, 4, (3, 200, 4), generator=generator) / 10
    matches[0, :5] *= -1  # -0 and 0 are one place
    logits = torch.randn(3, 200, generator=generator).round(decimals=1)
    mask = torch.rand(3, 200, generator=generator) < 0.9
    plain = doubt_conflicting_plainly(logits, matches, None if odds == 1 else doubt_at(odds), mask)
    torch.testing.assert_close(plain[mask], penalize_conflicts(logits, matches, odds, mask)[mask], rtol=0, atol=0)


def test_side_channels_as_elsewhere():
    pair = some_matches(50)._as_tensors()
    numbers = torch.from_numpy(side_numbers(pair))[None]
    expected = side_input(SIDE, pair.ratio, pair.ratio, pair.mutual, pair.normalized_sizes(), pair.angles())
    torch.testing.assert_close(side_channels(SIDE, numbers)[0], expected)
    numbers[0, :, 2] = math.nan
    expected = side_input(SIDE, pair.ratio, pair.ratio, pair.mutual, None, pair.angles())
    torch.testing.assert_close(side_channels(SIDE, numbers)[0], expected)


@pytest.mark.parametrize("name", ["ananet-paper", "ananet"])
def test_the_example_without_torch(name, files, pruners, tmp_path):
    pair = some_matches(400)
    names = (
        "points0",
        "points1",
        "K0",
        "K1",
        "ratio",
        "mutual",
        "keypoint_sizes0",
        "keypoint_sizes1",
        "angles0",
        "angles1",
    )
    np.savez(tmp_path / "matches.npz", **{each: np.asarray(getattr(pair, each)) for each in names})
    block = "import sys; sys.modules['torch'] = None; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", f"import sys; sys.argv = sys.argv[1:]; {block}"]
    paths = (EXAMPLE, files[name], tmp_path / "matches.npz", tmp_path / "pruned.npz")
    printed = subprocess.run([*command, *map(str, paths)], check=True, capture_output=True, text=True).stdout
    expected = np.asarray(pruners[name](pair).mask)
    np.testing.assert_array_equal(np.load(tmp_path / "pruned.npz")["mask"], expected)
    assert f"kept {expected.sum()} of 400" in printed


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="expected one network, .* got ratio"):
        export(load("ratio"), tmp_path / "x.onnx")
    monkeypatch.setattr("ananet.integrations.onnx.exporter.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="'onnx'"):
        export(load("ananet", device="cpu"), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
