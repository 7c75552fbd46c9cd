"""The data type that travels through the package, and the mathematics on it."""

from ananet.core.correspondences import Correspondences

__all__ = ["Correspondences"]
