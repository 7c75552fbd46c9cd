"""benchmarks/bulk.py: its arithmetic, and a few photos. Ray is tested in tests/bulk."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import cv2
import pytest

from tests.photos import photo

pytest.importorskip("pyarrow", reason="needs the extra 'bulk'")


@pytest.fixture(scope="module")
def benchmark():
    spec = spec_from_file_location("bulk_benchmark", Path(__file__).parents[1] / "benchmarks" / "bulk.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_start_does_not_count(benchmark):
    # Two workers write a part a second each, once they have started.
    assert benchmark.steady_rate([10, 10, 11, 11, 12, 12], workers=2, pairs_per_part=3) == pytest.approx(6)


def test_photos(benchmark, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), photo(seed=0)[: 200 + number])
    found = benchmark.measure_photos(tmp_path / "photos", tmp_path)
    assert (found["photos"], found["pairs"], found["failed"]) == (3, 3, 0)
    assert all(found[f"{step}_ms"] > 0 for step in ("detect", "match", "prune", "verify", "write"))
    assert found["pair_bytes"] > 0 and found["travelling_bytes"] > 16 * found["matches_per_pair"]
