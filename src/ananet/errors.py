"""The two ways a caller can be told that something on their side needs to change."""


class InputError(ValueError):
    """An argument is wrong: the message names it, says what was expected and what came."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed: the message says which extra brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package}: pip install 'ananet[{extra}]'")
