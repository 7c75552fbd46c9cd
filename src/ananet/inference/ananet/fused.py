"""ANA-Net on a GPU with Triton.

Three kernels per block do the work and a few more the feedback and the groups of seeds, in half precision with
single-precision sums, recorded once as a CUDA graph for each size of batch.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ananet._util.defaults import INLIER_DISTANCE
from ananet.attention.cubic import column_energy
from ananet.attention.second_order import MOMENTS
from ananet.attention.seeded import COMPARED
from ananet.inference.ananet.folded import FoldedANANet, FoldedBlock, Linear
from ananet.inference.engines import Engine, Progress
from ananet.networks.ananet import ANANetSettings
from ananet.networks.seeds import FIRST_STEPS, first_seeds

if TYPE_CHECKING:
    from ananet.inference.calls import DeviceCalls

Result = TypeVar("Result")
# Number of CUDA graphs to keep, one per batch size; the least recently used is dropped first.
GRAPHS_KEPT = 32
# Above this many matches in a batch, launching kernels costs nothing beside running them.
MAX_GRAPH = 131_072
# Padded N is a multiple of this, and so of the number of matches a pointwise program takes.
MIN_BUCKET = 128
# All threads record on one stream of torch's.
_recording = threading.Lock()


class Weights(NamedTuple):
    """What one pointwise kernel reads."""

    matrices: Tensor
    vectors: Tensor


class Graph(NamedTuple):
    replay: Callable[[], None]
    matches: Tensor
    lengths: Tensor
    logits: Tensor


class FusedANANet(Engine):
    """ANA-Net in three Triton kernels per block: attention along rows, down columns, and all that is pointwise."""

    def __init__(self, folded: FoldedANANet, dtype: torch.dtype = torch.float16) -> None:
        self.settings = folded.settings
        self.dtype = dtype
        self.cubic = self.settings.second_order and self.settings.form == "cubic"
        self.moments = MOMENTS[self.settings.form] if self.settings.second_order else 0
        self.projections = 2 if self.settings.share_kv else 3
        self.context_eps = folded.blocks[0].context.norm.eps if folded.blocks[0].context else 0.0
        self.eps = folded.blocks[0].norm.eps
        encoders = [encoder for encoder in (folded.encoder, folded.side_encoder) if encoder is not None]
        self.encoder = self._encoder_weights(encoders, folded.blocks[0].projections)
        self.seed_projections = [self._projections(block.projections) for block in folded.blocks]
        # What a block's matches go on to: the projections of the next block, or logits.
        following: list[Linear] = [*(block.projections for block in folded.blocks[1:]), folded.head]
        self.feedback: Weights | None = None
        if folded.feedback is not None:
            self.feedback = self._encoder_weights([folded.feedback.encoder], folded.blocks[-1].projections)
            following[-2:-1] = [folded.feedback.head]
        self.blocks = [self._block_weights(block, then) for block, then in zip(folded.blocks, following, strict=True)]
        self.graphs: OrderedDict[tuple[int, int], Graph] = OrderedDict()
        self.device = folded.head.weight.device
        # Graphs share their memory: each is done with it before the next one runs. None without CUDA, and no graphs.
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        # Held while a graph is filled, recorded or replayed.
        self.lock = threading.Lock()

    @staticmethod
    def supports(settings: ANANetSettings) -> bool:
        """Whether the kernels can tile such a network's widths."""
        return (
            settings.width in (32, 64, 128, 256)
            and settings.heads <= 16
            and settings.width // settings.heads in (16, 32, 64, 128)
            and settings.channels <= 16
            # Feedback comes between two blocks here.
            and not (settings.feedback and settings.blocks < 2)
        )

    def device_calls(self, decision: float, unseen: float, conflict_odds: float) -> DeviceCalls:
        from ananet.inference.calls import DeviceCalls

        return DeviceCalls(self, decision, unseen, conflict_odds)

    @torch.inference_mode()
    def __call__(self, matches: Tensor, lengths: Tensor | None = None, progress: Progress | None = None) -> Tensor:
        batch, length, channels = matches.shape
        if batch * length == 0:
            return matches.new_zeros(batch, length, dtype=torch.float32)
        size = (batch, bucket(length))
        with self.lock, torch.cuda.device_of(self.encoder.vectors):
            if self.pool is None or batch * length > MAX_GRAPH:
                padded = torch.empty(*size, channels, device=self.device)
                given = torch.empty(batch, dtype=torch.int32, device=self.device)
                return self.run(*_fill(padded, given, matches, lengths))[:, :length]
            graph = self.graphs.pop(size, None) or self._record(size, channels)
            self.graphs[size] = graph
            if len(self.graphs) > GRAPHS_KEPT:
                self.graphs.popitem(last=False)
            _fill(graph.matches, graph.lengths, matches, lengths)
            graph.replay()
            return graph.logits[:, :length].clone()

    def run(self, matches: Tensor, lengths: Tensor, filled: int | None = None) -> Tensor:
        """Launch every kernel once: [B x N x channels] and [B] to [B x N], N a multiple of MIN_BUCKET.

        Args:
            filled: how many matches kernels are tiled for; None for those that there are. Other tiles round otherwise,
                so a fixed number makes results independent of the rest of the batch.
        """
        from ananet.attention.fused import Real, attend, sum_columns
        from ananet.attention.fused_seeds import mean_groups, move_to_nearest, project_groups
        from ananet.inference.ananet import kernels
        from ananet.inference.ananet.consensus import find_distances

        batch, length, channels = matches.shape
        width, heads = self.settings.width, self.settings.heads
        rows, warps = pointwise_tile(batch * length if filled is None else filled, width)
        grid = (batch * length // rows,)
        features = matches.new_empty(batch, length, width, dtype=self.dtype)
        projected = matches.new_empty(batch, length, self.projections, heads, width // heads, dtype=self.dtype)
        query, key, value = self._split(projected)
        attended = torch.empty_like(features)
        output = attended.unflatten(-1, (heads, -1)).transpose(1, 2)
        log_sum = matches.new_empty(batch, heads, length)
        columns = matches.new_empty(self.moments + self.cubic, batch, heads, length)
        real, mask, group, count = Real(lengths), None, None, min(self.settings.seeds, length)
        if self.cubic or count:
            mask = torch.arange(length, device=self.device) < lengths[:, None]
        if count:
            group = first_seeds(matches, count, mask).group.int()
        logits = matches.new_empty(batch, length)
        last = len(self.blocks) - 1
        kernels.encode[grid](
            matches, lengths, features, projected, *self.encoder, length,
            CHANNELS=channels, WIDTH=width, PROJECTIONS=self.projections, ROWS=rows, num_warps=warps,
        )  # fmt: skip
        for number, weights in enumerate(self.blocks):
            feedback = self.feedback if number == last - 1 else None
            if group is None:
                attend(query, key, value, output, log_sum, real, real, filled)
                if self.moments:
                    sum_columns(query, key, log_sum, columns[: self.moments], real, real, filled)
                if self.cubic:
                    columns[2] = column_energy(query, key, mask, log_sum)
            else:
                compared = features[..., :COMPARED]
                for _ in range(FIRST_STEPS if number == 0 else 1):
                    move_to_nearest(compared, *mean_groups(compared, group, count, lengths, filled), group, lengths)
                seed_weights = self.seed_projections[number]
                seed_projected, weight = project_groups(features, group, count, lengths, *seed_weights, filled)
                seed_query, seed_key, seed_value = self._split(seed_projected.unflatten(-1, (heads, -1)))
                seeds = Real(weights=weight)
                attend(query, seed_key, seed_value, output, log_sum, real, seeds, filled)
                if self.moments:
                    seed_log_sum = matches.new_empty(seed_query.shape[:3])
                    attend(seed_query, key, None, None, seed_log_sum, seeds, real, filled)
                    sum_columns(seed_query, key, seed_log_sum, columns, seeds, real, filled)
            kernels.merge[grid](
                features, attended, columns, lengths, projected, logits, *weights, length,
                batch * heads * length, self.context_eps, self.eps,
                HEADS=heads, MOMENTS=len(columns), WIDTH=width, PROJECTIONS=self.projections,
                HEAD=number == last or feedback is not None, LAST=number == last, ROWS=rows, num_warps=warps,
            )  # fmt: skip
            if feedback is not None:
                distances = find_distances(matches, logits, lengths)
                kernels.tell_distance[grid](
                    distances, lengths, features, projected, *feedback, length, INLIER_DISTANCE,
                    WIDTH=width, PROJECTIONS=self.projections, ROWS=rows, num_warps=warps,
                )  # fmt: skip
        return logits

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """[B x N x P x H x D] to query, key and value, [B x H x N x D] each; the value is None where it is the key."""
        query, key, *rest = projected.transpose(1, 3).unbind(2)
        return query, key, rest[0] if rest else None

    def _record(self, size: tuple[int, int], channels: int) -> Graph:
        matches = torch.zeros(*size, channels, device=self.device)
        lengths = torch.full(size[:1], size[1], dtype=torch.int32, device=self.device)
        replay, logits = record(lambda: self.run(matches, lengths), self.pool)
        return Graph(replay, matches, lengths, logits)

    def _encoder_weights(self, encoders: list[list[Linear]], following: Linear) -> Weights:
        """Weights of encoders beside each other, each for its own channels of the input."""
        matrices, vectors = [], []
        channel = 0
        for first, *others in encoders:
            matrices += [layer.weight for layer in others]
            vectors += [_first_of_16(first.weight, channel), first.bias, *(layer.bias for layer in others)]
            channel += first.weight.shape[1]
        return self._weights(matrices, vectors, following)

    def _block_weights(self, block: FoldedBlock, following: Linear) -> Weights:
        matrices, vectors = [], []
        if block.context is not None:
            first, *others = block.context.layers
            heads = len(block.context.alpha)
            alpha = first.weight.new_zeros(16)
            alpha[:heads] = block.context.alpha * (1.0 if self.cubic else math.sqrt(2))
            # sigmoid(0) = 0.5 at heads that are not there meets zero weights.
            padded = first.weight.new_zeros(len(first.weight), 16)
            padded[:, :heads] = first.weight
            matrices += [padded, *(layer.weight for layer in others)]
            vectors += [alpha, first.bias, *(layer.bias for layer in others), *block.context.norm[:2]]
        matrices += [block.merge_features.weight, block.merge_attended, block.merge.weight]
        vectors += [block.merge_features.bias, block.merge.bias, *block.norm[:2]]
        return self._weights(matrices, vectors, following)

    def _projections(self, projections: Linear) -> Weights:
        matrices = projections.weight.split(self.settings.width)
        return Weights(torch.cat([matrix.T.flatten() for matrix in matrices]).to(self.dtype), projections.bias.float())

    def _weights(self, matrices: list[Tensor], vectors: list[Tensor], following: Linear) -> Weights:
        if len(following.weight) == 1:  # a head works in single precision
            vectors = [*vectors, following.weight, following.bias]
        else:
            matrices = [*matrices, *following.weight.split(self.settings.width)]
            vectors = [*vectors, following.bias]
        return Weights(
            torch.cat([matrix.T.flatten() for matrix in matrices]).to(self.dtype),
            torch.cat([vector.flatten() for vector in vectors]).float(),
        )


def record(run: Callable[[], Result], pool: Any) -> tuple[Callable[[], None], Result]:
    """What launches all kernels of a run at once, as a CUDA graph, and the result that it will write anew each time."""
    with _recording:
        # Kernels are compiled on their first run, which must not be recorded.
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = run()
    return graph.replay, result


def _first_of_16(weight: Tensor, channel: int) -> Tensor:
    """[16 x 16] transposed weights of a first layer that reads the channels from the given one on."""
    padded = weight.new_zeros(16, 16)
    padded[channel : channel + weight.shape[1]] = weight.T
    return padded


def bucket(length: int) -> int:
    """N rounded up so that few different N remain, none more than a quarter larger.

    >>> [bucket(n) for n in (1, 128, 129, 2000, 2049, 8192)]
    [128, 128, 256, 2048, 2560, 8192]
    """
    step = max(MIN_BUCKET, 2 ** ((length - 1).bit_length() - 3))
    return -(-length // step) * step


def pointwise_tile(rows: int, width: int) -> tuple[int, int]:
    """Matches and warps of a pointwise program: few of each while that spreads them over more multiprocessors."""
    if rows <= 2048:
        return 16, 4
    if width == 32:
        return 32, 4  # larger tiles of so narrow a network read beyond memory on Hopper (Triton 3.6)
    return (32, 8) if rows <= 4096 else (64, 4)


def _fill(padded: Tensor, given: Tensor, matches: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    padded[:, : matches.shape[1]] = matches
    if lengths is None:
        given.fill_(matches.shape[1])
    else:
        given.copy_(lengths)
    return padded, given
