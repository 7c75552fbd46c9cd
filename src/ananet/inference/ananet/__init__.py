"""Fast inference of ANA-Net: folded layers anywhere, Triton kernels on a GPU."""

import torch

from ananet.attention import choose_backend
from ananet.inference.ananet.folded import FoldedANANet
from ananet.inference.ananet.fused import FusedANANet
from ananet.networks import ANANet


def engine(network: ANANet, device: torch.device) -> FoldedANANet | FusedANANet:
    """The fastest way to run a trained ANA-Net on a device."""
    folded = FoldedANANet(network.eval().to(device))
    if choose_backend(device) == "fused" and FusedANANet.supports(network.settings):
        return FusedANANet(folded)
    return folded
