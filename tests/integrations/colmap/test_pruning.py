"""COLMAP databases, pruned and matched in one transaction."""

import json
import multiprocessing
import re
import shutil
import sqlite3
import threading
import time
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from tqdm import tqdm

from ananet import load
from ananet.errors import InputError
from ananet.features import NearestNeighbours
from ananet.integrations.colmap import database as colmap_database
from ananet.integrations.colmap import match_database, prune_database, pruning, verify_database
from ananet.integrations.colmap.database import Pair, open_database
from ananet.pruners.base import Pruner
from tests.conftest import make_problem
from tests.datasets.scenes import write_scene
from tests.datasets.test_sfm import write_views
from tests.integrations.colmap.databases import Writer, geometries, stored_matches, synthesize, write_problem
from tests.twoview.test_collection import make_mug

ROOT = Path(__file__).parents[3]


class EveryOther(Pruner):
    """Keeps every second match, at leisure."""

    name = "every other"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def logits(self, matches):
        time.sleep(self.seconds)
        return torch.where(torch.arange(len(matches)) % 2 == 0, 1.0, -1.0)


def expected_indices(problem) -> np.ndarray:
    """What is kept by default, and so for a reconstruction, of a problem whose ratios nobody knows."""
    bare = problem.matches.replace(ratio=None, mutual=None)
    kept = np.flatnonzero(load(device="cpu")(bare).scores > 0.9)
    return np.stack([kept, kept], axis=1)


def test_a_database_is_pruned_in_place(problem, tmp_path):
    number = write_problem(tmp_path / "a.db", problem)
    summary = prune_database(tmp_path / "a.db", device="cpu")
    kept = stored_matches(tmp_path / "a.db")[number]
    np.testing.assert_array_equal(kept, expected_indices(problem))
    assert problem.inlier[kept[:, 0]].mean() > 0.9 and len(kept) > 200
    assert (summary.pairs, summary.before, summary.after, summary.dropped) == (1, 500, len(kept), 0)
    assert summary.pruner == "ananet@threshold=0.5"
    assert json.loads(json.dumps(asdict(summary)))["after"] == len(kept)
    assert summary.pairs_per_second > 0 and set(summary.seconds) == {"read", "prune", "write", "compare"}
    # A geometry of matches that are gone would mislead the mapper.
    assert geometries(tmp_path / "a.db") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_colmap_reads_what_was_written(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db")
    before = stored_matches(path)
    summary = prune_database(path, device="cpu")
    with pycolmap.Database.open(path) as database:
        assert database.num_matches() == summary.after < summary.before
        for number, kept in stored_matches(path).items():
            np.testing.assert_array_equal(database.read_matches(*pycolmap.pair_id_to_image_pair(number)), kept)
            assert {*map(tuple, kept)} < {*map(tuple, before[number])}


def test_a_second_run_changes_nothing(tmp_path):
    pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db")
    first = prune_database(path, device="cpu")
    content = path.read_bytes()
    second = prune_database(path, device="cpu")
    assert path.read_bytes() == content
    assert (second.skipped, second.before, second.after) == (second.pairs, first.after, first.after)


def test_matches_that_came_since_are_pruned(problem, tmp_path):
    number = write_problem(tmp_path / "a.db", problem)
    prune_database(tmp_path / "a.db", EveryOther())
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE matches SET rows = 100, data = substr(data, 1, 800)")
    connection.close()
    summary = prune_database(tmp_path / "a.db", EveryOther())
    assert (summary.skipped, summary.before, summary.after) == (0, 100, 50)
    # Another pruner starts where the first one ended.
    assert prune_database(tmp_path / "a.db", "all").skipped == 0
    assert len(stored_matches(tmp_path / "a.db")[number]) == 50


def test_an_output_leaves_the_database_alone(tmp_path):
    pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db")
    content = path.read_bytes()
    prune_database(path, EveryOther(), output=tmp_path / "b.db")
    assert path.read_bytes() == content
    prune_database(path, EveryOther())
    pruned, copied = stored_matches(path), stored_matches(tmp_path / "b.db")
    assert pruned.keys() == copied.keys() and all((pruned[n] == copied[n]).all() for n in pruned)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.db", "b.db"]
    # And once more, onto the output of the first time.
    prune_database(path, EveryOther(), output=tmp_path / "b.db")
    assert all((pruned[n] == kept).all() for n, kept in stored_matches(tmp_path / "b.db").items())


def test_an_output_that_is_in_use_is_refused(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem)
    with pytest.raises(InputError, match="is an input and would be overwritten"):
        prune_database(tmp_path / "a.db", "all", output=tmp_path / "a.db")
    (tmp_path / "b.db-wal").write_bytes(b"news of another database")
    with pytest.raises(InputError, match="b.db is open in another program"):
        prune_database(tmp_path / "a.db", "all", output=tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


def test_a_dry_run_writes_nothing(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem)
    content = (tmp_path / "a.db").read_bytes()
    dry = prune_database(tmp_path / "a.db", EveryOther(), dry_run=True, output=tmp_path / "b.db")
    assert (tmp_path / "a.db").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
    real = prune_database(tmp_path / "a.db", EveryOther())
    assert (dry.pairs, dry.before, dry.after, dry.dropped) == (real.pairs, real.before, real.after, real.dropped)


def test_a_pair_stored_the_other_way_round_keeps_the_same_matches(problem, tmp_path):
    plain = write_problem(tmp_path / "a.db", problem)
    swapped = write_problem(tmp_path / "b.db", problem, swap=True)
    assert swapped > plain
    for path in ("a.db", "b.db"):
        prune_database(tmp_path / path, device="cpu")
    np.testing.assert_array_equal(stored_matches(tmp_path / "a.db")[plain], stored_matches(tmp_path / "b.db")[swapped])


@pytest.mark.parametrize("shape", [(2.0, 0.1), (2.0, 0.0, 0.0, 2.0)], ids=["4 columns", "6 columns"])
def test_keypoints_of_more_columns_are_as_good(shape, problem, tmp_path):
    number = write_problem(tmp_path / "a.db", problem, shape=shape)
    prune_database(tmp_path / "a.db", device="cpu")
    np.testing.assert_array_equal(stored_matches(tmp_path / "a.db")[number], expected_indices(problem))


def test_without_cameras_right_matches_stay(problem, tmp_path):
    number = write_problem(tmp_path / "a.db", problem, camera=None)
    prune_database(tmp_path / "a.db", device="cpu")
    kept = stored_matches(tmp_path / "a.db")[number][:, 0]
    assert problem.inlier[kept].mean() > 0.8 and problem.inlier[kept].sum() > 200


def test_matches_out_of_a_lens_view_are_removed_and_counted(problem, tmp_path):
    fisheye = (5, 640, 480, (200.0, 200.0, 320.0, 240.0, 0.0, 0.0, 0.0, 0.0), 1)
    write_problem(tmp_path / "a.db", problem, camera=fisheye)
    summary = prune_database(tmp_path / "a.db", "all")
    assert 0 < summary.unseen == summary.before - summary.after


def test_matches_beside_the_view_of_networks_are_counted(problem, tmp_path):
    wide = (1, 640, 480, (100.0, 100.0, 320.0, 240.0), 1)  # a pinhole that sees 73 degrees to the side
    write_problem(tmp_path / "a.db", problem, camera=wide)
    beside = prune_database(tmp_path / "a.db", "ananet", device="cpu").unseen
    m = problem.matches._as_tensors()
    offsets = [(points - points.new_tensor([320, 240])).abs().max(dim=1).values for points in (m.points0, m.points1)]
    assert beside == (torch.maximum(*offsets) > 200).sum() > 0


def test_a_pair_that_keeps_too_little_is_dropped(tmp_path):
    number = write_problem(tmp_path / "a.db", make_problem(inliers=20, outliers=0))
    summary = prune_database(tmp_path / "a.db", EveryOther())
    assert (summary.after, summary.dropped) == (0, 1)
    # Its row stays: it tells COLMAP that the pair was tried.
    assert stored_matches(tmp_path / "a.db")[number].shape == (0, 2)
    assert geometries(tmp_path / "a.db") == {}
    assert prune_database(tmp_path / "a.db", EveryOther()).pairs == 0
    write_problem(tmp_path / "b.db", make_problem(inliers=20, outliers=0))
    assert prune_database(tmp_path / "b.db", EveryOther(), min_matches=10).after == 10
    # Stricter than before: what was pruned stays pruned, and is too little now.
    assert prune_database(tmp_path / "b.db", EveryOther(), min_matches=11).after == 0


def test_the_geometry_of_matches_that_stay_stays(problem, tmp_path):
    number = write_problem(tmp_path / "a.db", problem)
    assert prune_database(tmp_path / "a.db", "all").after == 500
    assert geometries(tmp_path / "a.db") == {number: 20}


def test_an_empty_database_is_no_error(tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    pycolmap.Database.open(tmp_path / "a.db").close()
    assert prune_database(tmp_path / "a.db", "all").pairs == 0
    assert match_database(tmp_path / "a.db", "all", verify=True).pairs == 0


def test_indices_beyond_the_keypoints_are_refused_and_nothing_is_written(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem)
    writer = Writer(tmp_path / "a.db", schema="")
    writer.matches(2, 2147483640, [[0, 0]])
    writer.matches(2, 1, [[0, 500]] * 20)
    writer.close()
    content = (tmp_path / "a.db").read_bytes()
    message = "/a.db: matches of images 2 and 1: expected keypoints below 500 of image 1, got 500"
    for output in (None, tmp_path / "b.db"):
        with pytest.raises(InputError, match=message):
            prune_database(tmp_path / "a.db", EveryOther(), output=output)
    assert (tmp_path / "a.db").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_damaged_file_is_refused(tmp_path):
    pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db")
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for length in rng.integers(1, len(content), 20):
        path.write_bytes(content[:length])
        try:
            prune_database(path, EveryOther())
        except InputError as error:
            refused += "a.db: " in str(error)
    assert refused == 20
    for _ in range(60):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), 200):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            prune_database(path, EveryOther())
        except InputError:
            refused += 1
    assert refused > 40


def test_a_locked_database_is_an_input_error(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(colmap_database, "LOCK_TIMEOUT", 0.05)
    write_problem(tmp_path / "a.db", problem)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for output in (None, tmp_path / "b.db"):
        with pytest.raises(InputError, match="a.db: another program is writing to this database"):
            prune_database(tmp_path / "a.db", EveryOther(), output=output)
    other.execute("ROLLBACK")
    other.close()
    assert prune_database(tmp_path / "a.db", EveryOther()).after == 250
    assert not (tmp_path / "b.db").exists()


def test_an_error_in_the_middle_leaves_the_database_as_it_was(tmp_path):
    pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db", num_frames_per_rig=12, num_points3D=500)

    class Failing(EveryOther):
        calls = 0

        def logits(self, matches):
            self.calls += 1
            if self.calls > 30:
                raise KeyboardInterrupt
            return super().logits(matches)

    before = stored_matches(path)
    with pytest.raises(KeyboardInterrupt):
        prune_database(path, Failing())
    after = stored_matches(path)
    assert all((before[number] == after[number]).all() for number in before)
    assert prune_database(path, EveryOther()).skipped == 0


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")
def test_a_killed_run_leaves_the_database_as_it_was_or_done(tmp_path):
    pytest.importorskip("pycolmap")
    original = synthesize(tmp_path / "original.db", num_frames_per_rig=8, num_points3D=1000)
    done, path = tmp_path / "done.db", tmp_path / "a.db"
    before = stored_matches(original)
    prune_database(original, EveryOther(), output=done)
    fork = multiprocessing.get_context("fork")
    # Its usual lock is shared through fork: a child that is killed while it holds it would never give it back.
    tqdm.set_lock(threading.RLock())

    def same(first, second) -> bool:
        return first.keys() == second.keys() and all(first[n].tobytes() == second[n].tobytes() for n in first)

    states = []
    for number, moment in enumerate(np.random.default_rng(0).uniform(0, 0.25, 10)):
        shutil.copy(original, path)
        process = fork.Process(target=prune_database, args=(path, EveryOther(0.005)))
        process.start()
        # Twice at the very end, where the transaction is written.
        time.sleep(moment if number < 8 else 0.18)
        process.kill()
        process.join()
        found = stored_matches(path)
        assert same(found, before) or same(found, stored_matches(done))
        states.append(same(found, before))
        assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        prune_database(path, EveryOther())
        assert same(stored_matches(path), stored_matches(done))
    assert any(states)


def test_memory_does_not_grow_with_the_database(tmp_path):
    resource = pytest.importorskip("resource")
    writer = Writer(tmp_path / "a.db")
    points = np.random.default_rng(0).uniform(0, 400, (20_000, 2))
    for _ in range(2):
        writer.image(points)
    indices = np.random.default_rng(1).integers(0, 20_000, (40_000, 2))
    for second in range(2, 302):
        if second > 2:
            writer.image(points[:1])
        # One keypoint is enough of an image: matches may be of the same.
        writer.matches(1, second, indices if second == 2 else indices * [1, 0])
    writer.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Pairs are compared with each other otherwise, which takes all of their matches.
    summary = prune_database(tmp_path / "a.db", EveryOther(), min_overlap=0)
    assert summary.before == 300 * 40_000 and summary.after == summary.before // 2
    # The matches alone are 96 MB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024


def test_pairs_that_hardly_show_the_same_place_lose_their_matches(problem, tmp_path):
    random = make_problem(inliers=0, outliers=200)
    numbers = [write_problem(tmp_path / f"{name}.db", each) for name, each in (("a", problem), ("b", random))]
    sure, doubted = (prune_database(tmp_path / f"{name}.db", "all", min_overlap=0.5) for name in "ab")
    assert not sure.doubtful and len(stored_matches(tmp_path / "a.db")[numbers[0]]) == 500
    (pair,) = doubted.doubtful
    assert pair.matches == 200 and pair.probability < 0.5 and pair.reason and doubted.after == 0
    assert (pair.name0, pair.name1) == tuple(image_names(tmp_path / "b.db").values())
    assert len(stored_matches(tmp_path / "b.db")[numbers[1]]) == 0
    with pytest.raises(InputError, match="min_overlap: expected a number from 0 to 1, got 2"):
        prune_database(tmp_path / "a.db", "all", min_overlap=2)


def image_names(path):
    with open_database(path) as database:
        return database.image_names()


def write_mug(path) -> None:
    """A database of the photos around a mug, whose opposite sides look alike."""
    keypoints, _, matches, _ = make_mug()
    writer = Writer(path)
    for points in keypoints.values():
        writer.image(points + 0.5)
    for (a, b), kept in matches.items():
        writer.matches(a + 1, b + 1, kept)
    writer.close()


@pytest.mark.parametrize("dry_run", [False, True])
def test_pairs_that_others_contradict_lose_their_matches(tmp_path, dry_run):
    write_mug(tmp_path / "mug.db")
    before = stored_matches(tmp_path / "mug.db")
    summary = prune_database(tmp_path / "mug.db", "all", min_overlap=0.01, dry_run=dry_run)
    contradicted = [pair for pair in summary.doubtful if pair.probability is None]
    assert len(contradicted) > 50 and all("degrees off" in pair.reason for pair in contradicted)
    after = stored_matches(tmp_path / "mug.db")
    lost = [number for number in before if len(before[number]) > len(after[number])]
    names = image_names(tmp_path / "mug.db")
    if dry_run:
        assert not lost
        return
    told = {(pair.name0, pair.name1) for pair in summary.doubtful}
    assert {tuple(names[image] for image in Pair.of(number)) for number in lost} == told
    assert summary.after == sum(map(len, after.values()))
    # Another call says the same.
    again = prune_database(tmp_path / "mug.db", "all", min_overlap=0.01)
    assert (again.after, again.skipped) == (summary.after, again.pairs)
    assert again.doubtful == summary.doubtful


@pytest.fixture(scope="module")
def extracted(tmp_path_factory) -> Path:
    """Features of rendered photos, by COLMAP."""
    pycolmap = pytest.importorskip("pycolmap")
    folder = tmp_path_factory.mktemp("colmap")
    write_scene(folder / "scene", images=4)
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features = 800
    options.use_gpu = False
    pycolmap.extract_features(
        folder / "a.db", folder / "scene" / "images", extraction_options=options, device=pycolmap.Device.cpu
    )
    return folder / "a.db"


def test_a_focal_length_that_colmap_guessed_is_not_believed(extracted):
    with open_database(extracted) as database:
        views = [database.view(image) for image in database.image_names()]
    assert all(view.K is None and view.image_size == (320, 240) and view.sizes is not None for view in views)


def test_matches_are_made_from_descriptors(extracted, tmp_path):
    pycolmap = pytest.importorskip("pycolmap")
    path = Path(shutil.copy(extracted, tmp_path / "a.db"))
    summary = match_database(path, device="cpu", verify=True)
    assert summary.pairs == 6 and summary.verified >= 3 and "match" in summary.seconds
    for kept in stored_matches(path).values():
        assert all(len(np.unique(column)) == len(column) for column in kept.T)
    with pycolmap.Database.open(path) as database:
        assert database.num_verified_image_pairs() == summary.verified
        numbers = [database.read_image_with_name(name).image_id for name in ("000.png", "001.png")]
        inliers = database.read_two_view_geometry(*numbers).inlier_matches
        assert len(inliers) > 0.5 * len(database.read_matches(*numbers)) > 50
    content = path.read_bytes()
    second = match_database(path, device="cpu", verify=True)
    assert path.read_bytes() == content and second.skipped == 6
    # They were pruned by the same pruner, if with more knowledge.
    assert prune_database(path, device="cpu").skipped == len([1 for kept in stored_matches(path).values() if len(kept)])


def image_numbers(path) -> dict[str, int]:
    with open_database(path) as database:
        return {name: number for number, name in database.image_names().items()}


def test_pairs_to_match_may_be_listed(extracted, tmp_path):
    path = Path(shutil.copy(extracted, tmp_path / "a.db"))
    (tmp_path / "pairs.txt").write_text("# two\n002.png 000.png\n\n000.png\t001.png\n000.png 001.png\n")
    assert match_database(path, "mutual", pairs=tmp_path / "pairs.txt").pairs == 2
    listed = stored_matches(path)
    numbers = image_numbers(path)
    pairs = [Pair(numbers["000.png"], numbers[other]).in_order.number for other in ("001.png", "002.png")]
    assert list(listed) == sorted(pairs)
    assert match_database(path, "ratio", pairs="existing").pairs == 2
    named = Path(shutil.copy(extracted, tmp_path / "b.db"))
    match_database(named, "mutual", pairs=[("001.png", "000.png")])
    np.testing.assert_array_equal(stored_matches(named)[pairs[0]], listed[pairs[0]])
    for line in ("000.png", "000.png 000.png", "000.png nowhere.png", "a b c"):
        (tmp_path / "pairs.txt").write_text(f"000.png 001.png\n{line}\n")
        with pytest.raises(InputError, match="pairs.txt, line 2: expected (the names of two images|two names)"):
            match_database(path, "mutual", pairs=tmp_path / "pairs.txt")


def test_new_matches_take_the_place_of_reversed_ones(extracted, tmp_path):
    path = Path(shutil.copy(extracted, tmp_path / "a.db"))
    writer = Writer(path, schema="")
    writer.matches(2, 1, [[0, 0]] * 30)
    writer.close()
    match_database(path, "mutual", pairs="existing")
    assert list(stored_matches(path)) == [2147483649]


def test_without_descriptors_there_is_nothing_to_match(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem)
    with pytest.raises(InputError, match="no descriptors in the database: extract features first"):
        match_database(tmp_path / "a.db", "mutual")


def test_pairs_with_an_image_without_descriptors_stay(extracted, tmp_path):
    path = Path(shutil.copy(extracted, tmp_path / "a.db"))
    writer = Writer(path, schema="")
    writer.connection.execute("DELETE FROM descriptors WHERE image_id = 1")
    writer.matches(1, 2, [[0, 0]] * 30)
    writer.close()
    assert match_database(path, "mutual", pairs="existing").pairs == 0
    assert match_database(path, "mutual").pairs == 3
    assert len(stored_matches(path)[2147483649]) == 30


def test_verification_alone(tmp_path):
    pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db")
    prune_database(path, "ananet@threshold=0.1", min_overlap=0, device="cpu")
    assert geometries(path) == {}
    assert verify_database(path) == 6 == len(geometries(path))


def test_the_recipe_runs(tmp_path, monkeypatch):
    pytest.importorskip("pycolmap")
    for photo in write_views(tmp_path / "photos", views=4).iterdir():
        cv2.imwrite(str(photo), cv2.resize(cv2.imread(str(photo)), None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    section = re.search(r"^## COLMAP\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert section is not None
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", section[1], re.DOTALL):
        exec(compile(block, "pipelines.md", "exec"), names)
    assert max(model.num_reg_images() for model in names["models"].values()) == 4


def test_batches_of_a_gpu_give_the_same(tmp_path, monkeypatch):
    """The way of a GPU, on a CPU."""
    pytest.importorskip("pycolmap")
    found = []
    for name, way in (("a.db", pruning._Job._on_all_cores), ("b.db", pruning._Job._on_gpu)):
        monkeypatch.setattr(pruning._Job, "_on_all_cores", way)
        path = synthesize(tmp_path / name)
        summary = match_database(path, "ratio@threshold=0.9", device="cpu")
        assert set(summary.seconds) == {"choose", "read", "match", "prune", "write", "compare"}
        found.append((stored_matches(path), summary.after, summary.unseen, summary.doubtful))
    (first, *counts), (second, *others) = found
    assert counts == others and first.keys() == second.keys()
    assert all(np.array_equal(first[number], second[number]) for number in first)


def test_a_preview_tries_pairs_from_all_over_the_database(tmp_path):
    writer = Writer(tmp_path / "a.db")
    images = [writer.image(np.random.default_rng(number).uniform(0, 400, (40, 2))) for number in range(6)]
    for first in images:
        for second in images[first:]:
            writer.matches(first, second, np.stack([np.arange(40)] * 2, axis=1))
    writer.close()
    content = (tmp_path / "a.db").read_bytes()
    with open_database(tmp_path / "a.db") as database:
        everything = [pair for pair, _ in database.matched_pairs()]
        assert len(everything) == 15 and [pair for pair, _ in database.matched_pairs(4)] == everything[3::4]
    summary = pruning.preview_pruning(tmp_path / "a.db", EveryOther(), device="cpu")
    assert (summary.pairs, summary.before, summary.after) == (15, 600, 300)
    assert (tmp_path / "a.db").read_bytes() == content


def test_easy_and_hopeless_pairs_show_a_network_less():
    """By their clear matches: mutual, with a ratio below 0.7."""
    ratio, mutual = np.tile([0.5, 0.9, 0.97, 0.5, 0.97], 400), np.tile([True, True, True, False, False], 400)

    def shown(clear, hopeless=2):
        rows = slice(None, 5 * clear)
        found = NearestNeighbours(np.arange(5 * clear), ratio[rows], mutual[rows])
        return pruning._worth_showing(found, hopeless)[:5].tolist()

    assert shown(clear=1) == [True, False, False, False, False]
    assert shown(clear=2) == shown(clear=399) == shown(clear=1, hopeless=0) == [True, True, True, True, False]
    assert shown(clear=400) == [True, True, False, False, False]
    assert shown(clear=1, hopeless=None) == shown(clear=400, hopeless=None) == [True, True, True, True, False]
