"""The list of dependencies in the documentation, and the SBOM."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "sbom.py"
spec = spec_from_file_location("sbom", TOOL)
sbom = module_from_spec(spec)
spec.loader.exec_module(sbom)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROWS = re.findall(
    r"^\| (\S+) \| (\S*) ?\| (.+) \| (.+) \| ([\d.]+) \|$", (ROOT / "docs/dependencies.md").read_text("utf-8"), re.M
)
# What packages say that state no SPDX expression.
OTHER_WORDS = {
    "BSD-3-Clause": "BSD",
    "BSD-2-Clause": "BSD",
    "Apache-2.0": "Apache",
    "PSF-2.0": "Python Software Foundation",
    "MIT": "MIT",
}


def declared():
    """(name, extra) of every dependency."""
    groups = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    for extra, requirements in groups.items():
        for requirement in requirements:
            name = re.match(r"[\w.-]+", requirement)[0]
            if name != PROJECT["name"]:
                yield name, extra


def test_every_dependency_is_listed_in_the_order_of_pyproject():
    assert [row[:2] for row in ROWS] == list(declared())


@pytest.mark.parametrize(("name", "stated"), [(row[0], row[3]) for row in ROWS])
def test_licences_are_those_of_the_packages(name, stated):
    package = sbom.installed().get(sbom.normalized(name))
    if package is None:
        pytest.skip(f"{name} is not installed")
    found = sbom.licence(package)
    assert stated in found or OTHER_WORDS[stated] in found


def test_sbom(tmp_path):
    subprocess.run([sys.executable, TOOL, tmp_path / "sbom.json"], check=True)
    bill = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    names = [component["name"] for component in bill["components"]]
    assert bill["metadata"]["component"]["name"] == "ananet" and len(set(names)) == len(names)
    needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert needs.keys() == {*names, "ananet"} and {"torch", "numpy", "poselib"} <= set(needs["ananet"])
    assert "matplotlib" not in needs["ananet"], "an extra is no need"
    assert all({*needed} <= {*names, "ananet"} for needed in needs.values())
    [torch] = [component for component in bill["components"] if component["name"] == "torch"]
    assert torch["purl"].startswith("pkg:pypi/torch@") and torch["licenses"]


def test_table(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sbom.py", "--table"])
    assert sbom.main() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("numpy ")]
    assert re.fullmatch(r"numpy +\S+ +\d+\.\d MB  BSD-3-Clause.*", lines[0])
