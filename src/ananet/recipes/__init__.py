"""Training settings that come with the package: TOML files, each with the command that uses it."""

from ananet.recipes.index import recipe_path, recipes

__all__ = ["recipe_path", "recipes"]
