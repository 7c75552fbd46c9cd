"""ananet: two photos in, trustworthy matches out.

>>> import ananet
>>> [name for name in ananet.list_pruners() if name.startswith("ananet")]
['ananet', 'ananet-quadratic', 'ananet-paper', 'ananet-small']
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ananet.core.correspondences import Correspondences
    from ananet.errors import InputError, MissingExtraError
    from ananet.estimators import (
        Fundamental,
        Homography,
        Pose,
        estimate_fundamental,
        estimate_homography,
        estimate_pose,
    )
    from ananet.pruners import Pruned, Pruner, list_pruners, load, load_pruner
    from ananet.twoview import PhotoMatcher, PhotoMatches, match_photos
    from ananet.twoview.motions import Motion, Motions, group_motions

try:
    __version__ = version("ananet")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "Correspondences",
    "Fundamental",
    "Homography",
    "InputError",
    "MissingExtraError",
    "Motion",
    "Motions",
    "PhotoMatcher",
    "PhotoMatches",
    "Pose",
    "Pruned",
    "Pruner",
    "estimate_fundamental",
    "estimate_homography",
    "estimate_pose",
    "group_motions",
    "list_pruners",
    "load",
    "load_pruner",
    "match_photos",
]

_HOME = {
    "Correspondences": "ananet.core",
    "InputError": "ananet.errors",
    "MissingExtraError": "ananet.errors",
    "Motion": "ananet.twoview.motions",
    "Motions": "ananet.twoview.motions",
    "group_motions": "ananet.twoview.motions",
    "PhotoMatcher": "ananet.twoview",
    "PhotoMatches": "ananet.twoview",
    "Fundamental": "ananet.estimators",
    "Homography": "ananet.estimators",
    "Pose": "ananet.estimators",
    "estimate_fundamental": "ananet.estimators",
    "estimate_homography": "ananet.estimators",
    "estimate_pose": "ananet.estimators",
    "Pruned": "ananet.pruners",
    "Pruner": "ananet.pruners",
    "list_pruners": "ananet.pruners",
    "load": "ananet.pruners",
    "load_pruner": "ananet.pruners",
    "match_photos": "ananet.twoview",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and `ananet --help` should not wait for it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'ananet' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
