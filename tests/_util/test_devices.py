import pytest
import torch

from ananet import InputError
from ananet._util.devices import choose_device


def test_auto_takes_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")


def test_devices_by_name_and_as_they_are():
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"got 'cuda' \(PyTorch sees no CUDA GPU here\)"):
        choose_device("cuda")


@pytest.mark.parametrize("wrong", ["gpu", "toaster", "", None, 1.5, "cpu:x"])
def test_wrong_devices_are_named(wrong):
    with pytest.raises(InputError, match=r"device: expected 'auto', 'cpu' or 'cuda', got [^(]*$"):
        choose_device(wrong)
