"""Export of trained networks to ONNX, for programs without PyTorch.

The file does all steps of a learned pruner but normalisation, which its metadata describe; with `pixels`, this too.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ananet.core.cameras import FOCAL_GUESS, calibrate
from ananet.core.conflicts import APART, MAX_DOUBT, doubt_at
from ananet.errors import InputError, MissingExtraError
from ananet.inference.ananet.folded import FoldedANANet
from ananet.io.files import atomic_path, check_output
from ananet.networks import ANANet, Network
from ananet.networks.input import MAX_COORDINATE, MAX_MARGIN, SIDE_INPUT, side_input
from ananet.pruners.base import MAX_LOGIT, Pruner
from ananet.pruners.learned import LearnedPruner

# The lowest with all operators (ScatterElements with a minimum).
OPSET = 18
# Raw numbers that each kind of side input is made of.
SIDE_NUMBERS = {
    "ratio": ("ratio",),
    "mutual": ("mutual",),
    "size": ("keypoint_size0", "keypoint_size1"),
    "angle": ("angle0", "angle1"),
}
# What a file that takes pixels has as side input, whichever of it the network reads.
ALL_NUMBERS = [number for name in SIDE_INPUT for number in SIDE_NUMBERS[name]]
PIXEL_SIDE_HELP = (
    "ratio in [0, 1]; mutual 0 or 1; size: keypoint diameter in pixels; angle in radians from the x axis towards the y "
    "axis; NaN where not known"
)
INPUTS, OUTPUTS = ("matches", "side"), ("logits", "scores", "mask")
PIXEL_INPUTS = ("points0", "points1", "K0", "K1", "image_size0", "image_size1", "threshold", "conflict_odds", "side")


def export(pruner: Pruner, path: str | Path, *, pixels: bool = False) -> dict[str, str]:
    """Write the network of a pruner, with its threshold and conflict odds, to an ONNX file.

    Args:
        pruner: as `ananet.load("ananet", device="cpu")` gives it.
        path: of the file.
        pixels: let the file take one pair in pixels, and do all that a call of the pruner does.

    Returns:
        The metadata of the file.

    Input `matches` [B x N x 4]: normalised x0 y0 x1 y1; matches out of view, and NaN as padding, are ignored.
    Input `side` [B x N x numbers], only for networks with side input: see the metadata; NaN if unknown.
    Output `logits`, `scores` (float32) and `mask` (bool), [B x N] each: the pruner's result.

    With `pixels`, inputs are `points0`, `points1` [N x 2], `K0`, `K1` [3 x 3], `image_size0`, `image_size1` [2], and
    the numbers `threshold` and `conflict_odds`, all float64; NaN where cameras or sizes are not known. For networks
    with side input there is `side` [N x 6] too: ratio, mutual flag, both keypoint sizes in pixels, both angles. Outputs
    are [N].
    """
    if not isinstance(pruner, LearnedPruner):
        given = getattr(pruner, "name", type(pruner).__name__)
        raise InputError(f"pruner: expected one network, such as ananet or ananet-small, got {given}")
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "onnx")
    check_output(path)
    metadata = describe(pruner)
    if pixels:
        metadata |= {"input": "pixels", "normalization": "in the file", "side_help": PIXEL_SIDE_HELP}
        metadata["side"] = json.dumps(ALL_NUMBERS if pruner.network.settings.side else [])
    program = _translated(pruner, pixels)
    # Where each operator comes from: most of a small file, and paths of this machine.
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    program.model.metadata_props.update(metadata)
    with atomic_path(path) as temporary:
        program.save(temporary)
    return metadata


def describe(pruner: LearnedPruner) -> dict[str, str]:
    """Return the metadata that a program needs to prepare the input, as text."""
    side = pruner.network.settings.side
    return {
        "ananet_version": version("ananet"),
        "pruner": pruner.name,
        "network": json.dumps(pruner.network.description()),
        "threshold": repr(1 / (1 + math.exp(-pruner.decision))),
        "decision_logit": repr(pruner.decision),
        "conflict_odds": repr(float(pruner.conflict_odds)),
        "conflict_distance": repr(APART),
        "side": json.dumps([number for name in side for number in SIDE_NUMBERS[name]]),
        "side_help": "ratio in [0, 1]; mutual 0 or 1; size: keypoint diameter in the scale of the normalised points; "
        "angle in radians from the x axis towards the y axis; NaN where not known",
        "normalization": "with camera matrices: K^-1 p; without: (p - (width, height) / 2) / (0.7 max(width, height)); "
        "pixels p = (x, y), (0, 0) being the centre of the first",
        "max_coordinate": repr(MAX_COORDINATE),
        "max_margin": repr(MAX_MARGIN),
    }


class PrunerGraph(nn.Module):
    """All steps of a learned pruner on normalised matches, in operators that ONNX has."""

    def __init__(self, pruner: LearnedPruner) -> None:
        super().__init__()
        network = copy.deepcopy(pruner.network).cpu().eval()
        self.side = network.settings.side
        self.score = FoldedANANet(network).score if isinstance(network, ANANet) else network
        self.decision, self.odds = pruner.decision, pruner.conflict_odds

    def forward(self, matches: Tensor, side: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        # One row of padding, since operators fail on empty input.
        matches = pad(matches)
        side = None if side is None else pad(side)
        # NaN compares as False.
        seen = (matches.abs() <= MAX_COORDINATE).all(-1)
        return self.pruned(matches, side, seen, self.decision, None if self.odds == 1 else doubt_at(self.odds))

    def pruned(
        self,
        matches: Tensor,
        side: Tensor | None,
        seen: Tensor,
        decision: float | Tensor,
        doubt: float | Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, scores and mask of normalised matches with a row of padding, of which the network sees some."""
        matches = matches.where(seen[..., None], 0.0)
        shown = matches if side is None else torch.cat([matches, side_channels(self.side, side)], dim=-1)
        logits = penalize_conflicts(self.score(shown, seen), matches, doubt, seen)
        wrong = min(-MAX_LOGIT, decision) if isinstance(decision, float) else decision.clamp(max=-MAX_LOGIT)
        logits = logits.where(~logits.isnan(), decision).where(seen, wrong)
        logits = logits[:, :-1]
        return logits, logits.sigmoid().clamp(max=1 - 2.0**-24), logits > decision


class PixelGraph(PrunerGraph):
    """The same on one pair as a program has it: pixels, cameras or image sizes, and how to decide."""

    def forward(  # type: ignore[override]
        self,
        points0: Tensor,
        points1: Tensor,
        K0: Tensor,
        K1: Tensor,
        image_size0: Tensor,
        image_size1: Tensor,
        threshold: Tensor,
        conflict_odds: Tensor,
        side: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # One row of padding, since operators fail on empty input.
        points0, points1 = (pad(points[None])[0] for points in (points0, points1))
        both = []
        inside = torch.ones_like(points0[:, 0], dtype=torch.bool)
        cameras = [camera_or_guess(K, size) for K, size in ((K0, image_size0), (K1, image_size1))]
        for points, K, size in ((points0, cameras[0], image_size0), (points1, cameras[1], image_size1)):
            both.append(calibrate(points, K).float())
            # NaN compares as False: without a size, there is no margin to be outside of.
            margin = MAX_MARGIN * size.max()
            inside = inside & ~((points < -margin) | (points > size + margin)).any(-1)
        matches = torch.cat(both, dim=-1)[None]
        seen = (matches.abs() <= MAX_COORDINATE).all(-1) & inside
        if side is not None:
            side = pad(self.with_normalized_sizes(side, cameras)[None])
        decision = (threshold / (1 - threshold)).log().float()
        doubt = conflict_odds.log().clamp(max=MAX_DOUBT).float()
        logits, scores, mask = self.pruned(matches, side, seen, decision, doubt)
        return logits[0], scores[0], mask[0]

    def with_normalized_sizes(self, side: Tensor, cameras: list[Tensor]) -> Tensor:
        """[N x numbers] that the network reads of all, with keypoint sizes in the scale of normalised points."""
        focal = {f"keypoint_size{i}": ((K[0, 0] + K[1, 1]) / 2).float() for i, K in enumerate(cameras)}
        read = [number for name in self.side for number in SIDE_NUMBERS[name]]
        one = torch.ones_like(next(iter(focal.values())))
        columns = [ALL_NUMBERS.index(name) for name in read]
        return side[:, columns] / torch.stack([focal.get(name, one) for name in read])


def camera_or_guess(K: Tensor, size: Tensor) -> Tensor:
    """[3 x 3] the camera matrix, or what `core.cameras.scale_by_size` divides by where it is NaN."""
    focal = FOCAL_GUESS * size.max()
    zero, one = torch.zeros_like(focal), torch.ones_like(focal)
    guess = torch.stack([focal, zero, size[0] / 2, zero, focal, size[1] / 2, zero, zero, one])
    return torch.where(K.isnan().any(), guess.reshape(3, 3), K)


def pad(numbers: Tensor) -> Tensor:
    """[B x N x C] numbers with one more row, of NaN."""
    return torch.cat([numbers, numbers.new_full((numbers.shape[0], 1, numbers.shape[2]), math.nan)], dim=1)


def side_channels(side: tuple[str, ...], numbers: Tensor) -> Tensor:
    """[B x N x channels] side input from raw numbers [B x N x numbers]; 0 if a number is NaN."""
    lengths = [len(SIDE_NUMBERS[name]) for name in side]
    known = ~numbers.isnan()
    # Any finite number, since unknown ones are masked below.
    given = dict(zip(side, numbers.where(known, 1.0).split(lengths, -1), strict=True))
    ratio, mutual = (given[name][..., 0] if name in given else None for name in ("ratio", "mutual"))
    channels = side_input(side, numbers[..., 0], ratio, mutual, given.get("size"), given.get("angle"))
    usable = [
        part.all(-1, keepdim=True).expand(*part.shape[:-1], SIDE_INPUT[name])
        for name, part in zip(side, known.split(lengths, -1), strict=True)
    ]
    return channels * torch.cat(usable, -1)


def penalize_conflicts(logits: Tensor, matches: Tensor, doubt: float | Tensor | None, mask: Tensor) -> Tensor:
    """`ananet.core.conflicts.penalize_conflicts` in operators that ONNX has; [B x N], [B x N x 4], [B x N].

    Args:
        doubt: what the logits of conflicting matches lose; None for nothing.
    """
    if doubt is None:
        return logits
    order = logits.masked_fill(~mask, -math.inf).sort(dim=1, descending=True, stable=True).indices
    places = torch.arange(logits.shape[1], device=logits.device).expand_as(order)
    rank = torch.zeros_like(order).scatter(1, order, places)
    first, second = matches[..., :2], matches[..., 2:4]
    outdone = torch.zeros_like(mask)
    for here, there in ((first, second), (second, first)):
        group = _same_points(here)
        best_rank = (rank + logits.shape[1]).scatter_reduce(1, group, rank, "amin", include_self=True)
        best = order.gather(1, best_rank.gather(1, group))
        distance = (there - there.gather(1, best[..., None].expand_as(there))).norm(dim=-1)
        outdone = outdone | (distance > APART)
    return torch.where(outdone, logits - doubt, logits)


def _same_points(points: Tensor) -> Tensor:
    """[B x N x 2] to [B x N] numbers below N, the same for the same points."""
    x, y = _numbered(points[..., 0]), _numbered(points[..., 1])
    return _numbered(x * points.shape[1] + y)


def _numbered(values: Tensor) -> Tensor:
    """[B x N] numbers below N, the same for the same values."""
    ordered, order = values.sort(dim=1, stable=True)
    new = (ordered[:, 1:] != ordered[:, :-1]).long().cumsum(1)
    numbers = torch.cat([torch.zeros_like(order[:, :1]), new], dim=1)
    return torch.zeros_like(order).scatter(1, order, numbers)


def _translated(pruner: LearnedPruner, pixels: bool) -> Any:
    """Translate the pruner to an ONNX program."""
    from ananet.integrations.onnx import operators

    graph = (PixelGraph if pixels else PrunerGraph)(pruner).eval()
    numbers = sum(len(SIDE_NUMBERS[name]) for name in graph.side)
    pairs, count = torch.export.Dim("pairs", min=1, max=2**20), torch.export.Dim("count", min=0, max=2**30)
    if pixels:
        single = [torch.tensor(value, dtype=torch.float64) for value in (0.4, 30.0)]
        sizes = [torch.tensor([640.0, 480.0], dtype=torch.float64)] * 2
        given = [*torch.rand(2, 50, 2, dtype=torch.float64), *torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)]
        example = (*given, *sizes, *single, torch.rand(50, len(ALL_NUMBERS)))[: 9 if numbers else 8]
        names = PIXEL_INPUTS[: len(example)]
        shapes = {name: {0: count} if name in ("points0", "points1", "side") else {} for name in names}
    else:
        example = (torch.rand(2, 50, 4), torch.rand(2, 50, numbers))[: 2 if numbers else 1]
        names = INPUTS[: len(example)]
        shapes = {name: {0: pairs, 1: count} for name in names}
    settings: dict[str, Any] = {
        "dynamo": True,
        "opset_version": OPSET,
        "input_names": names,
        "output_names": OUTPUTS,
        "dynamic_shapes": shapes,
        "custom_translation_table": {
            torch.ops.ananet.attend_and_sum_columns.default: operators.attend_and_sum_columns,
            torch.ops.aten.scalar_tensor.default: operators.scalar,
            torch.ops.aten.sort.stable: operators.stable_sort,
        },
        "verbose": False,
    }
    with _quiet(), _named_errors(pruner.network), torch.no_grad():
        if needs_whole_map(pruner.network):
            # Attention chooses its eager form when it is exported like this.
            return torch.onnx.export(graph, example, **settings)
        traced = torch.export.export(graph, example, dynamic_shapes=shapes)
        return torch.onnx.export(traced, **settings)


def needs_whole_map(network: Network) -> bool:
    """Return whether the network needs the whole attention map, as only the cubic form does."""
    return isinstance(network, ANANet) and network.settings.second_order and network.settings.form == "cubic"


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's warnings about its internals and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _named_errors(network: Network) -> Iterator[None]:
    """Name the network if ONNX lacks operators for it."""
    try:
        yield
    except (torch.onnx.OnnxExporterError, torch._dynamo.exc.TorchDynamoException) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = str(cause).strip().splitlines()[0]
        raise InputError(f"network {network.name!r} cannot be exported: {reason}") from error
