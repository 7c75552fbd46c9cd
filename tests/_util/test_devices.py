import json
import os
import subprocess
import sys

import pytest
import torch

import ananet
from ananet import InputError
from ananet._util import devices
from ananet._util.devices import SPIN_VARIABLES, choose_device


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


COUNT_THREADS = """
import json, os
import torch
torch.zeros(200_000).exp().sum()  # starts torch's own threads
import ananet

def threads():
    return len(os.listdir("/proc/self/task"))

before, of_torch = threads(), torch.get_num_threads()
pruner = ananet.load("ananet-small", device="cpu")
points = torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) * 500
for _ in range(2):
    kept = pruner(points, points + 5, image_size0=(500, 500), image_size1=(500, 500))
ananet.load("ananet-small", device="cpu")
print(json.dumps([before, of_torch, torch.get_num_threads(), threads(), kept.logits.tolist()]))
"""


@pytest.mark.skipif(devices._openmp() is None, reason="torch was built with another OpenMP")
@pytest.mark.parametrize("variables", [{}, {"OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_NUM_THREADS": "1"}])
def test_waiting_threads_soon_sleep_although_torch_was_imported_before(variables):
    cores = len(os.sched_getaffinity(0))
    environment = {
        name: value for name, value in os.environ.items() if name not in (*SPIN_VARIABLES, "OMP_NUM_THREADS")
    }
    done = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS], env=environment | variables, check=True, capture_output=True, text=True
    )
    before, of_torch, of_torch_after, after, logits = json.loads(done.stdout)
    assert of_torch == of_torch_after
    # OpenMP spins for long only while it has no more threads than there are cores.
    if "OMP_WAIT_POLICY" in variables:
        assert after <= before + of_torch
    else:
        assert after - 1 > cores and of_torch + (after - before) > cores
    assert len(logits) == 400


def test_the_answers_are_the_same_with_and_without(monkeypatch):
    monkeypatch.setattr(devices, "SPIN_VARIABLES", ())
    pruner = ananet.load("ananet-small", device="cpu")
    points = torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) * 500
    before = pruner(points, points + 5, image_size0=(500, 500), image_size1=(500, 500)).logits
    devices.shorten_spinning.__wrapped__()
    after = pruner(points, points + 5, image_size0=(500, 500), image_size1=(500, 500)).logits
    assert (before == after).all()
