"""Everything that defines a training run, in one frozen dataclass; a TOML file holds the same names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ananet.datasets.base import INLIER_DISTANCE
from ananet.datasets.batches import BatchSettings
from ananet.errors import InputError
from ananet.networks import ANANetSettings
from ananet.training.muon import OPTIMIZERS


@dataclass(frozen=True)
class TrainSettings:
    """A training run. Sections `[network]` and `[batches]` of the TOML file are settings of their own."""

    pairs: str | None = None
    """Folder of training pairs, from `ananet data build`; without one, synthetic problems alone."""
    validation: str | None = None
    """Folder of validation pairs, never trained on."""
    calibration_scenes: tuple[str, ...] = ()
    """Scenes of `pairs` that are kept out of training to fit the scores on; without any, training pairs serve."""
    excluded_scenes: tuple[str, ...] = ()
    """Scenes of `pairs` that are not used at all, because their poses are not to be trusted, say."""
    inlier_distance: float = INLIER_DISTANCE
    """What counts as right: squared symmetric epipolar distance below this. The paper's 1e-4 is 8 to 10 pixels in a
    photo of 1000; a tighter one teaches which matches are precise."""
    synthetic_share: float = 0.25
    """Share of each batch that is made up on the fly (all of it without `pairs`)."""
    side_dropout: float = 0.3
    """How often a pair's ratio and mutual flags are withheld, so that the network also works without them."""
    balance: float = 1.0
    """1 lets a pair's inliers weigh as much as its outliers, as the paper does; 0 lets every match weigh the same."""
    steps: int = 100_000
    optimizer: str = "adamw"
    """adamw, or muon: matrices between hidden features move along orthogonal ones, the rest as with AdamW."""
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    warmup: int = 500
    weight_decay: float = 0.0
    """With muon for the matrices alone."""
    clip_gradient: float = 1.0
    averaging: float = 0.999
    """Decay of the running average of the weights that is validated and shipped; 0 for the weights themselves."""
    geometric_weight: float = 0.0
    """Weight of the geometric loss of a weighted eight-point solution beside the class loss."""
    geometric_from: int = 20_000
    """Step at which it sets in: before, the weights mean nothing."""
    precision: str = "bf16"
    """bf16 or fp32; on the CPU always fp32."""
    compile: bool = True
    """On a single GPU, compile the network: a step takes a quarter of the time, the first one half a minute."""
    seed: int = 0
    validate_every: int = 2_000
    checkpoint_every: int = 1_000
    log_every: int = 50
    network: ANANetSettings = field(default_factory=ANANetSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "checkpoint_every", "log_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("synthetic_share", "side_dropout", "balance", "averaging"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}: expected a number from 0 to 1, got {getattr(self, name)}")
        if not self.inlier_distance > 0:
            raise InputError(f"inlier_distance: expected a positive number, got {self.inlier_distance}")
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer: expected {' or '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.precision not in ("bf16", "fp32"):
            raise InputError(f"precision: expected bf16 or fp32, got {self.precision!r}")
        if not 0 < self.final_learning_rate <= self.learning_rate:
            raise InputError(
                f"final_learning_rate: expected a number above 0 and at most learning_rate "
                f"({self.learning_rate:g}), got {self.final_learning_rate:g}"
            )
        if self.network.side_channels not in (0, 2):
            raise InputError(f"network.side_channels: expected 0 or 2, got {self.network.side_channels}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """Settings from nested mappings; an unknown name is an error."""
        values = dict(values)
        sections = {"network": ANANetSettings, "batches": BatchSettings}
        for name, kind in sections.items():
            if name in values and not isinstance(values[name], kind):
                values[name] = _filled(kind, values[name], f"{name}.")
        for name in ("calibration_scenes", "excluded_scenes"):
            if name in values:
                values[name] = tuple(values[name])
        return _filled(cls, values, "")

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainSettings:
        path = Path(path)
        if not path.is_file():
            raise InputError(f"settings: no file {path}")
        try:
            return cls.from_dict(tomllib.loads(path.read_text()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"settings: {path} is not TOML ({error})") from None

    def changed(self, **values: Any) -> TrainSettings:
        """The same settings with some changed; None leaves one as it is."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _filled(kind: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    known = {f.name: f.type for f in fields(kind)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        names = ", ".join(prefix + name for name in unknown)
        raise InputError(f"unknown setting {names}: expected some of {', '.join(known)}")
    numbers = {"float": (int, float), "int": (int,), "str": (str,)}
    for name, value in values.items():
        expected = numbers.get(str(known[name]))
        if expected is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            raise InputError(f"{prefix}{name}: expected {known[name]}, got {value!r}")
    return kind(**values)
