"""ananet without PyTorch: prunes putative keypoint matches with numpy and ONNX Runtime.

>>> from ananet_lite import load
>>> points = [[10.0, 20.0], [30.0, 40.0]]
>>> load("ananet-small")(points, points, image_size0=(64, 48), image_size1=(64, 48)).mask.shape
(2,)
"""

from importlib.metadata import PackageNotFoundError, version

from ananet_lite.matches import InputError
from ananet_lite.pruner import Pruned, Pruner, list_pruners, load

try:
    __version__ = version("ananet-lite")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = ["InputError", "Pruned", "Pruner", "list_pruners", "load"]
