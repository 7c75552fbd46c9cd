"""hloc's formats as its files have them, and its matchers as its loader wants them: hloc itself is on no index."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import ananet
from ananet import InputError
from ananet.integrations import hloc
from tests.conftest import make_problem
from tests.datasets.test_sfm import write_views

h5py = pytest.importorskip("h5py")

EXAMPLE = Path(__file__).parents[2] / "examples" / "hloc_model.py"
NAMES = ("db/a_1.jpg", "query/b.jpg")


def write_features(path, images, kind=np.float32):
    """As hloc's extract_features writes them: images is name -> (keypoints, image size)."""
    with h5py.File(path, "a", libver="latest") as file:
        for name, (keypoints, size) in images.items():
            group = file.create_group(name)
            group.create_dataset("keypoints", data=keypoints.astype(kind))
            group.create_dataset("image_size", data=np.array(size))
            rng = np.random.default_rng(0)
            group.create_dataset("descriptors", data=rng.normal(size=(8, len(keypoints))).astype(kind))
            group.create_dataset("scores", data=np.ones(len(keypoints), kind))


def write_matches(path, pairs, kind=np.int16):
    """As hloc's match_features writes them: pairs is group -> matches0."""
    with h5py.File(path, "a", libver="latest") as file:
        for group, matches0 in pairs.items():
            created = file.create_group(group)
            created.create_dataset("matches0", data=np.asarray(matches0).astype(kind))
            created.create_dataset("matching_scores0", data=np.ones(len(matches0), np.float16))


@pytest.fixture
def files(problem, tmp_path):
    """500 matches between two images; every fifth keypoint of the first has none, and the second's are shuffled."""
    points0, points1 = problem.matches.numpy_points()
    order = np.random.default_rng(0).permutation(500)
    features, matches = tmp_path / "features.h5", tmp_path / "matches.h5"
    shuffled = np.empty_like(points1)
    shuffled[order] = points1
    write_features(features, {NAMES[0]: (points0, (640, 480)), NAMES[1]: (shuffled, (640, 480))})
    matches0 = np.where(np.arange(500) % 5 == 0, -1, order)
    write_matches(matches, {"db-a_1.jpg/query-b.jpg": matches0})
    return features, matches, matches0


def test_layout_of_the_answer(files, problem, tmp_path):
    features, matches, matches0 = files
    summary = hloc.prune_matches(features, matches, tmp_path / "pruned.h5")
    with h5py.File(tmp_path / "pruned.h5") as file:
        group = file["db-a_1.jpg/query-b.jpg"]
        assert set(group) == {"matches0", "matching_scores0"}
        found, scores = group["matches0"][()], group["matching_scores0"][()]
    assert found.dtype == np.int32 and scores.dtype == np.float16 and found.shape == scores.shape == (500,)
    kept = found >= 0
    np.testing.assert_array_equal(found[kept], matches0[kept])
    assert (found[~kept] == -1).all() and (scores[~kept] == 0).all() and (scores[kept] > 0.39).all()

    points0, points1 = problem.matches.numpy_points()
    matched = np.flatnonzero(matches0 >= 0)
    # The file holds float32.
    points = [each[matched].astype(np.float32) for each in (points0, points1)]
    expected = ananet.load()(*points, image_size0=(640, 480), image_size1=(640, 480))
    np.testing.assert_array_equal(np.flatnonzero(kept), matched[expected.mask])
    assert summary == hloc.Summary(pairs=1, matches=400, kept=int(kept.sum()), empty=0, doubtful=0)


def test_pairs_that_hardly_show_the_same_place(files, tmp_path):
    features, matches, matches0 = files
    shuffled = np.where(matches0 < 0, -1, np.random.default_rng(0).permutation(500))
    write_matches(matches, {"query-b.jpg/db-a_1.jpg": shuffled})
    output, listed = tmp_path / "pruned.h5", tmp_path / "pairs.txt"
    summary = hloc.prune_matches(features, matches, output, pruner="all", min_overlap=0.5, pairs=listed)
    assert (summary.pairs, summary.empty, summary.doubtful) == (2, 1, 1)
    assert listed.read_text() == "db/a_1.jpg query/b.jpg\n"
    with h5py.File(output) as file:
        assert (file["query-b.jpg/db-a_1.jpg/matches0"][()] == -1).all()
    with pytest.raises(InputError, match="min_overlap: expected a number from 0 to 1, got -1"):
        hloc.prune_matches(features, matches, output, min_overlap=-1)


def test_old_names_and_pairs_stored_the_other_way_round(files, tmp_path):
    features, _, matches0 = files
    back = np.full(500, -1)
    back[matches0[matches0 >= 0]] = np.flatnonzero(matches0 >= 0)
    write_matches(tmp_path / "old.h5", {"db-a_1.jpg_query-b.jpg": matches0, "query-b.jpg/db-a_1.jpg": back})
    hloc.prune_matches(features, tmp_path / "old.h5", tmp_path / "pruned.h5", pruner="lpm")
    with h5py.File(tmp_path / "pruned.h5") as file:
        assert set(file) == {"db-a_1.jpg_query-b.jpg", "query-b.jpg"}
        first = file["db-a_1.jpg_query-b.jpg/matches0"][()]
        second = file["query-b.jpg/db-a_1.jpg/matches0"][()]
    for found, given in ((first, matches0), (second, back)):
        assert 50 < (found >= 0).sum() < 400
        np.testing.assert_array_equal(found[found >= 0], given[found >= 0])


def test_indices_that_overflowed(tmp_path):
    """Index 40000 comes back from hloc's files as -25536."""
    rng = np.random.default_rng(0)
    write_features(tmp_path / "f.h5", {"a": (rng.random((3, 2)), (9, 9)), "b": (rng.random((40_001, 2)), (9, 9))})
    write_matches(tmp_path / "m.h5", {"a/b": np.array([40_000, -1, 7])})
    with pytest.warns(UserWarning, match="overflowed 16 bits and were repaired"):
        hloc.prune_matches(tmp_path / "f.h5", tmp_path / "m.h5", tmp_path / "p.h5", pruner="all")
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["a/b/matches0"][()].tolist() == [40_000, -1, 7]
    write_features(tmp_path / "f.h5", {"c": (rng.random((65_600, 2)), (9, 9))})
    write_matches(tmp_path / "n.h5", {"a/c": np.array([1, -1, 7])})
    with pytest.raises(InputError, match="do not fit the 16 bits"):
        hloc.prune_matches(tmp_path / "f.h5", tmp_path / "n.h5", tmp_path / "q.h5", pruner="all")
    assert not (tmp_path / "q.h5").exists()


def test_half_precision_is_told(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        write_features(tmp_path / "f.h5", {name: (rng.random((3, 2)) * 3000, (3000, 3000))}, np.float16)
    write_matches(tmp_path / "m.h5", {"a/b": [0, 1, 2]})
    with pytest.warns(UserWarning, match="half precision") as told:
        hloc.prune_matches(tmp_path / "f.h5", tmp_path / "m.h5", tmp_path / "p.h5", pruner="all", descriptors=True)
    assert len(told) == 1


def test_descriptors_tell_ratio_and_mutual_flag(files, tmp_path):
    features, matches, _ = files
    summary = hloc.prune_matches(features, matches, tmp_path / "p.h5", pruner="mutual", descriptors=True)
    # Both images have the same descriptors in the same order: the nearest neighbour of each is its namesake.
    with h5py.File(tmp_path / "p.h5") as file:
        found = file["db-a_1.jpg/query-b.jpg/matches0"][()]
    np.testing.assert_array_equal(found[found >= 0], np.flatnonzero(found >= 0))
    assert summary.kept == (found >= 0).sum() < 10


def test_features_in_two_files(files, tmp_path):
    _, matches, _ = files
    with h5py.File(files[0]) as file:
        for number, name in enumerate(NAMES):
            write_features(tmp_path / f"{number}.h5", {name: (file[name]["keypoints"][()], (640, 480))})
    summary = hloc.prune_matches(
        tmp_path / "0.h5", matches, tmp_path / "p.h5", reference=tmp_path / "1.h5", pruner="all"
    )
    assert summary.kept == 400


def test_wrong_files(files, tmp_path):
    features, matches, _ = files
    output = tmp_path / "p.h5"
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(InputError, match="not a readable HDF5 file"):
        hloc.prune_matches(tmp_path / "text.h5", matches, output)
    with pytest.raises(InputError, match="no such file"):
        hloc.prune_matches(features, tmp_path / "none.h5", output)
    with pytest.raises(InputError, match="is an input"):
        hloc.prune_matches(features, matches, matches)
    cases = {
        "other.jpg/query-b.jpg": ([0], "no images of that name"),
        "db-a_1.jpg/query-b.jpg": ([0, 1], "expected shape \\(500,\\)"),
        "query-b.jpg/db-a_1.jpg": ([500] * 500, "expected indices below 500"),
        "query-b.jpg/query-b.jpg": ([-7] * 500, "expected indices or -1"),
    }
    for number, (group, (matches0, message)) in enumerate(cases.items()):
        write_matches(tmp_path / f"wrong{number}.h5", {group: matches0})
        with pytest.raises(InputError, match=message):
            hloc.prune_matches(features, tmp_path / f"wrong{number}.h5", output)
    write_features(tmp_path / "twins.h5", {"a/b": (np.ones((1, 2)), (9, 9)), "a-b": (np.ones((1, 2)), (9, 9))})
    with pytest.raises(InputError, match="have the same name in hloc.s matches"):
        hloc.prune_matches(tmp_path / "twins.h5", matches, output)
    assert not output.exists() and not list(tmp_path.glob(".*"))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package with hloc's loader and the contract of its models."""
    (tmp_path / "hloc" / "utils").mkdir(parents=True)
    (tmp_path / "hloc" / "matchers").mkdir()
    for folder in ("", "utils", "matchers"):
        (tmp_path / "hloc" / folder / "__init__.py").touch()
    source = """
        import inspect
        from abc import ABCMeta, abstractmethod
        from torch import nn

        class BaseModel(nn.Module, metaclass=ABCMeta):
            default_conf = {}
            required_inputs = []

            def __init__(self, conf):
                super().__init__()
                self.conf = conf = {**self.default_conf, **conf}
                self._init(conf)

            def forward(self, data):
                for key in self.required_inputs:
                    assert key in data, key
                return self._forward(data)

            @abstractmethod
            def _init(self, conf): ...

            @abstractmethod
            def _forward(self, data): ...

        def dynamic_load(root, model):
            path = f"{root.__name__}.{model}"
            module = __import__(path, fromlist=[""])
            classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == path]
            classes = [c for c in classes if issubclass(c, BaseModel)]
            assert len(classes) == 1
            return classes[0]
    """
    (tmp_path / "hloc" / "utils" / "base_model.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "hloc"]:
        del sys.modules[name]


def test_hloc_loads_the_matcher(stand_in):
    hloc.register()
    from hloc import matchers
    from hloc.utils.base_model import dynamic_load

    problem = make_problem()
    model = dynamic_load(matchers, "ananet")({"name": "ananet", "pruner": "ananet"}).eval()
    points0, points1 = (torch.from_numpy(points).float() for points in problem.matches.numpy_points())
    descriptors = torch.randn(1, 16, 500, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    data = {
        "image0": torch.empty(1, 1, 480, 640),
        "image1": torch.empty(1, 1, 480, 640),
        "keypoints0": points0[None],
        "keypoints1": points1[order][None],
        "descriptors0": descriptors,
        "descriptors1": descriptors[:, :, order],
    }
    with torch.no_grad():
        answer = model(data)
    matches0, scores = answer["matches0"], answer["matching_scores0"]
    assert matches0.shape == scores.shape == (1, 500) and not matches0.is_floating_point()
    kept = matches0[0] >= 0
    assert (order[matches0[0, kept]] == torch.arange(500)[kept]).all()
    assert problem.inlier[kept].mean() > 0.9 and (scores[0, ~kept] == 0).all()
    data |= {"keypoints1": torch.zeros(1, 0, 2), "descriptors1": torch.zeros(1, 16, 0)}
    assert (model(data)["matches0"] == -1).all()


def test_the_matcher_sees_sizes_and_angles(problem):
    """SIFT of hloc has scales, which are radii, and angles in degrees."""
    points0, points1 = (torch.from_numpy(points).float() for points in problem.matches.numpy_points())
    descriptors = torch.eye(500)[None]
    data = {"image0": torch.empty(1, 1, 480, 640), "image1": torch.empty(1, 1, 480, 640)}
    data |= {"keypoints0": points0[None], "keypoints1": points1.flip(0)[None]}
    data |= {"descriptors0": descriptors, "descriptors1": descriptors.flip(-1)}
    data |= {f"scales{i}": torch.arange(1.0, 501)[None] for i in (0, 1)}
    data |= {f"oris{i}": torch.full((1, 500), 90.0) for i in (0, 1)}
    seen = []

    class Watching:
        def __call__(self, matches):
            seen.append(matches)
            return ananet.load("all")(matches)

    hloc.match_pair(data, Watching())
    hloc.match_pair({name: value for name, value in data.items() if name != "oris1"}, Watching())
    sizes = np.arange(2.0, 1001, 2)
    np.testing.assert_allclose(seen[0].keypoint_sizes0, sizes)
    np.testing.assert_allclose(seen[0].keypoint_sizes1, sizes[::-1])
    np.testing.assert_allclose(seen[0].angles(), np.pi / 2, rtol=1e-6)
    assert seen[1].angles() is None and seen[1].keypoint_sizes1 is not None


@pytest.mark.slow
def test_hlocs_own_pipeline(tmp_path):
    """The recipe of docs/pipelines.md with the real hloc: features, pairs, our matches, reconstruction."""
    if find_spec("hloc") is None:
        pytest.skip("hloc is not installed (github.com/cvg/Hierarchical-Localization, its folder in PYTHONPATH)")
    pytest.importorskip("pycolmap")
    photos = write_views(tmp_path / "photos", views=6)
    for path in list(photos.iterdir()):
        # hloc's lists of pairs have no names with spaces.
        path.rename(path.with_name(path.name.replace(" ", "-")))
    command = [sys.executable, str(EXAMPLE), str(photos), str(tmp_path / "output")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].startswith("ananet: 6 photos registered, "), done.stdout


def test_without_hloc(monkeypatch):
    monkeypatch.setitem(sys.modules, "hloc", None)
    with pytest.raises(ImportError, match="hloc is not installed"):
        hloc.register()
