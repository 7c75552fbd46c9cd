"""Weight files: safetensors with the network's settings in the header, so that a file says what it is.

Nothing is ever unpickled.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ananet.errors import InputError
from ananet.files import atomic_path
from ananet.networks.ananet import ANANet, ANANetSettings

NETWORK = "ananet"


def save_network(path: str | Path, network: ANANet, card: Mapping[str, Any] | None = None) -> None:
    """Write weights, settings and a model card (anything JSON can hold) to a safetensors file."""
    metadata = {
        "network": NETWORK,
        "settings": json.dumps(network.settings.to_dict()),
        "card": json.dumps(dict(card or {})),
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata)


def load_network(path: str | Path) -> tuple[ANANet, dict[str, Any]]:
    """The network that `save_network` wrote, in evaluation mode on the CPU, and its model card."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"weights: no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("network") != NETWORK:
                raise InputError(
                    f"weights: {path} holds no ANA-Net: expected network = {NETWORK!r} in its header, "
                    f"got {metadata.get('network')!r}"
                )
            settings = ANANetSettings.from_dict(json.loads(metadata["settings"]))
            card = json.loads(metadata.get("card", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise InputError(f"weights: {path} is not a safetensors file ({error})") from None
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"weights: {path} has a broken header ({error!r})") from None
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise InputError(f"weights: {path} holds NaN or infinity in {', '.join(broken)}")
    network = ANANet(settings)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"weights: {path} does not fit its own settings: {error}") from None
    return network.eval(), card
