"""Every pruner by name."""

from ananet._util.names import Registry
from ananet.pruners.base import Pruned, Pruner
from ananet.pruners.learned import LearnedPruner
from ananet.pruners.registry import CLASSICAL, describe_pruners, list_pruners, load, load_pruner

__all__ = [
    "CLASSICAL",
    "LearnedPruner",
    "Pruned",
    "Pruner",
    "Registry",
    "describe_pruners",
    "list_pruners",
    "load",
    "load_pruner",
]
