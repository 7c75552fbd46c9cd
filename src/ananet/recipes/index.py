"""Training settings that come with the package: TOML files, each with the command that uses it."""

from importlib.resources import files
from pathlib import Path

from ananet._util.checks import like, shown
from ananet.errors import InputError

FOLDER = Path(str(files(__package__)))


def recipes() -> list[str]:
    """Names of the recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe_path(given: str) -> Path:
    """A TOML file by the name of a recipe, or by its path."""
    known = recipes()
    path = FOLDER / f"{given}.toml" if given in known else Path(given)
    if not path.is_file():
        raise InputError(
            f"settings: expected a recipe ({', '.join(known)}) or a TOML file, got {shown(given)}{like(given, known)}"
        )
    return path
