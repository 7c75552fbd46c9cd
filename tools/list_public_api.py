"""List the public API: every `__all__` below, and everything that docs/api documents.

`tests/test_public_api.py` compares it with tests/public_api.json, so that no change goes unseen.

python tools/list_public_api.py
"""

import dataclasses
import inspect
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "public_api.json"
PACKAGES = ("", ".attention", ".bulk", ".core", ".datasets", ".estimators", ".evaluation", ".features", ".networks")
PACKAGES += (".pruners", ".training", ".twoview", ".weights")


def public_api() -> dict[str, Any]:
    """Signatures of functions, fields and methods of classes, by their full names."""
    packages = [f"ananet{package}" for package in PACKAGES]
    listed = {f"{package}.{name}" for package in packages for name in import_module(package).__all__}
    names = sorted(listed | {name for entry in documented() for name in _expanded(entry)})
    private = [name for name in names if re.search(r"\._(?!_)", name)]
    if private:
        raise ValueError(f"documented, but private: {', '.join(private)}")
    return {name: _described(_found(name)) for name in names}


def documented() -> list[str]:
    """The full names that pages of docs/api show."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.M)]


def _expanded(name: str) -> list[str]:
    """A name, or the public names that a module defines."""
    value = _found(name)
    if not inspect.ismodule(value):
        return [name]
    members = vars(value).items()
    return [f"{name}.{own}" for own, member in members if own[0] != "_" and getattr(member, "__module__", "") == name]


def _found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute, None)
    return import_module(name) if found is None else found


def _described(value: Any) -> Any:
    if inspect.isclass(value):
        members = {
            name: _signature(inspect.unwrap(member))
            for name, member in inspect.getmembers(value, callable)
            if not name.startswith("_") and _is_own(member)
        }
        properties = [name for name, member in inspect.getmembers(value) if name[0] != "_" and _is_property(member)]
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        return {"call": _signature(value), "methods": members, "attributes": sorted({*properties, *fields})}
    return _signature(value) if callable(value) else type(value).__name__


def _is_property(member: Any) -> bool:
    return hasattr(type(member), "__get__") and not callable(member)


def _is_own(member: Any) -> bool:
    """Whether a method is the package's, not inherited from torch or Python."""
    return (getattr(member, "__module__", None) or "").startswith("ananet")


def _signature(value: Any) -> str:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    # Names, kinds and defaults are what callers build on; annotations differ between versions of Python.
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))


if __name__ == "__main__":
    LIST.write_text(json.dumps(public_api(), indent=1) + "\n", encoding="utf-8")
    print(f"{LIST}: {len(public_api())} names")
