"""Networks that score matches, and the files that hold their weights.

A new network is one file with a subclass of `Network` and its settings, and one line in `base.NETWORKS`.
"""

from ananet.networks.ananet import ANANet, ANANetSettings
from ananet.networks.base import NETWORKS, Network, NetworkSettings, inlier_weights, make_network
from ananet.networks.files import load_network, save_network

__all__ = [
    "NETWORKS",
    "ANANet",
    "ANANetSettings",
    "Network",
    "NetworkSettings",
    "inlier_weights",
    "load_network",
    "make_network",
    "save_network",
]
