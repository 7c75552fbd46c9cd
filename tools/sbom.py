"""What an environment has installed: as a list of materials (SBOM) in CycloneDX's JSON, or as a table.

    python tools/sbom.py sbom.json      # `make release-check` writes build/sbom.json
    python tools/sbom.py --table        # name, version, licence, megabytes

It needs the standard library alone, and so runs with the Python of any environment.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

# Of the environment, not of the package.
LEFT_OUT = {"pip", "setuptools"}
ROOT_NAME = "ananet"


def normalized(name: str) -> str:
    """As package indexes compare names.

    >>> normalized("PyYAML_ext")
    'pyyaml-ext'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, Distribution]:
    """Distributions by name, in alphabetical order."""
    found = {normalized(each.metadata["Name"]): each for each in distributions()}
    return {name: found[name] for name in sorted(found) if name not in LEFT_OUT}


def licence(package: Distribution) -> str:
    """An SPDX expression, where the package has one, else the first line of what it says."""
    metadata = package.metadata
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    said = metadata.get("License-Expression") or metadata.get("License") or ""
    # Some packages put whole texts there.
    if "License-Expression" not in metadata and classifiers and (not said or "\n" in said):
        said = classifiers[-1].rpartition(":: ")[2]
    return said.strip().split("\n")[0] or "not stated"


def megabytes(package: Distribution) -> float:
    """Of its files on disk."""
    paths = (Path(str(package.locate_file(file))) for file in package.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def needed(package: Distribution, known: dict[str, Distribution]) -> list[str]:
    """Names of the installed packages that it needs without extras."""
    plain = (text for text in package.requires or () if "extra ==" not in text)
    names = {normalized(match[0]) for text in plain if (match := re.match(r"[\w.-]+", text))}
    return sorted(names & known.keys())


def component(name: str, package: Distribution) -> dict[str, Any]:
    stated = package.metadata.get("License-Expression")
    terms = {"expression": stated} if stated else {"license": {"name": licence(package)}}
    return {
        "type": "application" if name == ROOT_NAME else "library",
        "bom-ref": name,
        "name": name,
        "version": package.version,
        "licenses": [terms],
        "purl": f"pkg:pypi/{name}@{package.version}",
    }


def bill_of_materials(known: dict[str, Distribution]) -> dict[str, Any]:
    """CycloneDX 1.6: every package with version and licence, and which needs which."""
    components = {name: component(name, package) for name, package in known.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": components.pop(ROOT_NAME)},
        "components": list(components.values()),
        "dependencies": [{"ref": name, "dependsOn": needed(package, known)} for name, package in known.items()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path, help="the file to write")
    parser.add_argument("--table", action="store_true", help="print a table")
    arguments = parser.parse_args()
    if arguments.output is None and not arguments.table:
        parser.error("expected an output or --table, got neither")
    known = installed()
    if arguments.output is not None:
        if ROOT_NAME not in known:
            parser.error(f"expected an environment with {ROOT_NAME}, got {sys.prefix}")
        arguments.output.write_text(json.dumps(bill_of_materials(known), indent=1) + "\n", encoding="utf-8")
    for name, package in known.items() if arguments.table else ():
        print(f"{name:28} {package.version:14} {megabytes(package):8.1f} MB  {licence(package)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
