"""Everything that defines a training run, in one frozen dataclass; a TOML file holds the same names."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from ananet._util.checks import Settings, check_names, check_positive, check_share, check_whole_number
from ananet._util.defaults import INLIER_DISTANCE
from ananet.datasets.batches import BatchSettings
from ananet.datasets.labels import LabelRule
from ananet.errors import InputError
from ananet.networks import ANANetSettings, NetworkSettings
from ananet.training.muon import OPTIMIZERS


@dataclass(frozen=True)
class TrainSettings(Settings):
    """Settings of a training run.

    Sections `[network]`, `[batches]` and `[small_batches]` of the TOML file are settings of their own; `name` in the
    first picks the network.
    """

    pairs: str | None = None
    """Training pairs, from `ananet data build`, or an OANet dump; several are separated by commas; without any,
    only synthetic problems."""
    validation: str | None = None
    """Validation pairs, never trained on."""
    calibration_scenes: tuple[str, ...] = ()
    """Scenes of `pairs` that are kept out of training to calibrate the scores; without any, training pairs are used."""
    excluded_scenes: tuple[str, ...] = ()
    """Scenes of `pairs` that are not used at all, for example because their poses are wrong."""
    inlier_distance: float = INLIER_DISTANCE
    """What counts as right: squared symmetric epipolar distance below this. The paper's 1e-4 is 8 to 10 pixels in a
    photo of 1000; a tighter one teaches which matches are precise."""
    labels: Literal["line", "depth"] = "line"
    """line: a match near the true epipolar line is right, as in the paper. depth: of these, a match is right if it lies
    where the depth of the scene predicts. Pairs without known depth and synthetic problems keep the label by line. A
    network with `right` learns both, each with an output of its own."""
    unknown_weight: float = 0.0
    """With labels by depth, weight of matches near the line whose depth is unknown; 0 leaves them out of the loss.
    Their target is the share of right ones among the known matches near the line in the training pairs, counted for
    mutual matches and for the others."""
    accidental_weight: float = 1.0
    """With labels by depth, weight of matches near the line that the depth calls wrong; there are few of them."""
    synthetic_share: float = 0.25
    """Share of synthetic problems in each batch (1 without `pairs`)."""
    small_share: float = 0.0
    """Share of the steps that take `small_batches`, where given."""
    side_dropout: float = 0.3
    """How often some of a pair's side input is withheld, so that the network also works without it."""
    seeded_share: float = 1.0
    """Share of the steps in which a network with `seeds` attends through them; in the others, to every match."""
    seeded_from: int = 0
    """Step at which these begin. Attending to every match is a good start for both."""
    balance: float = 1.0
    """1 lets a pair's inliers weigh as much as its outliers, as the paper does; 0 lets every match weigh the same."""
    steps: int = 100_000
    """Length of the run."""
    optimizer: str = "adamw"
    """adamw, or muon: orthogonalised updates for matrices between hidden features, AdamW for the rest."""
    learning_rate: float = 1e-3
    """After warm-up."""
    final_learning_rate: float = 1e-5
    """At the last step; the rate falls along a cosine."""
    warmup: int = 500
    """Steps in which the rate rises from 0."""
    weight_decay: float = 0.0
    """With muon for the matrices alone."""
    clip_gradient: float = 1.0
    averaging: float = 0.999
    """Decay of the running average of the weights that is validated and shipped; 0 for the weights themselves."""
    geometric_weight: float = 0.0
    """Weight of the geometric loss of a weighted eight-point solution beside the class loss."""
    geometric_from: int = 20_000
    """Step at which it starts. Before that, the weights are meaningless."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """On the CPU always fp32."""
    compile: bool = True
    """On a single GPU, compile the network: a step takes a quarter of the time, the first one half a minute."""
    seed: int = 0
    validate_every: int = 2_000
    pose_estimator: str | None = None
    """Where given, the final weights are also scored by the poses that this estimator finds on the validation pairs."""
    checkpoint_every: int = 1_000
    log_every: int = 50
    tensorboard: bool = False
    """Whether to write TensorBoard's files beside the log (an extra)."""
    network: NetworkSettings = field(default_factory=ANANetSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    small_batches: BatchSettings | None = None
    """Batches of few matches, for the steps of `small_share`."""

    def check(self) -> None:
        for name in ("steps", "validate_every", "checkpoint_every", "log_every"):
            check_whole_number(name, getattr(self, name), 1)
        for name in ("warmup", "geometric_from", "seeded_from"):
            check_whole_number(name, getattr(self, name), 0)
        for name in ("weight_decay", "geometric_weight", "unknown_weight", "accidental_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if not self.clip_gradient > 0:
            raise InputError(f"clip_gradient: expected a number above 0, got {self.clip_gradient}")
        check_whole_number("seed", self.seed, 0, 2**63 - 1)
        for name in ("synthetic_share", "small_share", "side_dropout", "seeded_share", "balance", "averaging"):
            check_share(name, getattr(self, name))
        check_positive("inlier_distance", self.inlier_distance)
        check_positive("learning_rate", self.learning_rate)
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer: expected {' or '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if not 0 < self.final_learning_rate <= self.learning_rate:
            expected = f"a number above 0 and at most learning_rate ({self.learning_rate:g})"
            raise InputError(f"final_learning_rate: expected {expected}, got {self.final_learning_rate:g}")

        if isinstance(self.network, ANANetSettings) and self.network.right and self.labels != "depth":
            raise InputError(f"labels: expected depth for a network that tells what is right, got {self.labels}")

    def label_rule(self) -> LabelRule:
        return LabelRule(self.inlier_distance, self.labels, self.unknown_weight, self.accidental_weight)

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        path = Path(path)
        if not path.is_file():
            raise InputError(f"settings: no file {path}")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"settings: {path} is not TOML ({error})") from None
        return cls.from_dict(values)

    def replace(self, **values: Any) -> Self:
        """The same settings with some changed; None leaves one as it is."""
        check_names(type(self), values)
        return replace(self, **{name: value for name, value in values.items() if value is not None})
