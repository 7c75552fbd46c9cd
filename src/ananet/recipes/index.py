"""Training settings that come with the package: TOML files, each with the command that uses it."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files(__package__)))


def recipes() -> list[str]:
    """Names of the recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe_path(given: str) -> Path:
    """A TOML file by the name of a recipe, or by its path."""
    return FOLDER / f"{given}.toml" if given in recipes() else Path(given)
