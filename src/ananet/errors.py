"""The exceptions that ananet raises."""


class InputError(ValueError):
    """An argument is wrong. The message names it, what was expected and what was given."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed. The message says how to install it."""

    def __init__(self, package: str, extra: str) -> None:
        # Passing both on lets the error be pickled by worker processes.
        super().__init__(package, extra)

    def __str__(self) -> str:
        package, extra = self.args
        noun = "packages" if " " in package else "package"
        return f"this needs the {noun} {package}: pip install {package} (ananet's extra {extra!r})"
