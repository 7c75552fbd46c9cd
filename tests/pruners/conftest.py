import pytest
import torch

from ananet.networks import ANANet, ANANetSettings, save_network


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Files with untrained networks, one without and one with side input."""
    folder = tmp_path_factory.mktemp("weights")
    for name, side in (("plain", ()), ("side", ("ratio", "mutual"))):
        torch.manual_seed(0)
        network = ANANet(ANANetSettings(side=side, blocks=2))
        if network.side_encoder is not None:
            torch.nn.init.normal_(network.side_encoder.linears[-1].weight)
        save_network(folder / f"{name}.safetensors", network)
    return folder
