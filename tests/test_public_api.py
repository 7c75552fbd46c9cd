"""The public API is what the list says; the package is laid out as it says of itself."""

import json
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import ananet

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ananet"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

# Modules without a test file of their own name, and where they are tested.
TESTED_ELSEWHERE = {
    "__init__.py": "this file",
    "__main__.py": "cli/test_cli.py runs it",
    "_util/defaults.py": "constants alone",
    "_util/stopwatch.py": "its docstring, and twoview/test_matcher.py",
    "_util/plots.py": "evaluation/test_plots.py",
    "_util/tables.py": "its docstring",
    "attention/cubic.py": "attention/test_reference.py and test_blocked.py hold it to the plain form",
    "attention/fused.py": "attention/test_fused.py, in Triton's interpreter",
    "attention/fused_seeds.py": "attention/interpreted.py, in Triton's interpreter",
    "inference/call_kernels.py": "inference/interpreted_calls.py, in Triton's interpreter",
    "inference/ananet/consensus.py": "inference/interpreted.py, in Triton's interpreter",
    "inference/ananet/folded.py": "inference/test_ananet.py",
    "inference/ananet/fused.py": "inference/interpreted.py, in Triton's interpreter",
    "inference/ananet/kernels.py": "inference/interpreted.py, in Triton's interpreter",
    "core/fused_conflicts.py": "inference/interpreted.py, in Triton's interpreter",
    "cli/evaluate.py": "evaluation/test_runner.py",
    "cli/explain.py": "evaluation/test_explain.py",
    "cli/data.py": "datasets/test_build.py, test_sfm.py and test_inspection.py",
    "cli/train.py": "training/test_loop.py",
}


def tool():
    spec = spec_from_file_location("list_public_api", ROOT / "tools" / "list_public_api.py")
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_public_api_is_as_listed():
    expected = json.loads((ROOT / "tests" / "public_api.json").read_text(encoding="utf-8"))
    found = tool().public_api()
    changed = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    assert not changed, f"{changed}: if that is meant, run python tools/list_public_api.py and say so in CHANGELOG.md"


def test_the_list_covers_what_is_documented_and_nothing_private():
    expected = json.loads((ROOT / "tests" / "public_api.json").read_text(encoding="utf-8"))
    documented = tool().documented()
    assert len(documented) > 100
    missing = [
        name for name in documented if not any(known == name or known.startswith(f"{name}.") for known in expected)
    ]
    assert not missing
    assert not [name for name in expected if "._" in name]


def test_every_public_name_is_where_it_is_said_to_be():
    for name in ananet.__all__:
        assert getattr(ananet, name) is getattr(import_module(ananet._HOME[name]), name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        ananet.nonsense  # noqa: B018


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_its_tests(module):
    if module.as_posix() in TESTED_ELSEWHERE:
        return
    folder = ROOT / "tests" / module.parent
    # A package of one piece may be tested under its own name or in a file beside it.
    names = [f"test_{module.stem}.py"] if module.stem != "__init__" else [f"test_{module.parent.name}.py"]
    places = [folder, folder.parent] if module.stem == "__init__" else [folder]
    only_words = module.stem == "__init__" and "def " not in (PACKAGE / module).read_text(encoding="utf-8")
    assert only_words or any((place / name).is_file() for place in places for name in names), f"no tests of {module}"


def test_reasons_are_for_modules_that_exist():
    assert not set(TESTED_ELSEWHERE) - {module.as_posix() for module in MODULES}


def test_no_module_is_named_like_one_of_the_standard_library():
    own = {part for module in MODULES for part in module.with_suffix("").parts if not part.startswith("__")}
    own -= {"io"}  # as in scikit-image: reached as `ananet.io` alone
    assert not own & set(sys.stdlib_module_names)
