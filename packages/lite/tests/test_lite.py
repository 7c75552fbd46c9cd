"""ananet-lite answers as ananet does, and refuses what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import ananet_lite
import numpy as np
import pytest
from ananet_lite.cli import main
from safetensors.numpy import load_file

import ananet

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "packages" / "lite"
ANSWERS = ROOT / "build" / "packages" / "answers"
NAMES = ananet_lite.list_pruners()
# Scores may differ so much, or so many times as much as ananet's differ from double precision.
TOLERANCE, TIMES = 1e-4, 5
GROUPED_MEAN, GROUPED_SHARE = 0.02, 0.01
CASES = [
    case
    for case in json.loads((ANSWERS / "index.json").read_text())
    if case["weights"] in NAMES and case["seeds"] is None and not case["label"]
]
POINTS = np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 10.0]])
SIZE = (64, 48)


def test_there_are_networks():
    assert NAMES == ["ananet", "ananet-small"]
    assert len(CASES) > 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['weights']}-{case['answer']}-{case['count']}")
def test_answers(case):
    arrays = load_file(ANSWERS / f"matches-{case['count']}.safetensors")
    logits = load_file(ANSWERS / "answers.safetensors")[case["answer"]]
    prune = ananet_lite.load(
        case["weights"], threshold=case["threshold"], conflict_odds=case["conflict_odds"], threads=1
    )
    found = prune(**{name: arrays[name] for name in case["given"]})
    score = 1 / (1 + np.exp(-logits.astype(np.float64)))
    difference = np.abs(found.scores - score)
    tolerance = max(TOLERANCE, TIMES * case["rounding"])
    wrong = ((score > case["threshold"]) != found.mask) & (np.abs(score - case["threshold"]) > tolerance)
    assert found.mask.dtype == bool and found.scores.dtype == found.logits.dtype == np.float32
    if case["undetermined"]:
        return
    if case["grouped"]:
        assert difference.mean() <= GROUPED_MEAN and wrong.mean() <= GROUPED_SHARE
    else:
        assert difference.max(initial=0) <= tolerance and not wrong.any()


def test_result_is_that_of_ananet():
    arrays = load_file(ANSWERS / "matches-100.safetensors")
    given = {name: arrays[name] for name in ("points0", "points1", "K0", "K1")}
    found = ananet_lite.load("ananet-small")(**given)
    expected = ananet.load("ananet-small", device="cpu")(**given)
    assert (found.mask == expected.mask).all()
    assert (found.indices == expected.indices).all()
    assert repr(found) == repr(expected)


# Name, points, and what else is given.
WRONG = {
    "shape": (POINTS[:, 0], POINTS, {"image_size0": SIZE, "image_size1": SIZE}),
    "words": (["a", "b"], POINTS, {}),
    "nothing": (POINTS, None, {}),
    "complex": (POINTS * 1j, POINTS, {}),
    "booleans": (POINTS > 20, POINTS, {}),
    "masked": (np.ma.masked_greater(POINTS, 20), POINTS, {}),
    "rows": (POINTS, POINTS[:2], {}),
    "nan": (POINTS, POINTS * np.nan, {"image_size0": SIZE, "image_size1": SIZE}),
    "no scale": (POINTS, POINTS, {}),
    "one camera": (POINTS, POINTS, {"K0": np.eye(3)}),
    "camera shape": (POINTS, POINTS, {"K0": np.eye(2), "K1": np.eye(3)}),
    "focal": (POINTS, POINTS, {"K0": -np.eye(3), "K1": np.eye(3)}),
    "camera rows": (POINTS, POINTS, {"K0": np.ones((3, 3)), "K1": np.eye(3)}),
    "camera nan": (POINTS, POINTS, {"K0": np.eye(3) * np.nan, "K1": np.eye(3)}),
    "image size": (POINTS, POINTS, {"image_size0": (0, 48), "image_size1": SIZE}),
    "ratio": (POINTS, POINTS, {"image_size0": SIZE, "image_size1": SIZE, "ratio": [0.5, 1.5, 0.1]}),
    "ratio shape": (POINTS, POINTS, {"image_size0": SIZE, "image_size1": SIZE, "ratio": [0.5]}),
    "mutual": (POINTS, POINTS, {"image_size0": SIZE, "image_size1": SIZE, "mutual": [0, 1, 2]}),
    "angles": (
        POINTS,
        POINTS,
        {"image_size0": SIZE, "image_size1": SIZE, "angles0": [0, 0, 90], "angles1": [0, 0, 0]},
    ),
    "keypoint sizes": (
        POINTS,
        POINTS,
        {"image_size0": SIZE, "image_size1": SIZE, "keypoint_sizes0": [1, 1, 0], "keypoint_sizes1": [1, 1, 1]},
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_are_those_of_ananet(wrong):
    points0, points1, given = WRONG[wrong]
    with pytest.raises(ananet.InputError) as expected:
        ananet.load("ananet-small", device="cpu")(points0, points1, **given)
    with pytest.raises(ananet_lite.InputError) as found:
        ananet_lite.load("ananet-small")(points0, points1, **given)
    names = (("torch.complex128", "complex128"), ("torch.bool", "bool"))
    message = str(expected.value)
    for theirs, ours in names:
        message = message.replace(theirs, ours)
    # Torch and numpy each say in their own words why they cannot convert.
    assert str(found.value).partition(" (can't")[0] == message.partition(" (can't")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pruner": "nothing"}, "pruner: expected one of ananet, ananet-small, or an ONNX file, got 'nothing'"),
        ({"threshold": 1}, "threshold: expected a probability above 0 and below 1, got 1"),
        ({"conflict_odds": 0.5}, "conflict_odds: expected a number of at least 1, got 0.5"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ananet_lite.InputError, match=re.escape(message)):
        ananet_lite.load(**options)


def test_unknown_argument():
    with pytest.raises(ananet_lite.InputError, match="got size0"):
        ananet_lite.load("ananet-small")(POINTS, POINTS, size0=SIZE)


def test_no_matches():
    found = ananet_lite.load("ananet-small")([], [])
    assert len(found.mask) == len(found.scores) == len(found.indices) == 0


def test_needs_no_torch():
    heavy = "any(name in sys.modules for name in ('torch', 'cv2', 'ananet'))"
    code = f"import sys, ananet_lite.cli; ananet_lite.load(); print({heavy})"
    environment = {"PYTHONPATH": str(PACKAGE / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_versions_move_together():
    versions = [
        re.search(r'^version = "(.*)"', (folder / "pyproject.toml").read_text(), re.MULTILINE)[1]
        for folder in (ROOT, PACKAGE)
    ]
    assert versions[0] == versions[1]


# ---- the command


@pytest.fixture
def matches(tmp_path):
    arrays = load_file(ANSWERS / "matches-100.safetensors")
    path = tmp_path / "matches.npz"
    np.savez(path, **{name: arrays[name] for name in ("points0", "points1", "K0", "K1", "ratio")}, extra=np.ones(3))
    return path


def test_prune(matches, tmp_path, capsys):
    output = tmp_path / "pruned.npz"
    assert main(["prune", str(matches), str(output), "--pruner", "ananet-small"]) == 0
    kept = np.load(output)
    assert kept["mask"].shape == kept["scores"].shape == kept["logits"].shape == (100,)
    assert f"ananet-small: kept {kept['mask'].sum()} of 100 matches" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["matches.npz", "pruned.npz"]


def test_match(tmp_path, capsys):
    cv2 = pytest.importorskip("cv2")
    from ananet.cli.demo import motorcycle

    pair = motorcycle()
    photos = [str(tmp_path / name) for name in ("a.png", "b.png")]
    for path, image in zip(photos, (pair.image0, pair.image1), strict=True):
        cv2.imwrite(path, image)
    assert main(["match", *photos, str(tmp_path / "matches.npz"), "--pruner", "ananet-small"]) == 0
    found = np.load(tmp_path / "matches.npz")
    # A fifth of the matches is right.
    assert 200 < found["mask"].sum() < len(found["mask"]) / 2
    # The file is one that ananet reads.
    matches = {name: found[name] for name in found.files if name not in ("mask", "scores", "logits")}
    kept = ananet.load("ananet-small", device="cpu")(**matches)
    assert (kept.mask != found["mask"]).mean() < 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prune", "nowhere.npz", "out.npz"], "no file nowhere.npz"),
        (["prune", "broken.npz", "out.npz"], "broken.npz: not a readable .npz file"),
        (["prune", "matches.npz", "out.txt"], "output: expected a file that ends in .npz, got out.txt"),
        (["prune", "matches.npz", "none/out.npz"], "output: the folder none does not exist"),
        (["prune", "matches.npz", "matches.npz"], "matches.npz is an input"),
        (["prune", "few.npz", "out.npz"], "few.npz: expected arrays points0 and points1, got points0"),
        (["prune", "matches.npz", "out.npz", "--pruner", "x"], "pruner: expected one of"),
        (["match", "a.jpg", "b.jpg", "out.npz"], "expected a photo, got a.jpg"),
    ],
)
def test_wrong_commands(words, message, matches, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 broken")
    np.savez("few.npz", points0=POINTS)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.npz").exists()


def test_page(tmp_path, monkeypatch):
    """What the documentation and the README show runs."""
    arrays = load_file(ANSWERS / "matches-100.safetensors")
    monkeypatch.chdir(tmp_path)
    np.savez("matches.npz", **{name: arrays[name] for name in ("points0", "points1", "image_size0", "image_size1")})
    for page, indent in ((ROOT / "docs" / "anywhere.md", "    "), (PACKAGE / "README.md", "")):
        text = page.read_text(encoding="utf-8")
        (block,) = re.findall(rf"^{indent}```python\n{indent}from ananet_lite(.*?)```", text, re.MULTILINE | re.DOTALL)
        code = "from ananet_lite" + block.replace("\n" + indent, "\n")
        exec(compile(code, str(page), "exec"), {name: arrays[name] for name in ("points0", "points1", "K0", "K1")})
        (command,) = re.findall(rf"^{indent}ananet-lite (prune .*)", text, re.MULTILINE)
        assert main(command.split()) == 0
