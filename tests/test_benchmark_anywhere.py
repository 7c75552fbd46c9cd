import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "anywhere.py"


@pytest.fixture(scope="module")
def anywhere():
    before = list(sys.path)
    spec = spec_from_file_location("anywhere", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def test_times_are_of_the_processor(anywhere):
    assert anywhere.milliseconds(lambda: sum(range(300_000))) > 0


def test_needs_the_program(anywhere, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(anywhere, "ROOT", tmp_path)
    monkeypatch.setattr(anywhere, "SPEED", tmp_path / "speed")
    monkeypatch.setattr(sys, "argv", ["anywhere.py"])
    with pytest.raises(SystemExit):
        anywhere.main()
    assert "make test-native" in capsys.readouterr().err
