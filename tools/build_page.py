"""Build the page that needs no server, in build/page; `make docs` makes it a part of the site.

    python tools/build_page.py

It is the page of `ananet web` with another `backend.js`: packages/page, the npm package `ananet`, and what these take
from npm. Nothing of it is loaded from another host. Without npm, there is no page. `python tools/export_packages.py
onnx` must have run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from ananet.cli.web import examples

ROOT = Path(__file__).parents[1]
OUTPUT, SOURCE, JS = ROOT / "build" / "page", ROOT / "packages" / "page", ROOT / "packages" / "js"
SHARED = ROOT / "src" / "ananet" / "web" / "static"
OPENCV, ONNXRUNTIME = (SOURCE / "node_modules" / name for name in ("@techstark/opencv-js", "onnxruntime-web"))
# Folders of the page, and what is in them.
FILES = {
    "": [SHARED / name for name in ("index.html", "style.css", "page.js", "downloads.js")]
    + sorted(SOURCE.glob("*.js")),
    "opencv": [OPENCV / "dist" / "opencv.js", OPENCV / "LICENSE"],
    "ananet": [JS / "index.js"],
    "ananet/networks": [JS / "networks" / f"{name}.onnx" for name in ("ananet", "ananet-small")],
    "onnxruntime": [ONNXRUNTIME / "dist" / name for name in ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")],
}
# Workers know no import maps.
IMPORT, RELATIVE = '"onnxruntime-web/wasm"', '"../onnxruntime/ort.wasm.bundle.min.mjs"'


def copy_files() -> None:
    for folder, paths in FILES.items():
        (OUTPUT / folder).mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copyfile(path, OUTPUT / folder / path.name)
    package = OUTPUT / "ananet" / "index.js"
    text = package.read_text(encoding="utf-8")
    if IMPORT not in text:
        raise SystemExit(f"{JS.name}/index.js: expected an import of {IMPORT}, got none")
    package.write_text(text.replace(IMPORT, RELATIVE), encoding="utf-8")


def write_examples() -> None:
    # Motions are found by the library alone.
    pairs = {name: example for name, example in examples().items() if name != "motions"}
    for name, example in pairs.items():
        folder = OUTPUT / "examples" / name
        folder.mkdir(parents=True)
        for number, photo in enumerate(example.photos):
            (folder / f"{number}.jpg").write_bytes(photo)
    index = [{"name": name, "title": example.title} for name, example in pairs.items()]
    (OUTPUT / "examples" / "index.json").write_text(json.dumps(index), encoding="utf-8")


def write_list() -> int:
    """What the service worker keeps; returns the bytes of all files."""
    paths = sorted(path for path in OUTPUT.rglob("*") if path.is_file())
    version, size = hashlib.sha256(), 0
    for path in paths:
        data = path.read_bytes()
        version.update(data)
        size += len(data)
    names = [path.relative_to(OUTPUT).as_posix() for path in paths if path.name != "offline.js"]
    text = f'self.VERSION = "{version.hexdigest()[:16]}";\nself.FILES = {json.dumps(names, indent=1)};\n'
    (OUTPUT / "files.js").write_text(text, encoding="utf-8")
    return size


def main() -> int:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    npm = shutil.which("npm")
    if npm is None:
        print("no npm (apt-get install nodejs npm): the site is built without the page that needs no server")
        return 0
    install = (npm, "ci", "--no-audit", "--no-fund")
    done = subprocess.run(install, cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"npm ci in packages/page\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    copy_files()
    write_examples()
    print(f"{OUTPUT.relative_to(ROOT)}: {write_list() / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
