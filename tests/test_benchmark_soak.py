import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytest.importorskip("resource")
spec = spec_from_file_location("soak", Path(__file__).parents[1] / "benchmarks" / "soak.py")
soak = module_from_spec(spec)
spec.loader.exec_module(soak)


def test_growth_after_the_warm_up_counts():
    calls = list(range(100, 10_100, 100))
    assert soak.slope(calls, [200.0] * 19 + [300.0] * 81) == 0
    assert soak.slope(calls, [0.05 * number for number in calls]) == pytest.approx(50)


def test_some_calls(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(soak, "PRUNERS", ("ratio", "gms"))
    monkeypatch.setattr(soak, "MAX_MATCHES", 60)
    monkeypatch.setattr("sys.argv", ["soak.py", str(tmp_path / "a.json"), "--calls", "30"])
    soak.main()
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["calls"] == 30 and found["sampled_at"][-1] == 30 and min(found["resident_megabytes"]) > 10
    assert "MB per 1000 calls" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["soak.py", "--calls", "1000000", "--seconds", "0.05"])
    soak.main()
    assert "at most 60 matches" in capsys.readouterr().out
