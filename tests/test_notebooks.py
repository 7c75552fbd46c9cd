"""The notebooks run from top to bottom, and show what their text says."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nbmake")

from nbmake.nb_run import NotebookRun

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS_OF_A_CELL = 300


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Runs a notebook in a copy of its folder; gives all that it printed."""
    folder = tmp_path_factory.mktemp("notebooks") / "notebooks"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))

    def run(name: str) -> str:
        result = NotebookRun(folder / f"{name}.ipynb", default_timeout=SECONDS_OF_A_CELL).execute()
        assert result.error is None, f"cell {result.error.failing_cell_index}: {result.error.trace}"
        outputs = [output for cell in result.nb.cells for output in cell.get("outputs", ())]
        assert any("image/png" in output.get("data", {}) for output in outputs), "no plot"
        return "".join(output.text for output in outputs if output.output_type == "stream")

    return run


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_stored_without_outputs(notebook):
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_first_steps(printed):
    text = printed("first-steps")
    kept, found = map(int, re.search(r"(\d+) of (\d+) matches kept by ananet", text).groups())
    assert 700 < kept < 1300 and found == 4869
    assert float(re.search(r"^rotation +(\S+)$", text, re.MULTILINE)[1]) < 0.5
    # A higher threshold: fewer matches, more of them right.
    rows = re.findall(r"^ +0\.\d\d +(\d+) +(\S+) +\S+$", text, re.MULTILINE)
    kept, precision = zip(*((int(a), float(b)) for a, b in rows), strict=True)
    assert list(kept) == sorted(kept, reverse=True) and list(precision) == sorted(precision)


def test_colmap(printed):
    pytest.importorskip("pycolmap")
    rows = re.findall(r"^ +(\d+)  (\w+) +(\d+) of \d +(\d+) ", printed("colmap"), re.MULTILINE)
    photos, points = ({(step, kind): int(row[n]) for step, kind, *row in rows} for n in (0, 1))
    for step in ("15", "25", "28", "30"):
        assert photos[step, "ananet"] >= photos[step, "COLMAP"]
        assert points[step, "ananet"] > 1.1 * points[step, "COLMAP"]
    assert photos["28", "ananet"] > photos["28", "COLMAP"]


def test_train_on_your_photos(printed):
    text = printed("train-on-your-photos")
    f1 = {name: float(f1) for name, f1 in re.findall(r"^([\w-]+) +\d+ +\S+ +\S+ +(0\.\d+) ", text, re.MULTILINE)}
    assert f1["ratio"] < f1["tiny"] < f1["ananet-small"]
