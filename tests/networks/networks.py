"""Networks with random weights that tests share."""

import torch

from ananet.networks import ANANet, ANANetSettings


def network(**settings) -> ANANet:
    torch.manual_seed(0)
    made = ANANet(ANANetSettings(**settings)).eval()
    # Running statistics other than 0 and 1, so that batch norm does something.
    for name, buffer in made.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return made
