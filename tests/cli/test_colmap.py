"""`ananet colmap`."""

import json
import shutil
import subprocess
import sys

import pytest

from ananet.cli.colmap import _doubtful_table
from ananet.integrations.colmap import Doubtful
from tests.integrations.colmap.databases import stored_matches, synthesize, write_problem

FAST = ("--device", "cpu", "--pruner", "lpm", "--prune")


@pytest.fixture
def database(problem, tmp_path):
    write_problem(tmp_path / "a.db", problem)
    return tmp_path / "a.db"


def test_a_database_is_pruned_in_place(database, run):
    code, out, err = run("colmap", database, "--prune", "--device", "cpu")
    kept = sum(map(len, stored_matches(database).values()))
    assert code == 0 and err == "" and 250 < kept < 350
    assert out.startswith("ananet@threshold=0.5: 1 pair, ")
    assert f" 500 matches before and {kept} after, 0 pairs dropped, " in out
    assert f" pairs/s, written to {database}\n" in out
    assert out.endswith(
        "1 two-view geometries of old matches removed: the mapper needs new ones, from --verify or COLMAP\n"
    )
    code, out, _ = run("colmap", database, "--prune", "--device", "cpu")
    assert code == 0 and f"{kept} matches before and {kept} after" in out and "1 pair pruned before" in out


def test_pairs_that_may_not_show_the_same_place(database, tmp_path, run):
    copy = ("colmap", database, "--prune", "--device", "cpu", "-o", tmp_path / "b.db", "--min-overlap", 1)
    code, out, _ = run(*copy)
    assert code == 0 and "1 pair dropped that may not show the same place:\nfirst" in out
    assert "probability  why" in out and not any(map(len, stored_matches(tmp_path / "b.db").values()))
    (pair,) = json.loads(run(*copy, "--json")[1])["pairs_doubtful"]
    assert set(pair) == {"first", "second", "matches", "probability", "why"} and pair["probability"] > 0.9
    assert _doubtful_table([Doubtful("a", "b", n, 0.1, "few") for n in range(30)]).count("\n") == 21


def test_json(database, tmp_path, run):
    code, out, _ = run("colmap", database, *FAST, "-o", tmp_path / "b.db", "--json", "--min-matches", 400)
    found = json.loads(out)
    assert code == 0 and found["output"] == str(tmp_path / "b.db") and found["pruner"] == "lpm"
    assert (found["pairs"], found["pairs_dropped"], found["pairs_skipped"]) == (1, 1, 0)
    assert (found["matches_before"], found["matches_after"], found["pairs_verified"]) == (500, 0, None)
    assert found["pairs_per_second"] > 0 and {"read", "prune", "write"} <= set(found["seconds"])


def test_a_dry_run(database, run):
    content = database.read_bytes()
    code, out, _ = run("colmap", database, *FAST, "--dry-run")
    assert code == 0 and out.endswith(", nothing written\n") and database.read_bytes() == content
    assert json.loads(run("colmap", database, *FAST, "--dry-run", "--json")[1])["output"] is None


def test_before_pruning_it_says_what_that_is_worth(database, run):
    content = database.read_bytes()
    code, _, err = run("colmap", database, "--pruner", "all", "--device", "cpu")
    assert code == 2 and "would remove 0% of 500 matches (1 pair tried)) or --match" in err
    assert database.read_bytes() == content


def test_match_and_verify(tmp_path, run):
    pytest.importorskip("pycolmap")
    path = synthesize(tmp_path / "a.db")
    (tmp_path / "pairs.txt").write_text("camera000001_frame000000.png camera000001_frame000001.png\n")
    for pairs, count in ((["--match"], 6), (["--pairs", "existing"], 6), (["--pairs", tmp_path / "pairs.txt"], 1)):
        shutil.copy(path, tmp_path / "b.db")
        code, out, err = run("colmap", tmp_path / "b.db", *pairs, "--verify", "--device", "cpu", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found["pairs"] == count and found["pairs_verified"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a.db: has matches of another program; choose --prune (only prune what is there: would remove "),
        (["--prune", "--pairs", "all"], "--pairs: expected with --match, got --pairs all with --prune"),
        (["--prune", "--min-matches", "-1"], "min_matches: expected"),
        (["--prune", "--min-overlap", "1.5"], "--min-overlap: expected a number from 0 to 1, got 1.5"),
        (["--match"], "no descriptors in the database"),
        (["--prune", "--pruner", "nonsense"], "pruner: expected one of"),
        (["-o", "nowhere/b.db"], "output: the folder nowhere does not exist"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, database, run):
    content = database.read_bytes()
    code, out, err = run("colmap", database, *arguments)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert database.read_bytes() == content


def test_a_database_without_images_is_one_line(tmp_path, run):
    pytest.importorskip("pycolmap").Database.open(tmp_path / "a.db").close()
    for mode in ([], ["--match"], ["--prune"]):
        code, out, err = run("colmap", tmp_path / "a.db", *mode)
        assert code == 2 and out == "" and err.endswith("a.db: no images in the database: extract features first\n")


def test_what_is_no_database_is_one_line(tmp_path, run):
    (tmp_path / "a.db").write_text("hello " * 1000)
    code, _, err = run("colmap", tmp_path / "a.db")
    assert code == 2 and "a.db: not a readable COLMAP database (file is not a database)\n" in err
    code, _, err = run("colmap", tmp_path / "none.db")
    assert code == 2 and err.endswith("none.db: no such file\n") and not (tmp_path / "none.db").exists()


def test_wrong_paths_are_refused_before_torch_is_imported(database):
    code = (
        "import sys; from ananet.cli.main import main\n"
        "wrong = ['none.db'], ['a.db', '-o', 'a.db'], ['a.db', '--prune', '--pairs', 'all']\n"
        "codes = [main(['colmap', *arguments]) for arguments in wrong]\n"
        "assert codes == [2, 2, 2] and 'torch' not in sys.modules, codes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=database.parent, capture_output=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_sigterm_leaves_nothing_behind(database):
    pytest.importorskip("pycolmap")
    content = database.read_bytes()
    code = (
        "import sys, time\n"
        "from ananet.cli.main import main\n"
        "from ananet.integrations.colmap import verification\n"
        "def wait(*_):\n    print('working', flush=True)\n    time.sleep(200)\n"
        "verification._take_geometries = wait\n"
        f"sys.exit(main(['colmap', {str(database)!r}, '--verify', 'colmap', *{FAST}]))\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "working\n"
        process.terminate()
        _, err = process.communicate()
    # COLMAP would print the stack of its own code.
    assert process.returncode == 143 and err == "terminated\n"
    assert database.read_bytes() == content and list(database.parent.iterdir()) == [database]


def test_a_bar_on_a_terminal(database, monkeypatch, run):
    assert run("colmap", database, *FAST, "--dry-run")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = run("colmap", database, *FAST, "--dry-run")
    assert code == 0 and "1/1" in err and "lpm" in err


def test_real_photos(photos, tmp_path, run):
    pycolmap = pytest.importorskip("pycolmap")
    options = pycolmap.FeatureExtractionOptions()
    options.sift.max_num_features = 600
    path = tmp_path / "a.db"
    names = ["a.jpg", "b.jpg", "other.jpg"]
    pycolmap.extract_features(path, photos, names, extraction_options=options, device=pycolmap.Device.cpu)
    # A database without matches, or with ours alone, is matched unless told otherwise.
    code, out, err = run("colmap", path, "--verify", "--device", "cpu", "--json")
    assert code == 0, err
    found, again = json.loads(out), json.loads(run("colmap", path, "--device", "cpu", "--json")[1])
    assert again["pairs_skipped"] == 3 and again["matches_after"] == found["matches_after"]
    # The third photo shows nothing of what the others show.
    assert (found["pairs"], found["pairs_dropped"], found["pairs_verified"]) == (3, 2, 1)
    with pycolmap.Database.open(path) as database:
        numbers = [database.read_image_with_name(name).image_id for name in names[:2]]
        assert len(database.read_two_view_geometry(*numbers).inlier_matches) > 100
