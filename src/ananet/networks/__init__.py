"""Networks that score matches, and the files that hold their weights."""

from ananet.networks.ananet import ANANet, ANANetSettings, inlier_weights
from ananet.networks.weights import load_network, save_network

__all__ = ["ANANet", "ANANetSettings", "inlier_weights", "load_network", "save_network"]
