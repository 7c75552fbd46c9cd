import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from ananet import InputError
from ananet.io.npz import MAX_BYTES, MAX_MATCHES, read_matches
from ananet.pruners import progress as progress_module

POINTS = np.random.default_rng(0).uniform(0, 600, (40, 2))


def test_prune_a_file(problem, tmp_path, run):
    p0, p1 = problem.matches.numpy_points()
    np.savez(tmp_path / "m.npz", points0=p0, points1=p1, K0=problem.matches.K0, K1=problem.matches.K1)
    code, out, _ = run("prune", tmp_path / "m.npz", "--pruner", "magsac", "--json")
    assert code == 0
    result = json.loads(out)
    stored = np.load(tmp_path / "m.pruned.npz")
    assert stored["mask"].sum() == result["kept"]
    assert stored["scores"].dtype == np.float32
    assert problem.inlier[stored["mask"]].mean() > 0.9
    code, out, _ = run("prune", tmp_path / "m.npz", "-o", tmp_path / "x.npz")
    assert code == 0 and "kept" in out


def test_motions_are_stored(problem, tmp_path, run):
    p0, p1 = problem.matches.numpy_points()
    np.savez(tmp_path / "m.npz", points0=p0, points1=p1, K0=problem.matches.K0, K1=problem.matches.K1)
    code, out, _ = run("prune", tmp_path / "m.npz", "--pruner", "magsac", "--motions", "--json")
    assert code == 0
    motions = json.loads(out)["motions"]
    stored = np.load(tmp_path / "m.pruned.npz")
    assert motions["count"] == 1 and motions["motions"][0]["kind"] == "essential"
    assert (stored["motions"] == 0).sum() == motions["motions"][0]["support"]
    assert (stored["motions"][~stored["mask"]] == -1).all()
    code, out, _ = run("prune", tmp_path / "m.npz", "--pruner", "magsac", "--motions")
    assert code == 0 and "motions  1: " in out


def test_everything_that_matches_can_have_is_read(problem, tmp_path, run):
    m, n = problem.matches, len(problem.matches)
    np.savez(
        tmp_path / "m.npz",
        points0=m.points0,
        points1=m.points1,
        K0=m.K0,
        K1=m.K1,
        image_size0=m.image_size0,
        image_size1=m.image_size1,
        ratio=m.ratio,
        mutual=m.mutual,
        scores=np.ones(n),
        keypoint_sizes0=np.ones(n),
        keypoint_sizes1=np.ones(n),
        angles0=np.zeros(n),
        angles1=np.zeros(n),
        indices=np.zeros((n, 2), int),
    )
    code, out, _ = run("prune", tmp_path / "m.npz", "--pruner", "ratio@threshold=0.7", "--json")
    result = json.loads(out)
    assert code == 0 and result["pruner"] == "ratio@threshold=0.7"
    assert result["kept"] == int((m.mutual & (m.ratio < 0.7)).sum())


def test_prune_wrong_files(tmp_path, run):
    def write(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npz.npy", np.zeros(3))
    points = np.zeros((5, 2))
    for path, message in [
        (tmp_path / "none.npz", "no such file"),
        (tmp_path / "empty.npz", "not a readable .npz"),
        (tmp_path / "text.npz", "not a readable .npz"),
        (tmp_path / "array.npz.npy", "got a single array"),
        (write("less.npz", points0=points), "expected arrays points0, points1"),
        (
            write("more.npz", points0=points, points1=points, colour=points),
            "unknown array colour: expected arrays points0, ",
        ),
        (
            write("pickle.npz", points0=np.array([{}], dtype=object), points1=points),
            "points0: expected real numbers, got an array of Py",
        ),
        (write("nan.npz", points0=points * np.nan, points1=points), "points0: expected finite"),
        (
            write("half.npz", points0=points, points1=points, keypoint_sizes0=np.ones(5)),
            "keypoint_sizes0 and keypoint_sizes1: expected both",
        ),
    ]:
        code, _, err = run("prune", path)
        assert code == 2, path
        assert message in err and err.count("\n") == 1
    assert not list(tmp_path.glob("*.pruned.npz"))


def test_prune_no_matches(tmp_path, run):
    np.savez(tmp_path / "m.npz", points0=np.zeros((0, 2)), points1=np.zeros((0, 2)))
    assert run("prune", tmp_path / "m.npz")[0] == 0


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(shape: str, kind: str = "<f8") -> bytes:
    """An array that holds a few numbers, and says that it has this shape."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


def archive(entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        for name, data in entries:
            written.writestr(name, data)
    return file.getvalue()


def with_flag(data: bytes, offsets: tuple[int, int], value: int) -> bytes:
    """The archive with one number of every entry's two headers replaced."""
    changed = bytearray(data)
    for signature, offset in zip((b"PK\3\4", b"PK\1\2"), offsets, strict=True):
        start = -1
        while (start := changed.find(signature, start + 1)) >= 0:
            changed[start + offset] = value
    return bytes(changed)


GOOD = [("points0.npy", npy(POINTS)), ("points1.npy", npy(POINTS + 1))]
DEFLATED = archive(GOOD, zipfile.ZIP_DEFLATED)
CORRUPT = {
    "zlib": (DEFLATED[:41] + b"\xff" * 20 + DEFLATED[61:], "not a readable .npz file"),
    "compression": (with_flag(DEFLATED, (8, 10), 99), "points0: expected compression as numpy's, got type 99"),
    "lzma": (archive(GOOD, zipfile.ZIP_LZMA), "points0: expected compression as numpy's, got type 14"),
    "encrypted": (with_flag(DEFLATED, (6, 8), 1), "points0: expected a plain array, got an encrypted one"),
    "rows": (archive([("points0.npy", claiming("(1000000000000, 2)")), GOOD[1]]), "at most 50,000,000 rows"),
    "columns": (
        archive([("points0.npy", claiming("(2, 1000000000000)")), GOOD[1]]),
        "points0: expected data for shape",
    ),
    "negative": (archive([("points0.npy", claiming("(-4, 2)")), GOOD[1]]), "points0: expected a shape, got (-4, 2)"),
    "short": (archive([("points0.npy", claiming("(40, 2)")), GOOD[1]]), "points0: expected data for shape (40, 2)"),
    "long": (archive([("points0.npy", claiming("(1, 2)")), GOOD[1]]), "points0: expected 16 bytes of data, got more"),
    "truncated": (DEFLATED[:-30], "not a readable .npz file"),
    "half": (archive(GOOD)[:700], "not a readable .npz file"),
    "text": (archive([("points0.npy", npy(np.array([["a", "b"]]))), GOOD[1]]), "real numbers, got an array of <U1"),
    "complex": (archive([("points0.npy", npy(POINTS * 1j)), GOOD[1]]), "real numbers, got an array of complex"),
    "fields": (archive([("points0.npy", npy(np.zeros(4, [("x", float)]))), GOOD[1]]), "real numbers, got an array"),
    "dates": (archive([("points0.npy", npy(np.zeros((4, 2), "M8[s]"))), GOOD[1]]), "real numbers, got an array"),
    "camera": (
        archive([*GOOD, ("K0.npy", npy(np.zeros((400, 2))))]),
        "K0: expected 9 numbers, got an array of shape (400",
    ),
    "no array": (archive([("points0.npy", b"hello"), GOOD[1]]), "not a readable .npz file"),
    "nested": (archive([("points0.npy", claiming("(" * 60)), GOOD[1]]), "not a readable .npz file"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_files_are_refused_in_one_line(name, tmp_path, run):
    data, message = CORRUPT[name]
    (tmp_path / "m.npz").write_bytes(data)
    code, _, err = run("prune", tmp_path / "m.npz")
    assert code == 2 and message in err and err.count("\n") == 1, err


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_comes_twice_is_refused(tmp_path, run):
    for name in ("points0.npy", "points0"):
        (tmp_path / "m.npz").write_bytes(archive([*GOOD, (name, GOOD[0][1])]))
        code, _, err = run("prune", tmp_path / "m.npz")
        assert code == 2 and "expected every array once, got points0 more than once" in err


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_unread(tmp_path, run):
    piece = bytes(2**20)
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as written:
        written.writestr(*GOOD[1])
        with written.open("points0.npy", "w", force_zip64=True) as entry:
            entry.write(npy(np.zeros((MAX_MATCHES + 1, 2), np.float16))[:128])
            for _ in range(16):
                entry.write(piece)
    code, _, err = run("prune", path)
    assert code == 2 and f"at most {MAX_MATCHES:,} rows, got shape (50,000,001, 2)" in err
    # The size in the list of entries, 5.3 GB in place of 40 matches.
    data = bytearray(DEFLATED)
    at = data.find(b"PK\1\2")
    data[at + 24 : at + 28] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)
    code, _, err = run("prune", path)
    assert code == 2 and f"at most {MAX_BYTES:,} bytes of arrays, got 4,294,9" in err


def test_a_folder_is_no_file(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    for folder in (".", "..", tmp_path, "/"):
        code, _, err = run("prune", folder)
        assert code == 2 and "expected a file, got a folder" in err


def test_answers_stored_beside_the_matches_are_ignored(tmp_path, run):
    answers = {"mask": np.ones(40, bool), "logits": np.ones(40), "R": np.eye(3), "t": np.ones(3), "scores": np.ones(40)}
    np.savez(tmp_path / "m.npz", points0=POINTS, points1=POINTS, **answers)
    matches = read_matches(tmp_path / "m.npz")
    assert len(matches) == 40 and matches.scores is not None
    assert run("prune", tmp_path / "m.npz", "--pruner", "all")[0] == 0


@pytest.mark.parametrize("kind", ["<f8", ">f8", "<f4", "<f2", "<i2", ">u4", "|u1", "<g"])
def test_numbers_of_every_kind_and_order_are_read(kind, tmp_path):
    points = POINTS.round().clip(0, 255).astype(kind)
    np.savez_compressed(tmp_path / "m.npz", points0=np.asfortranarray(points), points1=points)
    found = read_matches(tmp_path / "m.npz")
    np.testing.assert_array_equal(found.points0, points.astype(float))
    np.testing.assert_array_equal(found.points1, points.astype(float))


def test_wrong_files_are_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "m.npz").write_bytes(CORRUPT["text"][0])
    np.savez(tmp_path / "good.npz", points0=POINTS, points1=POINTS)
    code = (
        "import sys; from ananet.cli.main import main\n"
        "wrong = ['m.npz'], ['none.npz'], ['good.npz', '-o', 'no/a.npz']\n"
        "codes = [main(['prune', *arguments]) for arguments in wrong]\n"
        "assert codes == [2, 2, 2] and 'torch' not in sys.modules, codes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The same bytes but for some that were changed, cut out, doubled or put elsewhere."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        at, length = int(rng.integers(len(changed))), int(rng.integers(1, 40))
        kind = rng.integers(6)
        if kind == 0:
            changed[at] = rng.integers(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.integers(8)
        elif kind == 2:
            changed[at : at + length] = rng.bytes(length)
        elif kind == 3:
            del changed[at : at + length]
        elif kind == 4:
            changed[at:at] = changed[at : at + length]
        else:
            digits = [i for i, byte in enumerate(changed) if 48 <= byte <= 57]
            changed[digits[int(rng.integers(len(digits)))]] = rng.integers(48, 58)
        if len(changed) < 2:
            break
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path):
    resource = pytest.importorskip("resource")
    small = [("points0.npy", npy(POINTS[:4])), ("points1.npy", npy(POINTS[:4])), ("K0.npy", npy(np.eye(3)))]
    seeds = [archive(small), archive(small, zipfile.ZIP_DEFLATED), archive(small[:2])]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = []
    for number in range(600):
        path = tmp_path / "m.npz"
        path.write_bytes(damaged(seeds[number % 3], np.random.default_rng(number)))
        try:
            read_matches(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(message.isprintable() for message in refused)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_many_matches_show_a_bar_on_a_terminal(tmp_path, monkeypatch, run):
    np.savez(tmp_path / "m.npz", points0=POINTS, points1=POINTS, image_size0=(600, 600), image_size1=(600, 600))
    monkeypatch.setattr(progress_module, "WORTH_A_BAR", 10)
    assert run("prune", tmp_path / "m.npz", "--device", "cpu")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = run("prune", tmp_path / "m.npz", "--device", "cpu")
    assert code == 0 and "ananet" in err


@pytest.mark.parametrize(
    ("output", "message"), [("a.db", "expected a file that ends in .npz"), ("a\0.npz", "expected a file name")]
)
def test_prune_writes_nothing_but_npz(output, message, tmp_path, run):
    points = np.random.default_rng(0).uniform(0, 400, (2, 20, 2))
    np.savez(tmp_path / "m.npz", points0=points[0], points1=points[1], image_size0=(400, 400), image_size1=(400, 400))
    (tmp_path / "a.db").write_bytes(b"a database")
    code, _, err = run("prune", tmp_path / "m.npz", "-o", f"{tmp_path}/{output}", "--pruner", "all")
    assert code == 2 and message in err
    assert (tmp_path / "a.db").read_bytes() == b"a database"


def test_the_threshold_is_a_probability(problem, tmp_path, run):
    problem_file = tmp_path / "m.npz"
    p0, p1 = problem.matches.numpy_points()
    np.savez(problem_file, points0=p0, points1=p1, K0=problem.matches.K0, K1=problem.matches.K1)
    kept = [json.loads(run("prune", problem_file, "--threshold", at, "--json")[1])["kept"] for at in (0.001, 0.999)]
    assert kept[0] > kept[1]
    for wrong in (0, 1, "nan"):
        code, _, err = run("prune", problem_file, "--threshold", wrong)
        assert code == 2 and "threshold: expected" in err
