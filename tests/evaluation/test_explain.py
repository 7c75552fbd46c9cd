import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.attention.reference import CONTEXT
from ananet.cli.main import main
from ananet.evaluation.explain import (
    best_head,
    block_features,
    inlier_neighbours,
    most_attended,
    separation,
    two_apart,
    view_blocks,
)
from ananet.networks import ANANet, ANANetSettings, Network, load_network
from ananet.networks.base import BlockView
from ananet.networks.input import network_input
from ananet.twoview.drawing import GREEN
from tests.conftest import make_problem
from tests.evaluation.conftest import camera_pose


def test_views_agree_with_the_network():
    torch.manual_seed(0)
    network = ANANet(ANANetSettings(blocks=2, width=32, heads=2, form="quadratic")).eval()
    matches = make_problem(60, 40).matches
    taken = []
    encoders = [block.second_order for block in network.blocks]
    hooks = [e.register_forward_hook(lambda module, given, out: taken.append(given[0])) for e in encoders]
    with torch.no_grad():
        logits = network(network_input(matches, network.settings.side)[None])[0]
    for hook in hooks:
        hook.remove()
    views = view_blocks(network, matches)
    assert len(views) == 2
    for view, context in zip(views, taken, strict=True):
        assert torch.allclose(view.attention.sum(-1), torch.ones(2, 100), atol=1e-5)
        assert torch.allclose(view.context, context[0], atol=1e-5)
        assert torch.allclose(view.normalized, torch.sigmoid(2 * view.context), atol=1e-5)
        assert torch.equal(view.context, CONTEXT["quadratic"](view.attention, 100))
    features = block_features(network, matches)
    assert len(features) == 3 and features[0].shape == (100, 32)
    with torch.no_grad():
        assert torch.allclose(network.head(features[-1])[:, 0], logits, atol=1e-5)
    assert not any(block._forward_hooks for block in network.blocks), "nothing is left behind"


def test_without_second_order_there_is_no_context():
    network = ANANet(ANANetSettings(blocks=1, width=32, heads=2, second_order=False)).eval()
    (view,) = view_blocks(network, make_problem(20, 20).matches)
    assert view.context is None and view.normalized is None


def test_a_network_may_have_nothing_to_show():
    class Plain(Network):
        name = "plain"

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, matches, mask=None):
            return self.layer(matches)[..., 0]

        def rescale_logits(self, scale, shift):
            pass

    problem = make_problem(20, 20)
    assert view_blocks(Plain(), problem.matches) == [] and block_features(Plain(), problem.matches) == []
    assert inlier_neighbours(Plain(), problem.matches, problem.inlier).size == 0


def test_side_input_is_part_of_what_blocks_see():
    torch.manual_seed(0)
    network = ANANet(ANANetSettings(blocks=1, width=16, heads=2, side=("ratio", "mutual"))).eval()
    torch.nn.init.normal_(network.side_encoder.linears[-1].weight)
    matches = make_problem(20, 20).matches
    with_side, without = block_features(network, matches), block_features(network, matches.replace(ratio=None))
    assert not torch.allclose(with_side[0], without[0])


def test_neighbours(world):
    network, _ = load_network(world.weights)
    problem = make_problem(50, 50)
    ratios = inlier_neighbours(network, problem.matches, problem.inlier, (1, 99))
    assert ratios.shape == (3, 2)
    assert ratios[:, 1] == pytest.approx(49 / 99)
    assert not inlier_neighbours(network, problem.matches[[]], np.zeros(0, bool)).any()


def test_shared_attention_by_hand():
    attention = torch.tensor([[0.9, 0.5, 0.1, 0.4], [0.2, 0.9, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    found = most_attended(attention, (0, 1), 2)
    assert [sorted(a.tolist()) for a in found] == [[1, 3], [2, 3]], "not themselves"


def test_two_apart():
    points = np.array([[0.0, 0], [1, 0], [100, 0], [90, 0]])
    logits = np.array([3.0, 2.0, 0.5, 1.0])
    assert two_apart(points, logits, np.arange(4)) == (0, 3)
    assert two_apart(points, logits, np.array([0, 1])) == (0, 1)
    with pytest.raises(InputError, match="at least two matches"):
        two_apart(points, logits, np.array([0]))


def test_separation():
    good = np.array([True, False, True, False])
    assert separation(np.array([3.0, 1, 2, 0]), good) == 1 and separation(np.array([0.0, 1, 0, 1]), good) == 0
    assert separation(np.ones(4), good) == 0.5 == separation(np.arange(4.0), np.ones(4, bool))
    views = [BlockView(torch.zeros(2, 4, 4), torch.tensor([[0.0, 1, 2, 3], [3, 1, 2, 0]])) for _ in range(2)]
    assert best_head(views, good) == (1, 2, 1.0)


@pytest.fixture
def always(tmp_path):
    """A network that keeps everything."""
    from ananet.networks import save_network

    torch.manual_seed(0)
    network = ANANet(ANANetSettings(blocks=2, width=32, heads=2))
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.fill_(1.0)
    save_network(tmp_path / "always.safetensors", network)
    return tmp_path / "always.safetensors"


def explain(capsys, world, *arguments):
    images = world.folder / "room" / "images"
    code = main(["explain", str(images / "0.png"), str(images / "1.png"), *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_pictures_with_labels(world, always, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    R, t = camera_pose(1)
    np.savetxt(tmp_path / "pose.txt", np.c_[R, t])
    code, out, err = explain(
        capsys, world, "--pruner", f"{always},ratio", "--focal", 300, "--pose", tmp_path / "pose.txt",
        "-o", tmp_path / "out", "--max-keypoints", 200, "--json",
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert result["labels"] == "pose" and result["block"] == 2
    assert [p.rsplit("/", 1)[1] for p in result["pictures"]] == [
        "matches.png", "attention.png", "context.png", "neighbours.png",
    ]  # fmt: skip
    for picture in result["pictures"]:
        assert cv2.imread(picture).std() > 10
    # The match that attends to the others stands out from them.
    attention = cv2.imread(str(tmp_path / "out" / "attention.png"))
    for row in np.split(attention, 2):
        assert (np.abs(row.astype(int) - GREEN).sum(-1) < 30).sum() > 1500


def test_without_labels_or_weights_it_says_so(world, always, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    code, out, _ = explain(capsys, world, "--pruner", f"lpm,{always}", "-o", tmp_path / "o", "--max-keypoints", 100)
    assert (
        code == 0
        and "green means kept and red removed in context.png" in out
        and "context.png: how well each match agrees" in out
    )
    code, out, _ = explain(capsys, world, "--pruner", "lpm,gms", "-o", tmp_path / "p", "--max-keypoints", 100)
    assert code == 0 and "None of the pruners is a single network" in out and "context.png" not in out
    assert [p.name for p in (tmp_path / "p").iterdir()] == ["matches.png"]


def test_the_default_is_the_network_that_auto_chooses(world, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    code, out, err = explain(capsys, world, "-o", tmp_path, "--max-keypoints", 500, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert list(summary["pruners"]) == ["ananet"] and 0.5 < summary["context"]["separation"] <= 1


def test_wrong_arguments(world, always, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pose = tmp_path / "pose.txt"
    pose.write_text("1 2 3")
    small = ("-o", tmp_path / "out", "--max-keypoints", 100)
    for arguments, word in (
        (("--pruner", always, "--block", 9), "--block: expected a whole number from 1 to 2, got 9"),
        (("--pruner", always, "--head", 3), "--head: expected a whole number from 1 to 2, got 3"),
        (("--pruner", always, "--head", 0), "--head: expected a whole number of at least 1, got 0"),
        (("--pruner", always, "--block", 0), "--block: expected a whole number of at least 1, got 0"),
        (("--pruner", "wrong"), "pruner: expected one of"),
        (("--pruner", "all", "--pose", pose), "--pose: expected together with --k0 and --k1"),
        (("--pruner", "all", "--focal", 300, "--pose", pose), "--pose: expected a text file with 12 or 16"),
        (("--pruner", "all", "--focal", 300, "--k0", "1,1,1,1"), "--focal: expected either"),
    ):
        code, _, err = explain(capsys, world, *arguments, *small)
        assert code == 2 and word in err, err


def test_what_cannot_be_done_is_found_before_the_work(world, tmp_path, capsys, monkeypatch):
    def worked(*_, **__):
        raise AssertionError("worked")

    for place in ("ananet.twoview.match_photos", "ananet.io.images.read_image", "ananet.pruners.load"):
        monkeypatch.setattr(place, worked)
    (tmp_path / "file").write_text("")
    (tmp_path / "pose.txt").write_text("1 2 3")
    for arguments, word in (
        (("-o", tmp_path / "file"), "output: expected a folder, got the file"),
        (("--focal", 300, "--pose", tmp_path / "pose.txt"), "--pose: expected a text file with 12 or 16 numbers"),
        (("--focal", 300, "--pose", tmp_path / "none.txt"), "--pose: expected a text file with 12 or 16 numbers"),
    ):
        code, _, err = explain(capsys, world, "--pruner", "ratio", *arguments)
        assert code == 2 and word in err, err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = explain(capsys, world, "--pruner", "ratio")
    assert code == 2 and "pip install matplotlib" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["explain", "a.jpg", "b.jpg", "--pruner", "ratio"], "a.jpg: no such file"),
        (["data", "inspect", "pairs", "-o", "a.xyz"], "expected a picture file"),
        (["data", "build", "photos", "out", "--scales", "x"], "--scales: expected"),
        (["match", "a.jpg", "b.jpg"], "a.jpg: no such file"),
        (["match", "a.jpg", "b.jpg", "--save", "a.txt"], "--save: expected a file that ends in .npz or .csv"),
        (["match", "a.jpg", "b.jpg", "-o", "a.xyz"], "expected a picture file"),
        (["match", "--pairs", "list.txt"], "list.txt: no such file"),
        (["demo", "-o", "a.xyz"], "expected a picture file"),
    ],
)
def test_wrong_arguments_are_found_before_torch_is_imported(arguments, word, tmp_path):
    pytest.importorskip("matplotlib")
    code = (
        "import sys; from ananet.cli.main import main; code = main(sys.argv[1:]); print('torch' in sys.modules, code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert word in done.stderr and done.stdout.split() == ["False", "2"], done.stderr


def test_inspect_finds_what_is_missing_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["data", "inspect", str(tmp_path / "none"), "-o", str(tmp_path / "a.png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
