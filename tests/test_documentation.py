"""The API reference has an entry for every public name, every weight file a card, and all files name one version.

`make docs` checks links and anchors of the site itself.
"""

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path

from ananet.networks import load_network
from ananet.weights import bundled, bundled_path

ROOT = Path(__file__).parent.parent


def found(name):
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    entries = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert len(entries) == len(set(entries))
    documented = [found(entry) for entry in entries]
    public = json.loads((ROOT / "tests" / "public_api.json").read_text(encoding="utf-8"))
    # A page may show a whole module.
    of_modules = [name for name in public if name.rpartition(".")[0] in entries]
    missing = [name for name in public if name not in of_modules and not any(found(name) is one for one in documented)]
    assert not missing


def test_every_weight_file_has_a_card():
    cards = ROOT / "docs" / "models"
    listed = (cards / "index.md").read_text(encoding="utf-8") + (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in bundled():
        text = (cards / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# Model card: `{name}`\n")
        _, card = load_network(bundled_path(name))
        listed_scenes = next(line for line in text.splitlines() if line.startswith("| training scenes |"))
        assert all(f"`{scene}`" in listed_scenes for scene in card.get("training_scenes", ()))
        assert f"[`{name}`]({name}.md)" in listed and f"{name}: models/{name}.md" in listed


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    released = re.findall(
        r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert released[0] == version


def test_the_container_is_pinned():
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^ARG BASE=(\S+)$", dockerfile, re.M)
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    assert all(image == "$BASE" for image in re.findall(r"^FROM (\S+)", dockerfile, re.M))
    installs = re.findall(r"pip install .*", dockerfile)
    assert len(installs) == 3 and all("--constraint container.txt" in install for install in installs)
    pinned = dict(line.split("==") for line in (ROOT / "container.txt").read_text(encoding="utf-8").splitlines()[1:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["web"]
    needed += [*project["build-system"]["requires"], "starlette", "h11", "pydantic_core", "sympy"]
    assert {re.match(r"[\w-]+", name)[0].lower() for name in needed} <= set(pinned)
    torch = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert pinned["torch"] == torch[1]
