"""Writes pairs in OANet's layout."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import Tensor

from ananet import InputError
from ananet.datasets.base import LabelledPair
from ananet.datasets.formats.oanet import GROUPS
from ananet.io.files import atomic_path
from ananet.io.hdf5 import import_h5py


def write_oanet_dump(path: str | Path, pairs: Iterable[LabelledPair]) -> None:
    """Writes pairs in OANet's layout. They need cameras, ratio, mutual flags, pose and distances."""
    h5py = import_h5py()
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        groups = {name: file.create_group(name) for name in GROUPS}
        for index, pair in enumerate(pairs):
            for name, values in _dump_values(pair).items():
                groups[name].create_dataset(str(index), data=values.astype(np.float32))


def _dump_values(pair: LabelledPair) -> dict[str, np.ndarray]:
    matches = pair.matches._as_tensors()

    def given(name: str, value: Tensor | None) -> np.ndarray:
        if value is None:
            raise InputError(f"pairs: expected {name} of every pair, pair {pair.name!r} has none")
        return value.detach().cpu().double().numpy()

    K0, K1 = given("K0", matches.K0), given("K1", matches.K1)
    return {
        "xs": given("points", matches.normalized())[None],
        "ys": given("distance", pair.distance)[:, None],
        "Rs": given("R", pair.R),
        "ts": given("t", pair.t).reshape(3, 1),
        "ratios": given("ratio", matches.ratio),
        "mutuals": given("mutual", matches.mutual),
        "cx1s": K0[:1, 2],
        "cy1s": K0[1:2, 2],
        "cx2s": K1[:1, 2],
        "cy2s": K1[1:2, 2],
        "f1s": K0[[0, 1], [0, 1]][None],
        "f2s": K1[[0, 1], [0, 1]][None],
    }
