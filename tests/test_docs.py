"""Every code block of the README and the documentation: it runs, or its commands are checked, or it says why not.

Python blocks of a page run in order, in one namespace that starts with `names` below, in a folder with `files` below.
Commands are parsed by their real parsers; those of `QUICK` run too. A block after `<!-- not run: reason -->` is only
compiled, and its commands are only parsed.
"""

import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import cv2
import numpy as np
import pytest

import ananet
from ananet.cli.demo import motorcycle
from ananet.cli.main import COMMANDS, main
from ananet.estimators import load_estimator
from ananet.features import DETECTORS
from ananet.pruners.registry import look_up
from ananet.recipes import recipe_path
from tests.datasets.scenes import write_scene
from tests.integrations.colmap.databases import Writer
from tests.integrations.test_hloc import stand_in, write_features, write_matches  # noqa: F401 (a fixture)

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The rest is parsed alone: it takes long, needs other data, or has tests of its own.
QUICK = ("list", "match", "prune", "colmap", "hloc")
OFF_THE_SHELF = ("sift", "orb")
# Packages that pages import and an installation may lack.
EXTRAS = ("h5py", "kornia", "onnxruntime", "onnxscript", "pyarrow", "pycolmap", "ray")
SHELL = ("sh", "bash", "shell", "console")
MARK = re.compile(r"<!-- not run: \S.* -->")
FENCE = re.compile(r"( *)(```+) *([\w-]*).*")
# In pages: `ananet evaluate ... --plots DIR`.
INLINE = re.compile(r"`(ananet [a-z]+ [^`]*)`")
# What says that an indented block is shell.
PROGRAM = re.compile(r"(\$ |[A-Z_]+=\S+ )*(ananet|python3?|torchrun|pip|make|colmap|curl|docker|git|mkdir)( |$)")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    marked: bool

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """Its commands as words, comments and output left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            words = shlex.shlex(line, posix=True, punctuation_chars="&|;")
            words.whitespace_split = True
            command: list[str] = []
            for word in words:
                if set(word) <= set("&|;"):
                    yield command
                    command = []
                else:
                    command.append(word)
            if command:
                yield command


def blocks_of(page: Path) -> list[Block]:
    """The Python and shell blocks of a page, fenced or indented."""
    found, before = [], ""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        line, start = lines[number], number
        number += 1
        if fence := FENCE.fullmatch(line):
            indent, ticks, language = fence.groups()
            while lines[number].strip() != ticks:
                number += 1
            text = "\n".join(each.removeprefix(indent) for each in lines[start + 1 : number])
            number += 1
        elif is_indented_code(line, lines[start - 1]):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            text, language = "\n".join(each.removeprefix("    ") for each in lines[start:number]), ""
            start -= 1
        else:
            before = line if line.strip() else before
            continue
        if not language and any(PROGRAM.match(each) for each in text.splitlines()):
            language = "sh"
        if language == "python" or language in SHELL:
            found.append(Block(page, start + 2, language, text, bool(MARK.fullmatch(before.strip()))))
        before = ""
    return found


def is_indented_code(line: str, before: str) -> bool:
    # In a tab, marks are indented too.
    return line.startswith("    ") and not MARK.search(line) and (not before.strip() or bool(MARK.search(before)))


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """Small files under the names that pages use."""
    folder = tmp_path_factory.mktemp("files")
    pair = motorcycle()
    for image, same in ((pair.image0, ("a", "left")), (pair.image1, ("b", "right"))):
        for name in same:
            cv2.imwrite(str(folder / f"{name}.jpg"), image)
    cv2.imwrite(str(folder / "c.jpg"), pair.image1)
    np.savetxt(folder / "right.txt", pair.K1)
    write_scene(folder / "scene", images=2)
    (folder / "scene" / "images").rename(folder / "photos")
    (folder / "pairs.txt").write_text("000.png 001.png\n")
    matches = ananet.match_photos(pair.image0, pair.image1, pruner="all").matches
    points0, points1 = matches.numpy_points()
    width, height = matches.image_size0
    np.savez(
        folder / "matches.npz",
        points0=points0,
        points1=points1,
        K0=pair.K0,
        K1=pair.K1,
        image_size0=matches.image_size0,
        image_size1=matches.image_size1,
        ratio=matches.ratio,
        mutual=matches.mutual,
    )
    write_features(folder / "features.h5", {"a.jpg": (points0, (width, height)), "b.jpg": (points1, (width, height))})
    write_matches(folder / "matches.h5", {"a.jpg/b.jpg": np.arange(len(points0))})
    database = Writer(folder / "database.db")
    descriptors = np.random.default_rng(0).integers(0, 256, (len(points0), 128), np.uint8)
    first, second = (database.image(points, descriptors=descriptors) for points in (points0, points1))
    database.matches(first, second, np.stack([np.arange(len(points0))] * 2, axis=1))
    database.close()
    return folder


@pytest.fixture
def names(files, tmp_path, monkeypatch, stand_in) -> dict[str, object]:  # noqa: F811 (the fixture)
    """Simple names that pages use; the files lie in the working folder."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    stored = np.load("matches.npz")
    arrays = {name: stored[name] for name in ("points0", "points1", "K0", "K1", "ratio", "mutual")}
    image0, image1 = cv2.imread("a.jpg"), cv2.imread("b.jpg")
    return {**arrays, "image0": image0, "image1": image1, "__name__": "__page__"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks(page, names, monkeypatch, capsys):
    check_page(page, names, monkeypatch, capsys)
    if check := AFTERWARDS.get(page.name):
        check(names)


def check_page(page: Path, names: dict[str, object], monkeypatch, capsys) -> None:
    blocks = blocks_of(page)
    assert page.read_text(encoding="utf-8").count("```python") == sum(block.language == "python" for block in blocks)
    for block in blocks:
        if block.language == "python":
            # Blank lines before it: a traceback names the line of the page.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            if not block.marked:
                run_python(code, names)
            continue
        for command in block.commands():
            check_command(block, command, monkeypatch, capsys)


def run_python(code, names: dict[str, object]) -> None:
    try:
        exec(code, names)
    except ananet.MissingExtraError as error:
        pytest.skip(str(error))
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        pytest.skip(str(error))


def check_command(block: Block, command: list[str], monkeypatch, capsys) -> None:
    while re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    program, *words = command
    if program == "ananet":
        arguments = parse(words, block.place, monkeypatch, capsys)
        check_names(arguments, block.place)
        if not block.marked and is_quick(arguments):
            assert main(words) == 0, f"{block.place}: ananet {' '.join(words)}: {capsys.readouterr().err}"
    elif program in ("python", "python3", "torchrun"):
        check_script(block, words, monkeypatch, capsys)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in re.findall(r"[\w-]+", " ".join(re.findall(r"\[(.*?)\]", " ".join(words)))):
            assert extra in extras, f"{block.place}: there is no extra {extra}"
    elif program == "make":
        for target in (word for word in words if "=" not in word):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"{block.place}: {target}"
    else:
        assert block.marked, f"{block.place}: {program!r} cannot be run or checked; say why, <!-- not run: reason -->"


def parse(words: list[str], place: str, monkeypatch, capsys):
    """The arguments of a command, read by its real parser; it does not run."""
    seen = []
    with monkeypatch.context() as patch:
        for name in COMMANDS:
            patch.setattr(import_module(f"ananet.cli.{name}"), "run", lambda arguments: seen.append(arguments) or 0)
        try:
            main(words)
        except SystemExit:
            pytest.fail(f"{place}: ananet {' '.join(words)}: {capsys.readouterr().err.splitlines()[-1]}")
    return seen[0]


def check_names(arguments, place: str) -> None:
    """Pruners, detectors and estimators that commands name exist. Capitals, dots and files stand for the reader's."""
    look = {
        "pruner": look_up,
        "detector": lambda name: DETECTORS[name.split("@")[0]],
        "estimator": load_estimator,
        "settings": recipe_path,
    }
    for argument, find in look.items():
        for name in str(getattr(arguments, argument, None) or "").split(","):
            if name and not re.search(r"\.\.\.|\.safetensors|\.toml|^[A-Z]+$", name):
                try:
                    find(name)
                except ananet.InputError as error:
                    pytest.fail(f"{place}: {error}")


def is_quick(arguments) -> bool:
    detector = getattr(arguments, "detector", None)
    return arguments.command in QUICK and (detector is None or detector.split("@")[0] in OFF_THE_SHELF)


def check_script(block: Block, words: list[str], monkeypatch, capsys) -> None:
    """The script exists, and knows the options it is given."""
    if "-m" in words:
        module, *rest = words[words.index("-m") + 1 :]
        if module == "ananet" and "..." not in rest:
            parse(rest, block.place, monkeypatch, capsys)
        return
    script, *rest = words
    assert (ROOT / script).is_file(), f"{block.place}: there is no {script}"
    source = (ROOT / script).read_text(encoding="utf-8")
    for option in (word for word in rest if word.startswith("--")):
        assert f'"{option.split("=")[0]}"' in source, f"{block.place}: {script} has no option {option}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nimport ananet\nananet.laod()\n```", "laod"),
        ("Text.\n\n    ananet match a.jpg b.jpg --focsl 1200\n", "page.md:3.*focsl"),
        ("```sh\nananet prune matches.npz --pruner ananat\n```", "page.md:2.*ananat"),
        ("```console\n$ ananet prune missing.npz\n3 of 5 kept\n```", "page.md:2.*missing.npz"),
        ("<!-- not run: long -->\n```sh\nananet train ananet --step 1 --foo\n```", "page.md:3.*foo"),
        ("```sh\npython benchmarks/cpu.py \\\n    --fast\n```", "cpu.py has no option --fast"),
        ("```sh\npython benchmarks/cpus.py\n```", "there is no benchmarks/cpus.py"),
        ("```\npip install 'ananet[wbe]'\n```", "no extra wbe"),
        ("```sh\nmake tset && make test\n```", "tset"),
        ("```sh\ncurl http://127.0.0.1:8000/healthz\n```", "page.md:2.*say why"),
    ],
)
def test_mistakes_are_found(text, error, names, monkeypatch, capsys):
    page = Path("page.md")
    page.write_text(f"{text}\n")
    with pytest.raises((AssertionError, AttributeError, pytest.fail.Exception), match=error):
        check_page(page, names, monkeypatch, capsys)
    page.write_text("<!-- not run: needs a running service -->\n```sh\ncurl http://127.0.0.1:8000/healthz\n```\n")
    check_page(page, names, monkeypatch, capsys)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences(page, capsys):
    """Every option that a command is given within a sentence or a table is one of its own."""
    for spoken in INLINE.findall(page.read_text(encoding="utf-8")):
        command, *words = spoken.split()[1:]
        options = [word for word in words if word.startswith("--")]
        action = [words[0]] if command == "data" and words and words[0] in ("build", "sfm", "inspect") else []
        with pytest.raises(SystemExit) as ended:
            main([command, *action, "--help"])
        assert ended.value.code == 0, f"{page.name}: there is no {spoken}"
        known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert set(options) <= known, f"{page.name}: {spoken}"


def test_linked_files_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http", "mailto:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_detector_is_listed_with_its_licence():
    page = (ROOT / "docs" / "keypoints.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    for name in DETECTORS.names:
        if name == "stored":
            continue
        licence = getattr(DETECTORS[name], "licence", "none needed")
        assert rows[name].strip("*") == licence


def test_gallery():
    """Its table is what tools/make_gallery.py measures, for the cases that are not on the brink."""
    spec = spec_from_file_location("make_gallery", ROOT / "tools" / "make_gallery.py")
    tool = module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    rows = {
        name: cells.split(" | ") for name, cells in re.findall(r"^\| \[(.*?)\]\(.*?\) \| (.*) \|$", page, re.MULTILINE)
    }
    cases = tool.cases()
    assert rows.keys() == cases.keys()
    for name in ("motorcycle", "plane at 60°", "zoom 4x", "nothing in common", "equal cups", "moving poster"):
        numbers = cases[name].answer().numbers
        matches, _, kept, precision, _, overlap = rows[name]
        assert numbers["overlap"] == overlap and int(matches) == pytest.approx(numbers["matches"], rel=0.1)
        assert int(kept) == pytest.approx(numbers["kept"], rel=0.1, abs=3)
        assert float(precision) == pytest.approx(float(numbers["precision"]), abs=0.05)


def test_public_face():
    assert set(ananet.__all__) <= set(dir(ananet))
    for name in ananet.__all__:
        assert getattr(ananet, name).__doc__, name


def check_pipelines(names) -> None:
    """What came out of the blocks of "Use it in your pipeline" is more than no error."""
    from hloc import matchers
    from hloc.utils.base_model import dynamic_load

    assert dynamic_load(matchers, names["conf"]["model"]["name"])(names["conf"]["model"])
    assert 100 < len(names["good"]) < len(names["matches"])
    assert len(names["found"]["keypoints0"]) > 100 and (names["found"]["confidence"] > 0.39).all()
    assert Path("pruned.h5").is_file() and Path("pruned.db").is_file()


def check_keypoints(names) -> None:
    assert names["found"].overlap.found and names["found"].kept.mask.sum() > 50


AFTERWARDS = {"pipelines.md": check_pipelines, "keypoints.md": check_keypoints}
