"""Matches as callers may give them: mostly well formed, of every size, type and layout; now and then nonsense."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from ananet import Correspondences

COUNTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 80, 200)
PLACES = ("scattered", "moved", "line", "same", "grid", "far", "huge", "tiny", "negative", "two places", "one far")
KINDS = ("f8", "f8", "f4", "f2", "i8", "i4", "u1", "u8", ">f8", ">i2", "g")
CONTAINERS = ("array", "array", "array", "fortran", "strided", "frozen", "list", "tensor", "gradient", "half")
NONSENSE: tuple[Any, ...] = (
    None, True, 0, -1, 3.5, float("nan"), 10**400, "", "points", b"x", [], [[]], [1, [2]], {}, {"a": 1}, object(),
    (1, 2), range(4), iter([1, 2]), np.nan, np.zeros(()), np.zeros(3), np.zeros((3, 3)), np.zeros((2, 2, 2)),
    np.zeros((0, 2)), np.zeros((4, 2), complex), np.zeros((4, 2), bool), np.full((4, 2), np.nan),
    np.full((4, 2), np.inf), np.full((4, 2), 1e300), np.array([["a", "b"]]), np.array([None, {}]),
    np.zeros((4, 2), "M8[s]"), np.zeros(4, [("x", float)]), np.ma.masked_array(np.zeros((4, 2)), True),
    np.eye(3) * 1e-300, -np.eye(3), np.full((3, 3), 1e308), torch.zeros(4, 2, dtype=torch.complex64),
    torch.zeros(4, 2).to_sparse(),
    torch.zeros(4, 2, device="meta"), torch.tensor(1.0),
)  # fmt: skip


def points(data: st.DataObject, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 arrays [N x 2]."""
    place = data.draw(st.sampled_from(PLACES))
    first = rng.uniform(0, 640, (count, 2))
    second = rng.uniform(0, 640, (count, 2))
    if place == "moved":
        second = first @ np.array([[0.98, -0.17], [0.17, 0.98]]).T + rng.normal((20, 5), 0.5, (count, 2))
    elif place == "line":
        first = second = np.linspace(0, 600, count)[:, None] * (1.0, 0.5)
    elif place == "same":
        first, second = np.full((count, 2), 7.0), np.full((count, 2), 9.0)
    elif place == "grid":
        first, second = first.round(-2), second.round(-2)
    elif place == "far":
        first = first * 1e6
    elif place == "huge":
        first, second = first * 1e150, second * 1e300
    elif place == "tiny":
        first, second = first * 1e-320, second * 1e-30
    elif place == "negative":
        first, second = -first, second - 1000
    elif place == "two places":
        first, second = np.where(rng.random((count, 1)) < 0.5, 0.0, 100.0) + np.zeros(2), first
    elif place == "one far" and count:
        second[rng.integers(count)] = 1e12
    return first, second


def contained(data: st.DataObject, values: np.ndarray) -> Any:
    """The same numbers, as far as the type has room for them, in another container."""
    kind, container = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(CONTAINERS))
    with np.errstate(all="ignore"):
        array = values.astype(kind)
    if container == "fortran":
        return np.asfortranarray(array)
    if container == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    if container == "frozen":
        array.flags.writeable = False
        return array
    if container == "list":
        return array.tolist()
    if container == "tensor":
        return torch.from_numpy(values.copy())
    if container == "gradient":
        return torch.tensor(values, dtype=torch.float32, requires_grad=True)
    return torch.from_numpy(values).to(torch.bfloat16) if container == "half" else array


def given(data: st.DataObject, spoiled: bool = True) -> dict[str, Any]:
    """Arguments of `Correspondences`; one of them may be nonsense."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = data.draw(st.sampled_from(COUNTS))
    first, second = points(data, count, rng)
    arguments: dict[str, Any] = {"points0": contained(data, first), "points1": contained(data, second)}
    if data.draw(st.booleans()):
        focal = data.draw(st.sampled_from((1e-9, 1.0, 500.0, 1e9)))
        arguments |= {name: np.array([[focal, 0, 320], [0, focal, 320], [0, 0, 1]]) for name in ("K0", "K1")}
    if data.draw(st.booleans()):
        arguments |= {
            "image_size0": (640, 640),
            "image_size1": data.draw(st.sampled_from(((640, 640), (1, 1), (1e9, 1e-9)))),
        }
    optional = {
        "ratio": rng.random(count),
        "mutual": rng.random(count) < 0.5,
        "scores": rng.normal(size=count),
        "indices": rng.integers(0, max(1, count), (count, 2)),
    }
    for name, values in optional.items():
        if data.draw(st.booleans()):
            arguments[name] = values
    for name, values in (("keypoint_sizes", rng.uniform(0.1, 50, count)), ("angles", rng.uniform(-10, 10, count))):
        if data.draw(st.booleans()):
            arguments |= {f"{name}0": values, f"{name}1": values[::-1].copy()}
    if spoiled and data.draw(st.integers(0, 3)) == 0:
        name = data.draw(
            st.sampled_from((*arguments, "points0", "points1", "K0", "image_size0", "ratio", "keypoint_sizes0"))
        )
        arguments[name] = data.draw(st.sampled_from(NONSENSE))
    return arguments


def correspondences(data: st.DataObject) -> Correspondences:
    """Matches that are well formed, however strange."""
    return Correspondences(**given(data, spoiled=False))


def copied(value: Any) -> Any:
    """A copy to compare with later."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)


def state(matches: Correspondences) -> dict[str, Any]:
    return {name: copied(value) for name, value in vars(matches).items()}


def assert_unchanged(value: Any, before: Any) -> None:
    if isinstance(before, dict):
        assert value.keys() == before.keys()
        for name, one in before.items():
            assert_unchanged(value[name], one)
    elif isinstance(before, torch.Tensor):
        assert value.dtype == before.dtype and value.shape == before.shape
        if before.layout == torch.strided and before.device.type == "cpu":
            assert torch.equal(torch.nan_to_num(value.detach()), torch.nan_to_num(before))
    elif isinstance(before, np.ndarray):
        assert value.dtype == before.dtype and value.tobytes() == before.tobytes()
    elif isinstance(before, list | tuple | str | int | bool | type(None)):
        assert value == before
