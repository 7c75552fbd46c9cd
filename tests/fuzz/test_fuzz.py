"""The short form of the fuzz suite, the same cases each time; `make fuzz` runs new ones until its time is over."""

import signal

import pytest

from tests.datasets.formats import test_fuzz as damaged_files
from tests.fuzz import api, commands, properties, readers  # noqa: F401 (they add their targets)
from tests.fuzz.campaign import TARGETS, run

CASES = {"large networks": 4, "commands": 8, "detectors": 15, "group_motions": 15, "hloc": 20, "COLMAP database": 20}
WITH_HDF5 = ("features .h5", "hloc", "commands")
# Formats with a short form of their own.
NAMES = [name for name in TARGETS if name not in damaged_files.FORMATS]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="nothing would end a case that hangs")
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_or_an_error_of_ours(name, tmp_path):
    if name in WITH_HDF5:
        pytest.importorskip("h5py")
    cases = CASES.get(name, 40)
    counts = run(name, tmp_path, cases, seed=0)
    # Hypothesis ends earlier where it has seen all there is.
    assert counts.total() >= min(cases, 10)
    assert counts["answered"] > 0, "a target that only asks for the impossible"
