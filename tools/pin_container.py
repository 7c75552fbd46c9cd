"""Pin all packages of the Dockerfile: writes container.txt, with what pip chooses now for this Python and system.

python tools/pin_container.py
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / "container.txt"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
HEAD = "# All packages of the Dockerfile, written by tools/pin_container.py.\n"


def pins() -> list[str]:
    """Name and version of everything that the extra `web` and the build need."""
    asked = [".[web]", "hatchling", "--constraint", "constraints.txt", "--extra-index-url", CPU_BUILDS]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, *asked], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    packages = [package["metadata"] for package in json.loads(done.stdout)["install"]]
    # Without "+cpu", which builds for other architectures do not have.
    versions = {package["name"].lower(): package["version"].partition("+")[0] for package in packages}
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if name != "ananet"]


if __name__ == "__main__":
    PINS.write_text(HEAD + "\n".join(pins()) + "\n", encoding="utf-8")
    print(f"{PINS}: {len(PINS.read_text(encoding='utf-8').splitlines()) - 1} packages")
