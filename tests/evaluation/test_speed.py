import json
import subprocess
import sys
import time

import pytest
import torch

from ananet.cli import main
from ananet.evaluation import speed

QUICK = ("--seconds", "0.01", "--lengths", "32,64", "--matches", "64", "--batch", "1,2")


def test_measure_counts_runs_and_leaves_input_out():
    made = []

    def make_input():
        time.sleep(0.02)
        made.append(len(made))
        return made[-1]

    timing = speed.measure(lambda _: time.sleep(0.002), make_input, speed.Effort(runs=4), torch.device("cpu"))
    assert timing.runs == 4 and len(set(made)) == 4 + speed.WARM_UP_RUNS
    assert 2 <= timing.median < 20


def test_peak_memory():
    if speed.PeakMemory(torch.device("cpu")).mebibytes() is None:
        pytest.skip("this system does not tell")
    timing = speed.measure(
        lambda _: torch.ones(64 * 2**20, dtype=torch.uint8), lambda: None, speed.Effort(runs=1), torch.device("cpu")
    )
    assert 60 < timing.peak_mebibytes < 80


def test_networks_need_neither_opencv_nor_matplotlib():
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("cv2", "matplotlib", "h5py", "poselib")))
from ananet.cli import main
sys.exit(main(["benchmark", "--networks-only", "--json", *{QUICK!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    result = json.loads(done.stdout)
    assert list(result["forms"]) == ["none", "linear", "quadratic", "cubic"]
    assert result["forms"]["linear"]["64"]["median"] > 0
    assert [row["batch"] for row in result["throughput"]] == [1, 2]


def test_benchmark_prints_the_papers_tables(capsys, world):
    pruners = f"all,gms,ananet,{world.weights}"
    assert main(["benchmark", "--pruner", pruners, "--style", "markdown", "--plain", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "| Method " in out and "| tiny " in out and "| Ref. " in out
    assert "| Cub. | +" in out or "| Cub. | -" in out
    assert "plain network in float32" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--lengths", "a"], "--lengths: expected whole numbers"),
        (["--batch", "0"], "--batch: expected whole numbers of at least 1"),
        (["--runs", "0"], "runs: expected a positive number"),
        (["--threads", "0"], "--threads: expected at least 1"),
        (["--dtype", "float16"], "--dtype: expected together with --plain"),
    ],
)
def test_wrong_arguments(capsys, arguments, word):
    assert main(["benchmark", "--networks-only", *arguments]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys):
    assert main(["benchmark", "--device", "cuda"]) == 2
    assert "PyTorch sees no CUDA GPU" in capsys.readouterr().err
