"""From photos to a model, in one call or in many that were killed."""

import json
import shutil
import sqlite3
import subprocess
import sys
from itertools import combinations

import cv2
import numpy as np
import pytest
import torch

from ananet.core import geometry
from ananet.errors import InputError
from ananet.integrations.colmap import build_model, match_database, parts
from ananet.integrations.colmap.database import open_database
from ananet.twoview import SamePlace
from tests.datasets.test_sfm import K, pose, render, texture, write_views
from tests.integrations.colmap.databases import geometries, stored_matches

pycolmap = pytest.importorskip("pycolmap")
FAST = {"pruner": "ratio", "max_keypoints": 1500, "device": "cpu", "cameras": "one"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_views(tmp_path_factory.mktemp("sfm") / "photos", views=6)


@pytest.fixture(scope="module")
def built(photos, tmp_path_factory):
    output = tmp_path_factory.mktemp("built") / "model"
    return build_model(photos, output, **FAST), output


def contents(path):
    """Keypoints by name of the photo, and the rows of the tables that are made of them."""
    queries = {
        "keypoints": "SELECT name, keypoints.data FROM images JOIN keypoints USING (image_id) ORDER BY name",
        "matches": "SELECT * FROM matches ORDER BY pair_id",
        "geometries": "SELECT * FROM two_view_geometries ORDER BY pair_id",
    }
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = {name: connection.execute(query).fetchall() for name, query in queries.items()}
    connection.close()
    return found


def rotation_errors(folder):
    model = pycolmap.Reconstruction(folder / "sparse" / "0")
    poses = {image.name: image.cam_from_world().rotation.matrix() for image in model.images.values()}
    for first, second in combinations(sorted(poses), 2):
        true = [torch.from_numpy(pose(int(name[5]))[0]) for name in (first, second)]
        found = torch.from_numpy(poses[second] @ poses[first].T)
        yield float(geometry.rotation_error(found, true[1] @ true[0].T))


def test_a_model_of_rendered_views(built):
    model, output = built
    names = [f"view {view}.jpg" for view in range(6)]
    assert (model.photos, model.registered, model.left_out, model.models) == (6, names, [], 1)
    assert model.pairs == 15 and 10 <= model.verified <= 15 and model.points > 200 and model.track_length > 2.5
    assert model.reprojection_error < 1 and "6 of 6 photos registered" in model.summary
    assert set(model.seconds) == {"features", "matches", "verification", "mapping"}
    assert max(rotation_errors(output)) < 1.5
    assert sorted(path.name for path in output.iterdir()) == [
        "database.db", "model.png", "report.json", "settings.json", "sparse",
    ]  # fmt: skip
    assert cv2.imread(str(output / "model.png")).shape[1] == 1448
    stored = json.loads((output / "report.json").read_text())
    assert stored.pop("state") and stored == json.loads(json.dumps(model.to_dict()))


def test_a_second_call_returns_what_is_there(built, photos):
    model, output = built
    # COLMAP counts in the database how often it was opened.
    files = {path: path.read_bytes() for path in output.rglob("*") if path.is_file() and path.suffix != ".db"}
    tables = contents(output / "database.db")
    again = build_model(photos, output, **FAST)
    assert json.dumps(again.to_dict()) == json.dumps(model.to_dict())
    assert all(path.read_bytes() == content for path, content in files.items())
    assert contents(output / "database.db") == tables


def test_a_model_that_was_removed_is_made_again(built, tmp_path, photos):
    shutil.copytree(built[1], tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "sparse")
    (tmp_path / "model" / ".mapping").mkdir()
    again = build_model(photos, tmp_path / "model", **FAST)
    assert again.registered == built[0].registered and again.folder == str(tmp_path / "model")
    assert (tmp_path / "model" / "sparse" / "0").is_dir() and not (tmp_path / "model" / ".mapping").exists()


def test_new_photos_are_added(photos, tmp_path):
    some = tmp_path / "some"
    shutil.copytree(photos, some)
    (some / "view 5.jpg").rename(tmp_path / "later.jpg")
    assert build_model(some, tmp_path / "model", **FAST).photos == 5
    before = stored_matches(tmp_path / "model" / "database.db")
    (tmp_path / "later.jpg").rename(some / "view 5.jpg")
    model = build_model(some, tmp_path / "model", **FAST)
    assert len(model.registered) == 6 and model.pairs == 15
    after = stored_matches(tmp_path / "model" / "database.db")
    assert len(after) == 15 and all((after[number] == kept).all() for number, kept in before.items())
    (some / "view 0.jpg").unlink()
    with pytest.raises(InputError, match="view 0.jpg was there when the model was begun"):
        build_model(some, tmp_path / "model", **FAST)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_any_time_it_goes_on(built, photos, tmp_path):
    """Killed after 1, 2, 3, ... seconds, until it is through before that."""
    command = [sys.executable, "-m", "ananet", "sfm", str(photos), "-o", str(tmp_path / "model"), "--pruner", "ratio"]
    command += ["--max-keypoints", "1500", "--device", "cpu", "--cameras", "one", "--json"]
    kills, seconds = 0, 0.5
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            out, _ = process.communicate(timeout=seconds)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills, seconds = kills + 1, seconds + 0.5
    assert process.returncode == 0 and kills >= 3
    assert len(json.loads(out)["registered"]) == 6
    killed, whole = tmp_path / "model", built[1]
    assert sorted(path.name for path in killed.iterdir()) == sorted(path.name for path in whole.iterdir())
    a, b = contents(killed / "database.db"), contents(whole / "database.db")
    # COLMAP numbers photos as they come out of its threads.
    assert a["keypoints"] == b["keypoints"] and len(a["matches"]) == len(b["matches"]) == 15
    assert len(geometries(killed / "database.db")) == len(geometries(whole / "database.db"))
    assert max(rotation_errors(killed)) < 1.5


def test_parts_are_committed(photos, tmp_path, monkeypatch, built):
    """What was matched before an error is not matched again."""
    shutil.copy(built[1] / "database.db", tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as connection:
        for table in ("matches", "two_view_geometries", "ananet_pruned"):
            connection.execute(f"DELETE FROM {table}")
    connection.close()
    monkeypatch.setattr(parts, "SECONDS_PER_PART", 0.0)

    class Fails:
        calls = 0

        def __call__(self, matches, kept, *keypoints):
            self.calls += 1
            if self.calls == 8:
                raise KeyboardInterrupt
            return SamePlace(1.0, ())

    monkeypatch.setattr("ananet.integrations.colmap.pruning.judge_pair", Fails())
    with pytest.raises(KeyboardInterrupt):
        match_database(tmp_path / "a.db", "ratio", in_parts=True, device="cpu")
    assert 1 <= len(stored_matches(tmp_path / "a.db")) < 15
    summary = match_database(tmp_path / "a.db", "ratio", in_parts=True, device="cpu")
    assert summary.pairs == 15 and summary.skipped >= 1


def test_doubtful_pairs_are_dropped_and_remembered(built, tmp_path):
    """Matches of a pair that agree on nothing: those of a photo with keypoints somewhere else."""
    shutil.copy(built[1] / "database.db", tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as connection:
        rows, width, data = connection.execute("SELECT rows, cols, data FROM keypoints WHERE image_id = 1").fetchone()
        keypoints = np.frombuffer(data, np.float32).reshape(rows, width).copy()
        np.random.default_rng(0).shuffle(keypoints)
        connection.execute("UPDATE keypoints SET data = ? WHERE image_id = 1", (keypoints.tobytes(),))
        connection.execute("DELETE FROM ananet_pruned")
        ((name,),) = connection.execute("SELECT name FROM images WHERE image_id = 1").fetchall()
    connection.close()
    for _ in range(2):
        summary = match_database(tmp_path / "a.db", "ratio", min_overlap=0.7, device="cpu")
        assert summary.doubtful and all(name in pair[:2] for pair in summary.doubtful)
    assert summary.skipped == 15
    with open_database(tmp_path / "a.db") as database:
        assert all(database.read_matches(pair) == b"" for pair in database.doubtful_pairs())
    assert match_database(tmp_path / "a.db", "ratio", min_overlap=0, device="cpu").doubtful == []


@pytest.mark.parametrize(
    "options", [{"verify": "colmap"}, {"mapper": "global"}, {"pairs": "sequential", "cameras": "each"}]
)
def test_other_ways(options, photos, tmp_path):
    model = build_model(photos, tmp_path / "model", **FAST | options)
    assert len(model.registered) == 6 and max(rotation_errors(tmp_path / "model")) < 3


def test_cameras_by_exif(tmp_path):
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for view in range(4):
        image = Image.fromarray(render(*pose(view)))
        exif = Image.Exif()
        if view < 3:
            # FocalLengthIn35mmFilm.
            exif.get_ifd(0x8769)[0xA405] = round(K[0, 0] / 360 * 36)
        image.save(tmp_path / "photos" / f"view {view}.jpg", quality=95, exif=exif)
    build_model(tmp_path / "photos", tmp_path / "model", **FAST | {"cameras": "auto"})
    with sqlite3.connect(tmp_path / "model" / "database.db") as connection:
        cameras = [camera for (camera,) in connection.execute("SELECT camera_id FROM images ORDER BY name")]
    connection.close()
    assert len(set(cameras[:3])) == 1 and cameras[3] not in cameras[:3]


def test_photos_that_do_not_overlap(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), texture(number, 300, 200))
    with pytest.raises(InputError, match="too few matched pairs: 0 of 3"):
        build_model(tmp_path / "photos", tmp_path / "model", **FAST)
    for number in range(3):
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), np.full((100, 100), 50 * number, np.uint8))
    with pytest.raises(InputError, match="too few features: 3 of 3"):
        build_model(tmp_path / "photos", tmp_path / "other", **FAST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": "some"}, "cameras: expected one of auto, one, each, got 'some'"),
        ({"mapper": "fast"}, "mapper: expected one of incremental, global, got 'fast'"),
        ({"verify": "no"}, "verify: expected poselib or colmap, got 'no'"),
        ({"verify": False}, "verify: expected poselib or colmap, got False"),
        ({"max_keypoints": 0}, "max_keypoints: expected"),
        ({"longest_side": 0.5}, "longest_side: expected"),
        ({"pairs": "none.txt"}, "pairs: expected all, auto, existing, sequential or a text file .*, got 'none.txt'"),
        ({"pruner": "anet"}, "anet"),
        ({"device": "tpu"}, "device: expected"),
    ],
)
def test_wrong_options_are_named(options, message, photos, tmp_path):
    with pytest.raises(InputError, match=message):
        build_model(photos, tmp_path / "model", **FAST | options)
    assert not (tmp_path / "model").exists()


def test_outputs_are_checked(photos, built, tmp_path):
    for output in (photos, photos / "model"):
        with pytest.raises(InputError, match="output: expected a folder outside that of the photos"):
            build_model(photos, output, **FAST)
    with pytest.raises(InputError, match="output: the folder .* does not exist"):
        build_model(photos, tmp_path / "none" / "model", **FAST)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="output: expected an empty folder or one of an earlier call"):
        build_model(photos, tmp_path, **FAST)
    with pytest.raises(InputError, match="max_keypoints: .* was begun with 1500, got 9; choose another output"):
        build_model(photos, built[1], **FAST | {"max_keypoints": 9})


@pytest.fixture
def program():
    """COLMAP's own program, such as Debian's of version 3: gives what it prints."""
    path = shutil.which("colmap")
    if path is None:
        pytest.skip("the program colmap is not installed (apt-get install colmap)")

    def run(*arguments):
        command = [path, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    return run


def mapped(program, database, photos, models):
    """Registered images and points of the largest model that the program makes of a database."""
    models.mkdir()
    program(
        *("mapper", "--database_path", database, "--image_path", photos, "--output_path", models),
        *("--Mapper.min_model_size", 3, "--Mapper.extract_colors", 0),
    )
    said = program("model_analyzer", "--path", models / "0").splitlines()
    lines = dict(line.split(": ")[-2:] for line in said if ": " in line)
    return int(lines["Registered images"]), int(lines["Points"])


@pytest.mark.slow
def test_colmaps_own_program_maps_what_we_wrote(program, built, tmp_path):
    """Its mapper starts from our database, and finds the same."""
    path = tmp_path / "a.db"
    write_as_version_3(built[1] / "database.db", path)
    registered, points = mapped(program, path, tmp_path, tmp_path / "models")
    assert registered == 6 and points > 0.7 * built[0].points


@pytest.mark.slow
def test_colmaps_own_program_before_and_after_us(program, photos, tmp_path):
    """Its features, our matches and geometries in its database, its mapper."""
    path = tmp_path / "a.db"
    program(
        *("feature_extractor", "--database_path", path, "--image_path", photos, "--ImageReader.single_camera", 1),
        *("--SiftExtraction.use_gpu", 0, "--SiftExtraction.max_num_features", 1500),
    )
    assert match_database(path, "ratio", verify=True, device="cpu").verified >= 10
    registered, points = mapped(program, path, photos, tmp_path / "models")
    assert registered == 6 and points > 300


def write_as_version_3(source, target):
    """The features, matches and geometries of a database in the tables of COLMAP 3."""
    from tests.integrations.colmap.databases import Writer

    writer = Writer(target)
    writer.connection.execute("ATTACH ? AS given", (str(source),))
    for table in ("cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries"):
        own = [row[1] for row in writer.connection.execute(f"PRAGMA main.table_info({table})")]
        given = {row[1] for row in writer.connection.execute(f"PRAGMA given.table_info({table})")}
        columns = ", ".join(name for name in own if name in given)
        writer.connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM given.{table}")
    writer.close()
