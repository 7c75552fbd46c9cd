"""A pruner's whole call on a GPU: one upload of raw matches, one CUDA graph from pixels to masks, one download.

Nothing waits for the device until a result is needed, so the next matches are packed while it works. Values
that came on the device are checked there, by the kernel that reads them anyway.

The eager reference path is what `LearnedPruner` does on a CPU; `ANANET_CALLS=plain` selects it on a GPU.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ananet.core.cameras import FOCAL_GUESS, camera_matrix
from ananet.core.conflicts import APART, doubt_at
from ananet.core.correspondences import MAX_ANGLE, Correspondences
from ananet.inference.ananet.fused import MAX_GRAPH, MIN_BUCKET, FusedANANet, bucket, record
from ananet.networks.input import MAX_MARGIN, side_channels, side_input

# Matches of a batch that the network gets at once, padding included: enough to fill a GPU, little enough to fit.
MATCHES_AT_ONCE = 65_536
# Groups of one batch in flight at once; each has its own page-locked memory.
GROUPS_UNDER_WAY = 8
# Number of CUDA graphs to keep, one per shape; the least recently used is dropped first.
GRAPHS_KEPT = 128
# The row of float64 numbers of a pair, which `call_kernels.gather` reads: where both camera matrices begin, the view in
# pixels of either image, four addresses (of both cameras and point sets), whether points and cameras are in single
# precision, and the limits of every side number.
K0_AT, K1_AT, VIEW0_AT, VIEW1_AT = 0, 9, 18, 21
ADDRESSES_AT, SINGLE_POINTS_AT, SINGLE_CAMERAS_AT, LIMITS_AT = 24, 28, 29, 30
ADDRESSES = slice(ADDRESSES_AT, ADDRESSES_AT + 4)
# Limits of known side input.
SIDE_LIMITS = {"ratio": (0.0, 1.0), "mutual": (0.0, 1.0), "angle": (-MAX_ANGLE, MAX_ANGLE)}
SIDE_LIMITS["size"] = (5e-324, float(np.finfo(np.float64).max))
# Matches that a program of either kernel takes at a time.
GATHER_BLOCK, DECIDE_BLOCK = 1024, 256


class Result(NamedTuple):
    """[N] each, numpy arrays or tensors as the points came."""

    mask: Any
    scores: Any
    logits: Any


class Shape(NamedTuple):
    """Shape of a CUDA graph: number of pairs, matches per pair at most, channels of the network."""

    batch: int
    length: int
    channels: int
    alone: bool
    """Whether kernels are tiled for one pair that someone waits for, or for as many as fill the GPU. Which pairs are
    beside one then does not change its result."""

    @property
    def capacity(self) -> int:
        return self.batch * self.length

    @property
    def camera_numbers(self) -> int:
        return LIMITS_AT + 2 * (self.channels - 4)

    @property
    def header(self) -> int:
        """Numbers before those of matches: cameras of all pairs, and where each begins."""
        return (self.batch * (self.camera_numbers + 1) + 2) // 2 * 2

    @property
    def numbers(self) -> int:
        return self.header + self.capacity * self.channels

    @property
    def flags(self) -> int:
        """Bytes before those of the results."""
        return -(-4 * self.batch // 16) * 16

    @property
    def result_bytes(self) -> int:
        return self.flags + 9 * self.capacity

    def cut(self, sent: Tensor, received: Tensor, *, on_host: bool) -> Memory:
        """Both memories cut for this shape; their parts in numpy on the host, where it takes less time than torch."""
        return Memory(
            sent[: self.header],
            sent[: self.numbers],
            self.split(sent.numpy() if on_host else sent),
            received[: self.flags],
            received[: self.result_bytes],
            self.split_results(received.numpy() if on_host else received),
        )

    def split(self, numbers: Any) -> Packed:
        """Split a buffer into its arrays.

        Cameras [B x numbers], addresses within [B x 4], starts [B + 1], pixels [2 x capacity x 2] and side numbers
        [k x capacity].
        """
        cameras = self.batch * self.camera_numbers
        side = self.header + 4 * self.capacity
        whole = torch.int64 if isinstance(numbers, Tensor) else np.int64
        rows = numbers[:cameras].reshape(self.batch, -1)
        return Packed(
            rows,
            rows.view(whole)[:, ADDRESSES],
            numbers[cameras : cameras + self.batch + 1].view(whole),
            numbers[self.header : side].reshape(2, self.capacity, 2),
            numbers[side : self.numbers].reshape(self.channels - 4, self.capacity),
        )

    def split_results(self, results: Any) -> Found:
        """Flags [B], and logits, scores and masks [capacity] of the results."""
        library: Any = torch if isinstance(results, Tensor) else np
        logits, scores, mask = (self.flags + times * self.capacity for times in (0, 4, 8))
        return Found(
            results[: 4 * self.batch].view(library.int32),
            results[logits:scores].view(library.float32),
            results[scores:mask].view(library.float32),
            results[mask : self.result_bytes].view(library.bool if library is torch else np.bool_),
        )


class Packed(NamedTuple):
    """The parts of what is sent; see `Shape.split`."""

    cameras: Any
    addresses: Any
    start: Any
    points: Any
    side_numbers: Any


class Found(NamedTuple):
    """The parts of what comes back; see `Shape.split_results`."""

    flags: Any
    logits: Any
    scores: Any
    mask: Any


class Memory(NamedTuple):
    """Memory as a shape uses it: cutting it anew for every call would take longer than the copies."""

    header: Tensor
    numbers: Tensor
    packed: Packed
    flags: Tensor
    results: Tensor
    found: Found


class Slot:
    """Memory of the host that the device reads and writes by itself."""

    def __init__(self, size: int, on_gpu: bool) -> None:
        self.sent = torch.empty(size, dtype=torch.float64, pin_memory=on_gpu)
        # A match has at least four numbers, and 9 bytes of results.
        self.received = torch.empty(3 * size + 64, dtype=torch.uint8, pin_memory=on_gpu)
        self.done = torch.cuda.Event() if on_gpu else None
        self._cut: dict[Shape, Memory] = {}

    def cut(self, shape: Shape) -> Memory:
        if shape not in self._cut:
            self._cut[shape] = shape.cut(self.sent, self.received, on_host=True)
        return self._cut[shape]


class DeviceCalls:
    """What a pruner does, from raw matches to masks, in one CUDA graph for each shape.

    Args:
        engine: the network.
        decision: the logit above which a match is kept.
        unseen: the logit of a match out of view.
        conflict_odds: see `ananet.core.conflicts`.
    """

    def __init__(self, engine: FusedANANet, decision: float, unseen: float, conflict_odds: float) -> None:
        self.engine, self.device = engine, engine.device
        self.decision, self.unseen, self.conflict_odds = decision, unseen, conflict_odds
        self.notify: Callable[[str], object] | None = None
        """Called with what a first call waits for."""
        self.side = engine.settings.side
        self.channels = 4 + side_channels(self.side)
        self.graphs: OrderedDict[Shape, Callable[[], None]] = OrderedDict()
        # Not the engine's pool, since its graphs do not wait for these.
        self.pool = None if engine.pool is None else torch.cuda.graph_pool_handle()
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._cut: dict[Shape, Memory] = {}
        self._slots: dict[int, list[Slot]] = defaultdict(list)
        self._last: Any = None
        """CUDA event after the last run, which is the only one that may still use the buffers."""

    def start(self, pairs: Sequence[Correspondences], *, alone: bool = False) -> Callable[[], list[Result]]:
        """Send non-empty pairs to the device; return a function that waits for the results.

        Args:
            alone: optimise for the latency of one pair. Kernels are tiled differently than for a batch, and round
                differently in half precision.
        """
        pairs = [pair._as_tensors() for pair in pairs]
        for pair in pairs:
            if not pair._values_are_checked and self._leaves_unread(pair):
                pair._check_values()
        if alone and len(pairs) == 1:
            with self._in_turn():
                return self._send(pairs, Shape(1, bucket(len(pairs[0])), self.channels, alone=True))
        groups = self.groups([len(pair) for pair in pairs])
        found: dict[int, Result] = {}
        under_way: deque[tuple[list[int], Callable[[], list[Result]]]] = deque()

        def take_first() -> None:
            group, wait = under_way.popleft()
            found.update(zip(group, wait(), strict=True))

        with self._in_turn():
            for group, shape in groups:
                if len(under_way) == GROUPS_UNDER_WAY:
                    take_first()
                under_way.append((group, self._send([pairs[i] for i in group], shape)))

        def results() -> list[Result]:
            while under_way:
                take_first()
            return [found[i] for i in range(len(pairs))]

        return results

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Graphs share their memory, so one runs at a time, whatever thread or stream it comes from.

        Buffers are kept, so they are ordinary tensors even where the caller is in inference mode.
        """
        ordinary = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
        with self.engine.lock, ordinary, torch.cuda.device_of(self.engine.encoder.vectors):
            # Most callers have waited for their last result already, and a look takes less time than a wait.
            if self._last is not None and not self._last.query():
                self._last.wait()
            yield

    def _leaves_unread(self, pair: Correspondences) -> bool:
        """Whether the pair has values that no kernel checks."""
        given = {"ratio": pair.ratio, "size": pair.keypoint_sizes0, "angle": pair.angles0}
        return any(values is not None and name not in self.side for name, values in given.items())

    def groups(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], Shape]]:
        """Numbers of pairs that run together, and their shape: few different ones, since each has a graph."""
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, length in enumerate(lengths):
            by_length[padded_length(length)].append(number)
        for length, numbers in sorted(by_length.items(), reverse=True):
            at_once = max(1, MATCHES_AT_ONCE // length)
            for first in range(0, len(numbers), at_once):
                group = numbers[first : first + at_once]
                yield group, Shape(_next_power_of_2(len(group)), length, self.channels, alone=False)

    def shapes_of(self, lengths: Sequence[int]) -> list[Shape]:
        """Of pairs of so many matches, alone and in batches that fill the GPU."""
        found = []
        for length in lengths:
            found.append(Shape(1, bucket(length), self.channels, alone=True))
            padded = padded_length(length)
            found.append(Shape(max(1, MATCHES_AT_ONCE // padded), padded, self.channels, alone=False))
        return list(dict.fromkeys(found))

    def record(self, shape: Shape) -> None:
        """Compile and record what runs on a shape, before it is needed."""
        with self._in_turn():
            memory = self._memory(shape)
            memory.header.zero_()  # no pair has any match
            self._run(shape, memory)
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()

    def _send(self, pairs: Sequence[Correspondences], shape: Shape) -> Callable[[], list[Result]]:
        slot, device = self._slot(shape), self._memory(shape)
        host = slot.cut(shape)
        on_host = [_on_host(pair) for pair in pairs]
        sent = [pair if here else _readable(pair, self.device) for pair, here in zip(pairs, on_host, strict=True)]
        start = _pack(host.packed, device.packed, sent, self.side)
        if any(on_host):
            device.numbers.copy_(host.numbers, non_blocking=True)
        else:
            device.header.copy_(host.header, non_blocking=True)
        if self.side and not all(on_host):
            _pack_on_device(device.packed, sent, start, self.side)
        self._run(shape, device)
        copied = None if all(on_host) else device.results.clone()
        if any(on_host):
            host.results.copy_(device.results, non_blocking=True)
        else:
            host.flags.copy_(device.flags, non_blocking=True)
        if slot.done is not None:
            slot.done.record()
            self._last = slot.done
        # While the device works.
        bounds = list(pairwise(start))
        on_device = {}
        if copied is not None:
            parts = shape.split_results(copied)
            on_device = {n: _result(pair, parts, *bounds[n]) for n, pair in enumerate(pairs) if not on_host[n]}

        def results() -> list[Result]:
            if slot.done is not None:
                slot.done.synchronize()
            # The next call will overwrite them.
            found = Found(*(values[: start[-1]].copy() for values in host.found)) if any(on_host) else host.found
            flags = host.found.flags[: len(pairs)].tolist()
            if shape.capacity <= MAX_GRAPH:  # larger ones are cheaper to allocate anew than to keep
                self._slots[_next_power_of_2(shape.numbers)].append(slot)
            for pair, flag in zip(sent, flags, strict=True):  # kernels read them until now
                if flag and not pair._values_are_checked:
                    pair._check_values()
            return [on_device.get(n) or _result(pair, found, *bounds[n]) for n, pair in enumerate(pairs)]

        return results

    def _slot(self, shape: Shape) -> Slot:
        size = _next_power_of_2(shape.numbers)
        free = self._slots[size]
        return free.pop() if free else Slot(size, self.device.type == "cuda")

    def _memory(self, shape: Shape) -> Memory:
        """What kernels read and write: the same for all graphs, since one runs at a time."""
        if shape.capacity > MAX_GRAPH:
            return shape.cut(*self._allocated(shape), on_host=False)
        if self._buffers is None:
            # Many small pairs have the most cameras.
            most = Shape(MAX_GRAPH // MIN_BUCKET, MIN_BUCKET, self.channels, alone=False)
            self._buffers = self._allocated(most)
        if shape not in self._cut:
            self._cut[shape] = shape.cut(*self._buffers, on_host=False)
        return self._cut[shape]

    def _allocated(self, shape: Shape) -> tuple[Tensor, Tensor]:
        return (
            torch.empty(shape.numbers, dtype=torch.float64, device=self.device),
            torch.empty(shape.result_bytes, dtype=torch.uint8, device=self.device),
        )

    def _run(self, shape: Shape, memory: Memory) -> None:
        """Launch all kernels on what has come in, at once where they were recorded."""
        if self.pool is None or shape.capacity > MAX_GRAPH:
            return self._launch(shape, memory)
        replay = self.graphs.pop(shape, None)
        if replay is None:
            if self.notify is not None and not self.graphs:
                self.notify("preparing GPU kernels; the first time on a machine they are compiled for a minute")
            replay, _ = record(lambda: self._launch(shape, memory), self.pool)
        self.graphs[shape] = replay
        if len(self.graphs) > GRAPHS_KEPT:
            self.graphs.popitem(last=False)
        return replay()

    def _launch(self, shape: Shape, memory: Memory) -> None:
        from ananet.core.fused_conflicts import lower_conflicting
        from ananet.inference import call_kernels

        cameras, addresses, start, _, side_numbers = memory.packed
        bad, logits, scores, mask = memory.found
        matches = torch.empty(shape.batch, shape.length, shape.channels, device=self.device)
        lengths = torch.empty(shape.batch, dtype=torch.int32, device=self.device)
        place = torch.empty(shape.capacity, dtype=torch.int32, device=self.device)
        side = self._side_input(side_numbers) if self.side else matches
        call_kernels.gather[(shape.batch,)](
            cameras, addresses, start, side_numbers, side, matches, place, lengths, bad, shape.length,
            ROW=shape.camera_numbers, CHANNELS=shape.channels, BLOCK=GATHER_BLOCK, num_warps=8,
        )  # fmt: skip
        found = self.engine.run(matches, lengths, None if shape.alone else MATCHES_AT_ONCE)
        if self.conflict_odds != 1:
            found = lower_conflicting(found, matches, APART, doubt_at(self.conflict_odds), lengths=lengths)
        call_kernels.decide[(-(-shape.length // DECIDE_BLOCK), shape.batch)](
            found, start, place, logits, scores, mask.view(torch.uint8), shape.length, self.unseen, self.decision,
            BLOCK=DECIDE_BLOCK,
        )  # fmt: skip

    def _side_input(self, numbers: Tensor) -> Tensor:
        """What the network reads [S x side] of raw side numbers [side x S]; those not known are NaN, and 0 here."""
        raw = numbers.float().T
        given, column = {}, 0
        for name in self.side:
            count = side_channels([name])
            given[name] = raw[:, column : column + count]
            column += count
        ratio, mutual = (given[name][:, 0] if name in given else None for name in ("ratio", "mutual"))
        channels = side_input(self.side, raw[:, 0], ratio, mutual, given.get("size"), given.get("angle"))
        return channels.nan_to_num(nan=0.0).contiguous()


def padded_length(length: int) -> int:
    """N of the graph that a pair of so many matches has in a batch, whatever is beside it: padding costs little there.

    >>> [padded_length(n) for n in (1, 500, 2000, 2049, 70_000)]
    [128, 512, 2048, 4096, 81920]
    """
    return max(MIN_BUCKET, _next_power_of_2(length)) if length <= MATCHES_AT_ONCE else bucket(length)


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _on_host(pair: Correspondences) -> bool:
    return pair.points0.device.type == "cpu"


def _readable(pair: Correspondences, device: torch.device) -> Correspondences:
    """The pair as kernels read it where it is: in the device's memory, without gaps, in one precision."""
    given = {name: getattr(pair, name) for name in ("points0", "points1", "K0", "K1")}
    given = {name: values for name, values in given.items() if values is not None}
    dtype = pair.points0.dtype
    if dtype in (torch.float32, torch.float64) and all(
        values.device == device and values.dtype == dtype and values.is_contiguous() for values in given.values()
    ):
        return pair
    return pair.to(device).replace(
        **{name: values.to(device, torch.float64).contiguous() for name, values in given.items()}
    )


def _pack(packed: Packed, device: Packed, pairs: Sequence[Correspondences], side: Sequence[str]) -> list[int]:
    """Write what the device needs of pairs, but for values that are there already; where each pair begins.

    Args:
        device: where this will be copied to.
    """
    cameras, addresses, start, points, side_numbers = packed
    row_bytes, first_camera, first_point = 8 * cameras.shape[1], device.cameras.data_ptr(), device.points.data_ptr()
    begins = [0]
    for number, (row, pair) in enumerate(zip(cameras, pairs, strict=False)):
        begin, end = begins[-1], begins[-1] + len(pair)
        begins.append(end)
        on_host = _on_host(pair)
        K0 = first_camera + number * row_bytes
        at = [K0, K0 + 8 * K1_AT, first_point + 16 * begin, first_point + 16 * (points.shape[1] + begin)]
        single_points = single_cameras = False
        if on_host:
            points[0, begin:end] = pair.points0.numpy()
            points[1, begin:end] = pair.points1.numpy()
        else:
            at[2:] = pair.points0.data_ptr(), pair.points1.data_ptr()
            single_points = pair.points0.dtype == torch.float32
        if pair.K0 is None or pair.K1 is None:
            row[K0_AT:VIEW0_AT] = _cameras_by_size(pair)
        elif on_host:
            row[K0_AT:K1_AT] = pair.K0.numpy().ravel()
            row[K1_AT:VIEW0_AT] = pair.K1.numpy().ravel()
        else:
            at[:2] = pair.K0.data_ptr(), pair.K1.data_ptr()
            single_cameras = pair.K0.dtype == torch.float32
        addresses[number] = at
        row[VIEW0_AT:ADDRESSES_AT] = (*_view(pair.image_size0), *_view(pair.image_size1))
        row[SINGLE_POINTS_AT], row[SINGLE_CAMERAS_AT] = single_points, single_cameras
        for column, (name, values) in enumerate(_side_numbers(pair, side)):
            limits = LIMITS_AT + 2 * column
            row[limits : limits + 2] = math.nan if values is None else SIDE_LIMITS[name]
            if on_host:
                side_numbers[column, begin:end] = math.nan if values is None else values.numpy()
    start[: len(begins)] = begins
    start[len(begins) :] = begins[-1]
    return begins


def _view(size: tuple[float, float] | None) -> tuple[float, float, float]:
    """The least coordinate, and the largest x and y, of pixels that may be seen; see `networks.input.within_view`."""
    if size is None:
        return -math.inf, math.inf, math.inf
    margin = MAX_MARGIN * max(size)
    return -margin, size[0] + margin, size[1] + margin


def _cameras_by_size(pair: Correspondences) -> np.ndarray:
    """[18] what stands for K0 and K1 where only the sizes of images are known."""
    sizes = np.array(pair._sizes_for_cameras())
    return np.concatenate([camera_matrix(*[FOCAL_GUESS * max(size)] * 2, *size / 2).ravel() for size in sizes])


def _side_numbers(pair: Correspondences, side: Sequence[str]) -> Iterator[tuple[str, Tensor | None]]:
    """Raw numbers of each kind of side input; None where they are not known."""
    for name in side:
        if name == "ratio":
            yield name, pair.ratio
        elif name == "mutual":
            yield name, pair.mutual
        else:
            both = pair.normalized_sizes() if name == "size" else pair.angles()
            for image in (0, 1):
                yield name, None if both is None else both[:, image]


def _pack_on_device(
    packed: Packed, pairs: Sequence[Correspondences], start: Sequence[int], side: Sequence[str]
) -> None:
    """Write the side numbers that are on a device already. Points and cameras are read where they are."""
    for pair, begin, end in zip(pairs, start, start[1:], strict=False):
        if not _on_host(pair):
            for column, (_, values) in enumerate(_side_numbers(pair, side)):
                to = packed.side_numbers[column, begin:end]
                to.fill_(math.nan) if values is None else to.copy_(values)


def _result(pair: Correspondences, found: Found, begin: int, end: int) -> Result:
    """What was found of one pair among all, in numpy if the pair came as numpy, else on its device."""
    mask, scores, logits = found.mask[begin:end], found.scores[begin:end], found.logits[begin:end]
    if pair.given_as_numpy and isinstance(mask, np.ndarray):
        return Result(mask, scores, logits)
    return Result(*(pair._as_given(torch.as_tensor(values)) for values in (mask, scores, logits)))
