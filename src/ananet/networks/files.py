"""Weight files: safetensors with the network's name and settings in the header, so that a file says what it is.

Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ananet.errors import InputError
from ananet.io.files import save_tensors
from ananet.networks.base import Network, NetworkSettings, make_network


def save_network(path: str | Path, network: Network, card: Mapping[str, Any] | None = None) -> None:
    """Write weights, settings and a model card (anything JSON can hold) to a safetensors file."""
    metadata = {
        "settings": json.dumps(network.settings.to_dict()),
        "card": json.dumps(dict(card or {})),
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    save_tensors(path, tensors, metadata)


def load_network(path: str | Path) -> tuple[Network, dict[str, Any]]:
    """The network that `save_network` wrote, in evaluation mode on the CPU, and its model card."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"weights: no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            settings, card = json.loads(metadata["settings"]), json.loads(metadata.get("card", "{}"))
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)
            network = _checked_network(path, settings, shapes)
            tensors = {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise InputError(f"weights: {path} is not a safetensors file ({error})") from None
    except InputError:
        raise
    except (KeyError, RecursionError, ValueError) as error:
        raise InputError(f"weights: {path} has a broken header ({error!r})") from None
    if not isinstance(card, dict):
        raise InputError(f"weights: {path} has a broken header: expected a card of names and values, got {card!r}")
    for name, own in network.state_dict().items():
        if tensors[name].is_complex() or (own.is_floating_point() and not tensors[name].is_floating_point()):
            raise InputError(f"weights: {path}: expected floating-point numbers in {name}, got {tensors[name].dtype}")
    broken = [name for name, value in tensors.items() if not value.float().isfinite().all()]
    if broken:
        raise InputError(f"weights: {path} holds NaN or infinity in {', '.join(broken)}")
    network.load_state_dict(tensors)
    return network.eval(), card


def _checked_network(path: Path, header: Any, shapes: dict[str, tuple[int, ...]]) -> Network:
    """The network that the header describes; built only if the file's tensors are those of such a network."""
    try:
        settings = NetworkSettings.from_dict(header)
    except InputError as error:
        raise InputError(f"weights: {path}: {error}") from None
    # A sketch without memory: a header of a few bytes could ask for gigabytes.
    with torch.device("meta"):
        sketch = make_network(settings)
    expected = {name: tuple(value.shape) for name, value in sketch.state_dict().items()}
    wrong = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
    if wrong:
        first = wrong[0]
        raise InputError(
            f"weights: {path} does not fit its own settings: {len(wrong)} tensors differ; "
            f"{first}: expected {expected.get(first)}, got {shapes.get(first)}"
        )
    return make_network(settings)
