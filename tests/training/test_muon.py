"""Muon against the same steps written plainly, matrix by matrix."""

import torch
from torch import nn

from ananet.training.muon import ADAMW_STEP, MOMENTUM, Muon, orthogonalized


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 48), nn.Linear(48, 32), nn.Linear(32, 48), nn.Linear(48, 1))


def gradients(network: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_hidden_matrices_move_along_orthogonal_ones_and_the_rest_as_with_adamw():
    ours, plain = layers(), layers()
    muon, adamw = Muon(ours.parameters(), 0.01, 0.1), torch.optim.AdamW(plain.parameters(), 0.01, weight_decay=0.0)
    hidden = {n: p.detach().clone() for n, p in ours.named_parameters() if p.dim() == 2 and min(p.shape) >= 32}
    momenta = {name: torch.zeros_like(matrix) for name, matrix in hidden.items()}
    assert list(hidden) == ["1.weight", "2.weight", "3.weight"]
    for step in range(3):
        gradients(ours, step)
        gradients(plain, step)
        for name, matrix in hidden.items():
            gradient = plain.get_parameter(name).grad
            momenta[name] = MOMENTUM * momenta[name] + (1 - MOMENTUM) * gradient
            direction = orthogonalized((MOMENTUM * momenta[name] + (1 - MOMENTUM) * gradient)[None])[0]
            matrix *= 1 - 0.01 * 0.1
            matrix -= 0.01 * ADAMW_STEP * max(matrix.shape) ** 0.5 * direction
        muon.step()
        adamw.step()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, hidden.get(name, plain.get_parameter(name)))


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


def test_orthogonalized_keeps_singular_vectors():
    matrices = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(0))
    for shape in (matrices, matrices.mT):
        found = orthogonalized(shape)
        left, values, right = torch.linalg.svd(shape, full_matrices=False)
        diagonal = left.mT @ found @ right.mT
        off = diagonal - torch.diag_embed(diagonal.diagonal(dim1=-2, dim2=-1))
        assert off.abs().max() < 1e-3
        assert ((diagonal.diagonal(dim1=-2, dim2=-1) - 1).abs() < 0.4)[values > 0.05 * values.amax()].all()
    assert not orthogonalized(torch.zeros(1, 32, 32)).any()
