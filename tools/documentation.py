"""What the documentation's site needs beside mkdocs.yml: a hook of MkDocs and an extension of griffe.

Pages link to each other as files of the repository do (`../CHANGELOG.md`, `docs/library.md`), so that they can be read
on a code host too. The hook adds the files outside docs/ to the site, and turns links to them into links within it.
"""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation

ROOT = Path(__file__).parents[1]
# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
# Folders whose files are linked to; they are copied as they are.
FOLDERS = ("examples", "notebooks", "native/examples")
# The page that needs no server: where tools/build_page.py puts it, where it is in the site, and its name there.
BUILT, TRY, TITLE = ROOT / "build" / "page", "try", "Try it in your browser"


def on_files(files: Files, config: Any) -> Files:
    """Add pages and files that lie outside docs/."""
    for name, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
            files.append(File.generated(config, page, content=text))
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("[!.]*.*")):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for path in sorted(path for path in BUILT.rglob("*") if path.is_file()):
        files.append(File.generated(config, f"{TRY}/{path.relative_to(BUILT).as_posix()}", abs_src_path=str(path)))
    return files


def on_nav(nav: Navigation, files: Files, **_: Any) -> Navigation:
    """Add the page that needs no server, where it was built."""
    if files.get_file_from_path(f"{TRY}/index.html") is not None:
        nav.items.insert(1, Link(TITLE, f"{TRY}/index.html"))
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links out of docs/ into links within the site."""
    up = "../" * page.file.src_uri.count("/")
    for folder in FOLDERS:
        markdown = markdown.replace(f"](../{up}{folder}/", f"]({up}{folder}/")
    for name, target in PAGES.items():
        markdown = re.sub(rf"\]\((\.\./)?{up}{name}", f"]({up}{target}", markdown)
    return markdown


class DoctestBlocks(griffe.Extension):
    """Examples in docstrings are code, also outside an "Examples" section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put fences around every run of lines that begins with a prompt."""
        if obj.docstring is not None:
            found = r"^([ \t]*)(>>> .*(?:\n[ \t]*\S.*)*)"
            obj.docstring.value = re.sub(found, r"\1```pycon\n\1\2\n\1```", obj.docstring.value, flags=re.MULTILINE)
