"""What every network has in common: matches in, one logit per match out, and weights in a file that says what it is.

Training, evaluation and pruners know this interface only. Weight files are safetensors with the network's name and
settings in the header; nothing is ever unpickled.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ananet._util.checks import Settings, like, shown
from ananet._util.names import Registry
from ananet.errors import InputError
from ananet.io.files import save_tensors
from ananet.networks.input import SIDE_INPUT, side_channels
from ananet.weights import bundled, weight_file

DEFAULT = "ananet"


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """Everything that defines a network's shape. Each network has a subclass with its name and its own settings."""

    name: str = DEFAULT
    """Of the network."""
    side: tuple[str, ...] = ()
    """Input beside the four coordinates: some of ratio, mutual, size, angle. Each may be missing in use."""
    before: ClassVar[Mapping[str, Any]] = {}
    """What newer settings were for weight files that do not have them, where that is not the default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.side if name not in SIDE_INPUT]
        if unknown or len(set(self.side)) < len(self.side):
            raise InputError(f"side: expected different ones of {', '.join(SIDE_INPUT)}, got {', '.join(self.side)}")

    @property
    def channels(self) -> int:
        """Of the input: x0 y0 x1 y1, then side input."""
        return 4 + side_channels(self.side)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> Any:
        """Settings of the network that `name` says, from a mapping such as the `[network]` section of a TOML file."""
        if cls is not NetworkSettings or not isinstance(values, Mapping):
            return super().from_dict(values, prefix)
        name = values.get("name", DEFAULT)
        if not isinstance(name, str):
            raise InputError(f"{prefix}name: expected text, got {name!r}")
        return network_class(name).Settings.from_dict(values, prefix)


@dataclass(frozen=True, eq=False)
class BlockView:
    """What one block of attention sees."""

    attention: Tensor
    """[H x N x N] how much each match (row) attends to each (column)."""
    context: Tensor | None = None
    """[H x N] attention-consistent context h; None for a block without second order."""
    normalized: Tensor | None = None
    """[H x N] the same after sigmoid(alpha h)."""


class Supervision(NamedTuple):
    """What training supervises; everything is [B x N]."""

    stages: list[Tensor]
    """Logits of every stage, the final ones last; each has a class loss."""
    layers: list[Tensor]
    """Logits of inner layers; the mean of their class losses is added."""
    weights: list[Tensor]
    """Weights of every eight-point solution that has a geometric loss, the final ones last."""
    right: Sequence[Tensor] = ()
    """Logits of being right, where a network has an output for it beside that for lying near the line."""


class Network(nn.Module):
    """Scores matches. A subclass has a `name`, its `Settings`, and implements `forward`."""

    name: ClassVar[str]
    Settings: ClassVar[type[NetworkSettings]] = NetworkSettings
    settings: NetworkSettings
    geometric: ClassVar[Literal["inliers", "virtual", "matrix"]] = "inliers"
    """Geometric loss of its authors, for training with `geometric_weight`; see `ananet.training.loss`."""
    authors_probability: ClassVar[float] = 0.5
    """Its authors keep a match above this probability, which comes from the balanced loss, without calibration."""

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        super().__init__()
        self.settings = self.Settings() if settings is None else settings
        if not isinstance(self.settings, self.Settings):
            raise InputError(f"settings: expected {self.Settings.__name__}, got {type(settings).__name__}")

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path) -> Self:
        """The trained network of bundled weights or of a weight file, in evaluation mode on the CPU.

        >>> from ananet.networks import ANANet
        >>> network = ANANet.from_pretrained("ananet-small")
        >>> matches, mask = torch.zeros(2, 100, 4), torch.ones(2, 100, dtype=torch.bool)
        >>> with torch.inference_mode():
        ...     network(matches, mask).shape
        torch.Size([2, 100])
        """
        name = str(name_or_path)
        path = weight_file(name)
        if path is None:
            expected = f"one of {', '.join(bundled())} or a .safetensors file"
            raise InputError(f"weights: expected {expected}, got {shown(name)}{like(name, bundled())}")
        network, _ = load_network(path)
        if not isinstance(network, cls):
            right = type(network).__name__
            raise InputError(f"weights: {name} is for {right}, not {cls.__name__}; use {right}.from_pretrained")
        return network

    @abstractmethod
    def forward(self, matches: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of being an inlier: positive means keep.

        Args:
            matches: [B x N x channels]: normalised x0 y0 x1 y1, then side input.
            mask: [B x N], True where a match is real, False where it pads the batch.

        Returns:
            [B x N] logits; 0 at padding.
        """

    def stages(self, matches: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Logits of every stage that is supervised, [B x N] each, the final ones last."""
        return [self(matches, mask)]

    def supervision(self, matches: Tensor, mask: Tensor | None = None) -> Supervision:
        """Everything that training supervises; override it if a network has losses beside those of its stages."""
        stages = self.stages(matches, mask)
        return Supervision(stages, [], [inlier_weights(logits.float()) for logits in stages])

    @property
    def labels(self) -> tuple[str, ...]:
        """What its outputs tell: "line", whether a match lies near its epipolar line, and maybe "right"."""
        return ("line",)

    def telling(self, label: str | None = None) -> Network:
        """A network with the same weights and the output for this label alone; None for the last one, the decision."""
        self._check_label(label)
        return self

    def _check_label(self, label: str | None) -> None:
        if label is not None and label not in self.labels:
            raise InputError(f"label: expected {' or '.join(self.labels)} of these weights, got {label!r}")

    @abstractmethod
    def rescale_logits(self, scale: float, shift: float) -> None:
        """Change the weights so that logits become scale * logits + shift: how the calibration of scores is stored.

        Networks with several outputs take the label of one as a third argument.
        """

    def prepare_to_compile(self) -> None:
        """Called before training compiles the network; excludes what cannot be compiled."""

    def block_features(self, matches: Tensor) -> list[Tensor]:
        """[B x N x C] input of the first block and output of every block, to inspect a network; may be empty."""
        return []

    def block_views(self, matches: Tensor) -> list[BlockView]:
        """Attention of every block in the first problem of the batch, to inspect a network; may be empty."""
        return []

    def start_from(self, other: Network) -> None:
        """Copy the weights of another network, to continue training. The settings must be the same."""
        if type(other) is not type(self) or other.settings != self.settings:
            raise InputError(_difference(other, self))
        self.load_state_dict(other.state_dict())

    def with_settings(self, **changes: Any) -> Network:
        """A network with the same weights and some settings changed, of those that no weight depends on."""
        changed = make_network(replace(self.settings, **changes))
        changed.load_state_dict(self.state_dict())
        return changed.to(next(self.parameters())).train(self.training)

    def description(self) -> dict[str, Any]:
        """Name, settings and number of parameters."""
        return {**self.settings.to_dict(), "parameters": sum(parameter.numel() for parameter in self.parameters())}


NETWORKS: Registry[Network] = Registry(
    "network",
    {
        "ananet": "ananet.networks.ananet:ANANet",
        "cne": "ananet.networks.cne:CNe",
        "acne": "ananet.networks.acne:ACNe",
        "oanet": "ananet.networks.oanet:OANet",
        "lmcnet": "ananet.networks.lmcnet:LMCNet",
        "dematch": "ananet.networks.dematch:DeMatch",
    },
)
"""Networks by name; `@NETWORKS.add` adds one."""


def network_class(name: str) -> type[Network]:
    return cast(type[Network], NETWORKS[name])


def make_network(settings: NetworkSettings) -> Network:
    """The network that settings describe, with random weights."""
    return network_class(settings.name)(settings)


def _difference(have: Network, want: Network) -> str:
    if have.name != want.name:
        return f"it holds the network {have.name!r}, the run wants {want.name!r}"
    before, now = have.settings.to_dict(), want.settings.to_dict()
    names = [name for name in now if before.get(name) != now[name]]
    shapes = [", ".join(f"{name} = {values[name]}" for name in names) for values in (before, now)]
    return f"it has {shapes[0]}, the run wants {shapes[1]}"


@torch.no_grad()
def rescale_linear(layer: nn.Linear, scale: float, shift: float, output: int = 0) -> None:
    """Rescale what an output of a last linear layer gives."""
    layer.weight[output].mul_(scale)
    layer.bias[output].mul_(scale).add_(shift)


def zero_at_padding(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [B x N] that are 0 where a mask [B x N] is False."""
    return logits if mask is None else logits.masked_fill(~mask, 0.0)


def inlier_weights(logits: Tensor) -> Tensor:
    """The paper's w = relu(tanh(o)) in [0, 1): the weight of a match in a weighted eight-point solution."""
    largest = 1 - torch.finfo(logits.dtype).eps / 2
    return torch.tanh(logits).clamp(min=0.0, max=largest)


def save_network(path: str | Path, network: Network, card: Mapping[str, Any] | None = None) -> None:
    """Write weights, settings and a model card (anything JSON can hold) to a safetensors file."""
    metadata = {"settings": json.dumps(network.settings.to_dict()), "card": json.dumps(dict(card or {}))}
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
        settings: NetworkSettings = NetworkSettings.from_dict(header)
        older = {name: value for name, value in settings.before.items() if name not in header}
        settings = replace(settings, **older)
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
