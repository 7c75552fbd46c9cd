"""Muon against its two parts."""

import torch
from torch import nn

from ananet.training.muon import Muon


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 48), nn.Linear(48, 32), nn.Linear(32, 48), nn.Linear(48, 1))


def gradients(network: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_hidden_matrices_move_as_with_muon_and_the_rest_as_with_adamw():
    ours, plain = layers(), layers()
    both = Muon(ours.parameters(), 0.01, 0.1)
    hidden = [p for p in plain.parameters() if p.dim() == 2 and min(p.shape) >= 32]
    assert len(hidden) == 3
    others = [p for p in plain.parameters() if all(p is not matrix for matrix in hidden)]
    muon = torch.optim.Muon(hidden, 0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, 0.01, weight_decay=0.0)
    for step in range(4):
        gradients(ours, step)
        gradients(plain, step)
        if step == 2:  # as a run that was stopped goes on
            state = both.state_dict()
            both = Muon(ours.parameters(), 0.01, 0.1)
            both.load_state_dict(state)
        for optimizer in (both, muon, adamw):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (step + 1)
            optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_network_without_hidden_matrices():
    network = nn.Linear(4, 1)
    gradients(network, 0)
    before = network.weight.detach().clone()
    Muon(network.parameters(), 0.01, 0.1).step()
    assert not torch.equal(network.weight, before)


def test_parameters_without_gradient_stay():
    network = layers()
    before = [parameter.detach().clone() for parameter in network.parameters()]
    Muon(network.parameters(), 0.01, 0.1).step()
    for parameter, value in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(parameter, value)


def test_a_closure_runs_before_the_step():
    direct, through = layers(), layers()
    for network in (direct, through):
        optimizer = Muon(network.parameters(), 0.01, 0.1)

        def closure(network=network):
            gradients(network, 0)
            return 3.0

        if network is direct:
            closure()
            assert optimizer.step() is None
        else:
            assert optimizer.step(closure) == 3.0
    for one, other in zip(direct.parameters(), through.parameters(), strict=True):
        torch.testing.assert_close(one, other)
