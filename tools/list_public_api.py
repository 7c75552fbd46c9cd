"""Write down the public API: what `tests/test_public_api.py` compares, so that no change of it goes unseen.

python tools/list_public_api.py
"""

import dataclasses
import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "tests" / "public_api.json"
# Modules whose `__all__` users build on.
MODULES = (
    "ananet",
    "ananet.datasets",
    "ananet.estimators",
    "ananet.features",
    "ananet.networks",
    "ananet.pruners",
    "ananet.attention",
)


def public_api() -> dict[str, Any]:
    """Signatures of functions, fields and methods of classes, by their full names."""
    found: dict[str, Any] = {}
    for module_name in MODULES:
        module = import_module(module_name)
        for name in sorted(module.__all__):
            found[f"{module_name}.{name}"] = _described(getattr(module, name))
    return found


def _described(value: Any) -> Any:
    if inspect.isclass(value):
        members = {
            name: _signature(inspect.unwrap(member))
            for name, member in inspect.getmembers(value, callable)
            if not name.startswith("_") and _is_own(member)
        }
        properties = [name for name, member in inspect.getmembers(value) if isinstance(member, property)]
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        return {"call": _signature(value), "methods": members, "attributes": sorted({*properties, *fields})}
    return _signature(value) if callable(value) else type(value).__name__


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
