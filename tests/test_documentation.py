"""The API reference has an entry for every public name. `make docs` checks links and anchors of the site itself."""

import json
import re
from importlib import import_module
from pathlib import Path

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
    missing = [name for name in public if not any(found(name) is entry for entry in documented)]
    assert not missing
