import json

import pytest

from ananet.networks import ANANet, ANANetSettings, save_network

pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")


def test_export(tmp_path, run):
    # Of a network that takes seconds instead of half a minute.
    weights = tmp_path / "tiny.safetensors"
    save_network(weights, ANANet(ANANetSettings(blocks=1, width=32, heads=2)))
    code, out, _ = run("export", f"{weights}@threshold=0.7", "-o", tmp_path / "small.onnx", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["bytes"] == (tmp_path / "small.onnx").stat().st_size
    assert float(result["metadata"]["threshold"]) == pytest.approx(0.7)
    onnx.checker.check_model(onnx.load(tmp_path / "small.onnx"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.onnx", "tiny.safetensors"]


def test_pixels(tmp_path, run):
    weights = tmp_path / "tiny.safetensors"
    save_network(weights, ANANet(ANANetSettings(blocks=1, width=32, heads=2)))
    code, out, _ = run("export", weights, "-o", tmp_path / "tiny.onnx", "--pixels")
    assert code == 0 and "with input points in pixels" in out
    inputs = [one.name for one in onnx.load(tmp_path / "tiny.onnx").graph.input]
    assert inputs[:2] == ["points0", "points1"] and "conflict_odds" in inputs


def test_wrong_arguments(tmp_path, run):
    code, _, err = run("export", "lpm", "-o", tmp_path / "x.onnx")
    assert code == 2 and "expected one network" in err
    code, _, err = run("export", "ananet", "-o", tmp_path / "none" / "x.onnx")
    assert code == 2 and "does not exist" in err
    code, _, err = run("export", "nonsense", "-o", tmp_path / "x.onnx")
    assert code == 2 and "nonsense" in err
