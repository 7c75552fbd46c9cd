"""Errors say what to do, also after the way back from a worker process."""

import pickle

import pytest

from ananet import InputError, MissingExtraError

TEXT = "this needs the package poselib: pip install poselib (ananet's extra 'poselib')"


def test_a_missing_package_says_how_to_get_it():
    with pytest.raises(ImportError) as error:
        raise MissingExtraError("poselib", "poselib")
    assert str(error.value) == TEXT


def test_errors_can_be_pickled():
    copy = pickle.loads(pickle.dumps(MissingExtraError("poselib", "poselib")))
    assert type(copy) is MissingExtraError and str(copy) == TEXT
    copy = pickle.loads(pickle.dumps(InputError("points0: expected something")))
    assert type(copy) is InputError and str(copy) == "points0: expected something"


def test_wrong_input_is_a_value_error():
    assert issubclass(InputError, ValueError)
