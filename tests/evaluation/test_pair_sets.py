"""Tables of the documentation: their cells, what is measured again, and the pair set of the repository."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ananet import InputError
from ananet.cli.main import main
from ananet.datasets.sources import PAIR_SETS_VARIABLE, open_source
from ananet.evaluation import pair_sets
from ananet.evaluation.pair_sets import TABLES, TRUE_LABELS, Measurements, documented_tables

ROOT = Path(__file__).parents[2]
PAIR_SET = ROOT / "benchmarks" / "pairs" / "validation"
spec = spec_from_file_location("write_tables", ROOT / "tools" / "write_tables.py")
write_tables = module_from_spec(spec)
spec.loader.exec_module(write_tables)


def made_up(part, pruner):
    """A summary; longer names have better poses."""
    areas = [float(len(pruner)), 50.0, 60.0]
    names = ("precision", "f1", "average_precision", "calibration_error", "true_precision", "true_recall")
    wrong = {"wrong_at_95": 0.0123, "wrong_at_95_mutual": 0.0049}
    scenes = {"hall": {"f1": 0.5, "auc": 70.04}}
    return (
        dict.fromkeys(names, 0.4567)
        | wrong
        | {"recall": 1.0, "auc": {"ransac": areas, "poselib": areas}, "scenes": scenes}
    )


def test_cells():
    rows = {row["pruner"]: row for row in TABLES["usual and hard pairs"](made_up)}
    small, best, labels = rows["`ananet-small`"], rows["`ananet@side_input=false` (points only)"], rows[TRUE_LABELS]
    assert small["usual pairs, AUC@5/10/20"] == "12.0 / 50.0 / 60.0"
    assert small["wrong at 95 % recall"] == "**1.2 %**" and labels["wrong at 95 % recall"] == ""
    assert best["hard pairs, AUC@5/10/20"] == "**23.0 / 50.0 / 60.0**"
    assert rows["`ananet@seeds=0` (attends to every match)"]["usual pairs, AUC@5/10/20"] == ""
    paper = {row["pruner"]: row for row in TABLES["the paper's input"](made_up)}
    assert paper["all matches"]["recall"] == "1" and paper["all matches"]["precision"] == "**.457**"
    assert [row["PoseLib AUC@5"] for row in TABLES["ananet by scene"](made_up)] == ["70.0"]
    assert all(table(made_up) for table in TABLES.values())


def test_every_table_of_the_pages_is_known():
    marks = [
        mark for page in write_tables.PAGES for mark in re.findall(r"<!-- table: (.*) -->", page.read_text("utf-8"))
    ]
    assert set(marks) == set(TABLES)


def test_a_changed_number_is_found(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(
        "Before\n\n<!-- table: ananet by scene -->\nold\n<!-- end of table -->\n\nAfter\n", encoding="utf-8"
    )
    for name, value in (("ROOT", tmp_path), ("PAGES", (page,)), ("Measurements", lambda *_, **__: made_up)):
        monkeypatch.setattr(write_tables, name, value)
    monkeypatch.setattr("sys.argv", ["write_tables.py", "--check"])
    assert write_tables.main() == 1 and "-old" in capsys.readouterr().out
    assert "old" in page.read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["write_tables.py"])
    assert write_tables.main() == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("Before\n") and text.endswith("<!-- end of table -->\n\nAfter\n") and "| hall" in text
    monkeypatch.setattr("sys.argv", ["write_tables.py", "--check"])
    assert write_tables.main() == 0
    page.write_text(text.replace("70.0", "70.1"), encoding="utf-8")
    assert write_tables.main() == 1 and "70.1" in capsys.readouterr().out


@pytest.mark.usefixtures("in_this_process")
def test_some_pairs_of_the_repository(tmp_path, monkeypatch):
    options = {"limit": 2, "summaries": tmp_path / "summaries", "predictions": tmp_path / "predictions"}
    tables = documented_tables(Measurements(PAIR_SET, **options), ["ratio", "ananet-small"])
    usual, paper = tables.values()
    assert [row["pruner"] for row in usual] == ["mutual + ratio test (needs descriptors)", "`ananet-small`"]
    assert float(re.sub("[*%]", "", usual[1]["wrong at 95 % recall"])) < float(
        re.sub("[*%]", "", usual[0]["wrong at 95 % recall"])
    )
    assert float(paper[1]["precision"].strip("*")) > 0.8
    assert len(list((tmp_path / "predictions").glob("*/*.safetensors"))) == 6
    # Nothing is measured twice.
    monkeypatch.setattr(pair_sets, "evaluate", None)
    assert documented_tables(Measurements(PAIR_SET, **options), ["ratio", "ananet-small"]) == tables
    with pytest.raises(TypeError):
        documented_tables(Measurements(PAIR_SET, **options | {"limit": 3}), ["ratio"])


@pytest.mark.usefixtures("in_this_process")
def test_the_set_is_found_by_name(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PAIR_SETS_VARIABLE, str(PAIR_SET.parent))
    assert len(open_source("validation/usual")) == len(open_source("validation/paper")) == 541
    assert len(open_source("validation/hard")) == 73
    assert main(["evaluate", "validation", "--pruner", "ratio", "--limit", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["evaluate", "validation", "--pruner", "ratio", "--repeats", "2"]) == 2
    assert "--repeats: the tables of a pair set" in capsys.readouterr().err
    assert main(["evaluate", "validation/hard"]) == 2
    assert "--pruner: expected names" in capsys.readouterr().err
    monkeypatch.setenv(PAIR_SETS_VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match=r"validation/hard is in the repository .* ANANET_PAIRS; it is not in"):
        open_source("validation/hard")


def test_the_set_is_small():
    assert sum(path.stat().st_size for path in PAIR_SET.rglob("*") if path.is_file()) < 10e6
