import json

import numpy as np


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


def test_everything_that_matches_can_have_is_read(problem, tmp_path, run):
    m, n = problem.matches, len(problem.matches)
    np.savez(
        tmp_path / "m.npz",
        points0=m.points0,
        points1=m.points1,
        K0=m.K0,
        K1=m.K1,
        size0=m.size0,
        size1=m.size1,
        ratio=m.ratio,
        mutual=m.mutual,
        scores=np.ones(n),
        sizes0=np.ones(n),
        sizes1=np.ones(n),
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
        (write("more.npz", points0=points, points1=points, colour=points), "got points0, points1, colour"),
        (write("pickle.npz", points0=np.array([{}], dtype=object), points1=points), "not a readable .npz"),
        (write("nan.npz", points0=points * np.nan, points1=points), "points0: expected finite"),
        (write("half.npz", points0=points, points1=points, sizes0=np.ones(5)), "sizes0 and sizes1: expected both"),
    ]:
        code, _, err = run("prune", path)
        assert code == 2, path
        assert message in err and err.count("\n") == 1
    assert not list(tmp_path.glob("*.pruned.npz"))


def test_prune_no_matches(tmp_path, run):
    np.savez(tmp_path / "m.npz", points0=np.zeros((0, 2)), points1=np.zeros((0, 2)))
    assert run("prune", tmp_path / "m.npz")[0] == 0
