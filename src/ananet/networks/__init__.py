"""Networks that score matches, and the files that hold their weights.

A new network is one file with a subclass of `Network` and its settings, and one line in `base.NETWORKS`.
"""

from ananet.networks.acne import ACNe, ACNeSettings
from ananet.networks.ananet import ANANet, ANANetSettings
from ananet.networks.base import (
    NETWORKS,
    Network,
    NetworkSettings,
    Supervision,
    inlier_weights,
    load_network,
    make_network,
    save_network,
)
from ananet.networks.cne import CNe, CNeSettings
from ananet.networks.dematch import DeMatch, DeMatchSettings
from ananet.networks.lmcnet import LMCNet, LMCNetSettings
from ananet.networks.oanet import OANet, OANetSettings

__all__ = [
    "NETWORKS",
    "ACNe",
    "ACNeSettings",
    "ANANet",
    "ANANetSettings",
    "CNe",
    "CNeSettings",
    "DeMatch",
    "DeMatchSettings",
    "LMCNet",
    "LMCNetSettings",
    "Network",
    "NetworkSettings",
    "OANet",
    "OANetSettings",
    "Supervision",
    "inlier_weights",
    "load_network",
    "make_network",
    "save_network",
]
