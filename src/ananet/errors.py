"""The two ways a caller can be told that something on their side needs to change."""


class InputError(ValueError):
    """An argument is wrong: the message names it, says what was expected and what came."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed: the message says how to get it."""

    def __init__(self, package: str, extra: str) -> None:
        # Both are kept as arguments, so that the error survives the way back from a worker process.
        super().__init__(package, extra)

    def __str__(self) -> str:
        package, extra = self.args
        noun = "packages" if " " in package else "package"
        return f"this needs the {noun} {package}: pip install {package} (ananet's extra {extra!r})"
