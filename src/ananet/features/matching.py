"""Putative matches between the keypoints of two images: the base class of matchers, and nearest neighbours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ananet._util.checks import check_whole_number
from ananet._util.devices import use_one_thread_after_fork
from ananet.core.correspondences import Array, Correspondences
from ananet.errors import InputError
from ananet.features.base import Features, as_array

# Rows of the distance matrix that are held at once: 1024 x 8000 floats are 32 MB.
ROWS_AT_ONCE = 1024
# The same for bytes, whose products are so quick that the cache decides.
BYTE_ROWS_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class NearestNeighbours:
    """Nearest neighbours in the second set of each of the N descriptors of the first, as arrays or tensors.

    With several neighbours, all nearest come first, then all second nearest, and so on: S is a multiple of N, and
    neighbour s belongs to descriptor s modulo N.
    """

    index: Any
    """[S] int64 into the second set."""
    ratio: Any
    """[S] float32: distance to the nearest over that to the second nearest, in [0, 1]; 1 for all but the nearest."""
    mutual: Any
    """[S] bool: whether the match is nearest in both directions."""


class Matcher(ABC):
    """Proposes matches between two images. A subclass implements `pair`, for features that were checked."""

    name: str

    @abstractmethod
    def pair(self, features0: Features, features1: Features) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return matched keypoints, [S x 2] int64, and what is known of the matches.

        The latter by name, as `Correspondences` takes it: `ratio`, `mutual`, `scores`, [S] each.
        """

    def __call__(
        self, features0: Features, features1: Features, *, K0: Array | None = None, K1: Array | None = None
    ) -> Correspondences:
        """Return putative correspondences of two images."""
        for name, features in (("features0", features0), ("features1", features1)):
            if not isinstance(features, Features):
                raise InputError(f"{name}: expected Features, as a detector gives them, got {type(features).__name__}")
        indices, known = self.pair(features0, features1)
        return join(features0, features1, indices, K0=K0, K1=K1, **known)

    def __repr__(self) -> str:
        return f"<matcher {self.name}>"


class Nearest(Matcher):
    """The nearest neighbours of every keypoint of the first image, by descriptor.

    Args:
        neighbours: matches per keypoint. A pruner can only keep what is proposed; with more it has more to choose from,
            and more to reject. All nearest come first, then all second nearest, and so on.
    """

    name = "nearest"

    def __init__(self, neighbours: int = 1) -> None:
        self.neighbours = check_whole_number("neighbours", neighbours, 1)

    def pair(self, features0: Features, features1: Features) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        found = nearest_neighbours(features0.descriptors, features1.descriptors, self.neighbours)
        first = np.arange(len(found.index)) % max(1, len(features0))
        return np.stack([first, found.index], axis=1), {"ratio": found.ratio, "mutual": found.mutual}


def match(
    features0: Features, features1: Features, *, K0: Array | None = None, K1: Array | None = None, neighbours: int = 1
) -> Correspondences:
    """Match every keypoint of the first image to its nearest neighbours in the second, by descriptor.

    Args:
        K0, K1: [3 x 3] camera matrices.
        neighbours: number of nearest neighbours per keypoint.
    """
    return Nearest(neighbours)(features0, features1, K0=K0, K1=K1)


def join(features0: Features, features1: Features, indices: np.ndarray, **known: Any) -> Correspondences:
    """Join keypoints [S x 2] of two images; `known` are other arguments of `Correspondences`, such as `K0`."""
    first, second = np.asarray(indices, np.int64).T
    for name, argument in (("sizes", "keypoint_sizes"), ("angles", "angles")):
        values0, values1 = getattr(features0, name), getattr(features1, name)
        if values0 is not None and values1 is not None:
            known |= {f"{argument}0": values0[first], f"{argument}1": values1[second]}
    return Correspondences(
        features0.points[first],
        features1.points[second],
        image_size0=features0.image_size,
        image_size1=features1.image_size,
        indices=np.stack([first, second], axis=1),
        **known,
    )


def nearest_neighbours(
    descriptors0: np.ndarray | Tensor,
    descriptors1: np.ndarray | Tensor,
    neighbours: int = 1,
    device: torch.device | None = None,
) -> NearestNeighbours:
    """Find nearest neighbours, ratio and mutual flag of every descriptor of the first set, in one pass.

    Floats and int8 are compared by Euclidean distance, uint8 descriptors bit by bit (Hamming). Distances come from
    matrix products over blocks of rows, so that no N x M matrix is held in memory; products of int8 are many times as
    fast on CPUs that have instructions for them. With a single descriptor in the second set the ratio is 1. If several
    of the first set are equally near to one of the second, the first of them is mutual.

    Args:
        descriptors0, descriptors1: [N x D] and [M x D] arrays, or tensors; the result is of the same kind.
        neighbours: number of neighbours per descriptor; fewer if the second set has fewer.
        device: where to compute; None for the tensors' own device, or the CPU.
    """
    check_whole_number("neighbours", neighbours, 1)
    use_one_thread_after_fork()
    a, b = _as_vectors("descriptors0", descriptors0, device), _as_vectors("descriptors1", descriptors1, device)
    binary0, binary1 = (str(each.dtype).endswith("uint8") for each in (descriptors0, descriptors1))
    if a.shape[1] != b.shape[1] or binary0 != binary1:
        got = " and ".join(f"{each.dtype} {tuple(each.shape)}" for each in (descriptors0, descriptors1))
        raise InputError(f"descriptors0 and descriptors1: expected the same kind and width, got {got}")
    # Of single numbers, torch 2.13 has wrong products.
    if a.dtype != b.dtype or a.shape[1] < 2 or not _has_byte_products():
        a, b = a.float(), b.float()
    found = _nearest(a, b, min(neighbours, len(b)))
    if isinstance(descriptors0, Tensor):
        return NearestNeighbours(*(values.to(descriptors0.device) for values in found))
    return NearestNeighbours(*(values.cpu().numpy() for values in found))


def _nearest(a: Tensor, b: Tensor, neighbours: int) -> tuple[Tensor, Tensor, Tensor]:
    """Index, ratio and mutual flag of the neighbours of a [N x D] in b [M x D]."""
    count = len(a)
    index = torch.empty((neighbours, count), dtype=torch.int64, device=a.device)
    ratio = torch.ones((neighbours, count), device=a.device)
    mutual = torch.zeros((neighbours, count), dtype=torch.bool, device=a.device)
    if count == 0 or len(b) == 0:
        return index.reshape(-1), ratio.reshape(-1), mutual.reshape(-1)
    bytes_alone = a.dtype == torch.int8
    blocks, kind = (_byte_similarities, torch.int32) if bytes_alone else (_similarities, torch.float32)
    lowest = torch.iinfo(kind).min if bytes_alone else -torch.inf
    # One more than asked for where that is the second nearest, for the ratio.
    best = torch.full((max(2, neighbours), count), lowest, dtype=kind, device=a.device)
    best_of_column = torch.full((len(b),), lowest, dtype=kind, device=a.device)
    for rows, similarity in blocks(a, b):
        torch.maximum(best_of_column, similarity.amax(dim=0), out=best_of_column)
        for rank in range(neighbours):
            nearest = _argmax(similarity)[:, None]
            index[rank, rows] = nearest[:, 0]
            best[rank, rows] = similarity.gather(1, nearest)[:, 0]
            similarity.scatter_(1, nearest, lowest)
        if neighbours == 1:
            best[1, rows] = similarity.amax(dim=1)

    candidates = torch.nonzero(best[0] >= best_of_column[index[0]])[:, 0]
    first = torch.full((len(b),), count, device=a.device)
    first.scatter_reduce_(0, index[0, candidates], candidates, "amin")
    mutual[0, first[first < count]] = True
    # Rounding can lift a similarity above 0. Without a second neighbour, or with both at distance 0, the ratio is 1.
    nearest, second = best[:2].clamp_max(0)
    squared = (nearest / second).where((second > lowest) & (second < 0), 1.0)
    # In double precision: torch's square root of single precision is off by a bit.
    ratio[0] = squared.double().sqrt()
    return index.reshape(-1), ratio.reshape(-1), mutual.reshape(-1)


def _similarities(a: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows of -|a - b|^2 / 2 = a.b - |a|^2 / 2 - |b|^2 / 2, which is largest for the nearest.

    The squares are two more columns of the product, which saves passes over the block. A block may be changed, and is
    overwritten by the next.
    """
    half0, half1 = _half_squares(a), _half_squares(b)
    a = torch.cat([a, -half0, torch.ones_like(half0)], dim=1)
    b = torch.cat([b, torch.ones_like(half1), -half1], dim=1).T.contiguous()
    block = torch.empty((min(ROWS_AT_ONCE, len(a)), b.shape[1]), device=a.device)
    for start in range(0, len(a), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(a)))
        similarity = block[: rows.stop - start]
        # By torch: numpy's threads spin for a while after the product, and take a core from the pruner.
        yield rows, torch.mm(a[rows], b, out=similarity)


def _byte_similarities(a: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The same for int8 vectors: blocks of -|a - b|^2, exact in int32."""
    squares0, squares1 = (values.int().square().sum(dim=1, dtype=torch.int32) for values in (a, b))
    block = torch.empty((min(BYTE_ROWS_AT_ONCE, len(a)), len(b)), dtype=torch.int32)
    for start in range(0, len(a), BYTE_ROWS_AT_ONCE):
        rows = slice(start, min(start + BYTE_ROWS_AT_ONCE, len(a)))
        similarity = block[: rows.stop - start]
        torch._int_mm(a[rows], b.T, out=similarity)
        torch.add(-squares1, similarity, alpha=2, out=similarity)
        yield rows, similarity.sub_(squares0[rows, None])


def _has_byte_products() -> bool:
    """Whether this CPU multiplies int8 faster than floats; elsewhere torch does so in plain loops."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return supported is not None and bool(torch.backends.mkldnn.is_available() and supported())


def _argmax(values: Tensor) -> Tensor:
    """[N] index of the first maximum of each row; numpy is ten times as fast as torch on a CPU."""
    return torch.from_numpy(values.numpy().argmax(axis=1)) if values.device.type == "cpu" else values.argmax(dim=1)


def _half_squares(values: Tensor) -> Tensor:
    """[N x 1] half the squared length of each row."""
    if values.device.type != "cpu":
        return 0.5 * values.square().sum(dim=1, keepdim=True)
    return torch.from_numpy(0.5 * np.einsum("ij,ij->i", values.numpy(), values.numpy())[:, None])


def _as_vectors(name: str, descriptors: Any, device: torch.device | None) -> Tensor:
    """[N x D] vectors, ordered by their products as descriptors are by distance: float32, and int8 where that is given.

    Bits become -1 and 1.
    """
    if isinstance(descriptors, Tensor) and descriptors.is_cuda and descriptors.is_floating_point():
        vectors = descriptors.detach()
    else:
        array = as_array(name, descriptors)
        device = descriptors.device if isinstance(descriptors, Tensor) and device is None else device
        if array.dtype == np.uint8:
            array = np.unpackbits(array, axis=-1).astype(np.float32) * 2 - 1
        kept = np.int8 if array.dtype == np.int8 and torch.device(device or "cpu").type == "cpu" else np.float32
        vectors = torch.from_numpy(np.require(array, kept, ["C", "W"]))
    if vectors.ndim != 2:
        raise InputError(f"{name}: expected an array of shape (N, D), got {tuple(descriptors.shape)}")
    vectors = vectors if vectors.dtype == torch.int8 else vectors.to(device=device, dtype=torch.float32)
    if not vectors.isfinite().all():
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity")
    return vectors
