import re

import pytest

from ananet.errors import InputError
from ananet.recipes import recipe_path, recipes
from ananet.recipes.index import FOLDER
from ananet.training.settings import TrainSettings


def test_recipes_by_name_and_files_by_path(tmp_path):
    assert {"ananet", "ananet-quadratic", "ananet-small"} <= set(recipes())
    assert recipe_path("ananet") == FOLDER / "ananet.toml"
    (tmp_path / "mine.toml").touch()
    assert recipe_path(str(tmp_path / "mine.toml")) == tmp_path / "mine.toml"
    with pytest.raises(InputError, match="expected a recipe .*trunk.* got 'annanet'; did you mean 'ananet'"):
        recipe_path("annanet")


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_holds_settings_and_the_command_that_uses_it(name):
    settings = TrainSettings.from_toml(recipe_path(name))
    assert settings.network.name == "ananet"
    text = recipe_path(name).read_text(encoding="utf-8")
    assert re.search(rf"^#.*ananet train {name}\b", text, re.MULTILINE), "says how it is used"
