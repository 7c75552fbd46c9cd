"""Datasets are checked before they are read; damaged files are named."""

import numpy as np
import pytest

from ananet import InputError
from ananet.io.hdf5 import hdf5_errors, open_hdf5, read_dataset

h5py = pytest.importorskip("h5py")


def test_datasets(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["group/x"] = np.arange(6.0).reshape(2, 3)
        file["text"] = "words"
        file["empty"] = h5py.Empty("f4")
    with open_hdf5(path) as file:
        np.testing.assert_array_equal(read_dataset(path, file["group"], "x"), np.arange(6.0).reshape(2, 3))
        for name, message in (
            ("text", r"a\.h5, /text: expected real numbers"),
            ("empty", "/empty: expected an array"),
            ("group", "/group: expected an array"),
            ("none", "/none: expected an array, got None"),
        ):
            with pytest.raises(InputError, match=message):
                read_dataset(path, file, name)
        with pytest.raises(InputError, match=r"group/x: expected at most 5 numbers, got shape \(2, 3\)"):
            read_dataset(path, file, "group/x", 5)


def test_damaged_files(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"a\.h5: not a readable HDF5 file"):
        open_hdf5(tmp_path / "a.h5")
    with pytest.raises(InputError, match="no such file"):
        open_hdf5(tmp_path / "b.h5")
    with pytest.raises(InputError, match="does not fit into memory"), hdf5_errors(tmp_path):
        raise MemoryError
