import json
import re
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

from ananet import InputError
from ananet.networks import ANANetSettings, make_network, save_network

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "speed.py"
QUICK = ("--seconds", "0.01", "--lengths", "32,64", "--matches", "64", "--batch", "1,2")


def load_script():
    spec = spec_from_file_location("speed", SCRIPT)
    module = module_from_spec(spec)
    sys.modules["speed"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


speed = load_script()


def run(*arguments: str) -> None:
    speed.run(speed.read_arguments(arguments))


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


@pytest.mark.parametrize("plain", [False, True])
def test_networks_run_as_they_ship_or_as_they_are_trained(plain):
    execution = speed.Execution(torch.device("cpu"), plain=plain)
    settings = ANANetSettings(form="quadratic")
    network = execution.network(settings)
    matches = 2 * torch.rand(2, 30, 4, generator=torch.Generator().manual_seed(0)) - 1
    trained = speed.Execution(torch.device("cpu"), plain=True).network(settings)
    with torch.inference_mode():
        torch.testing.assert_close(network(matches), trained(matches), atol=1e-4, rtol=1e-4)
    assert ("plain network in float32" in execution.describe()) == plain


def test_networks_to_measure():
    networks = speed.networks_to_measure([64, 256])
    assert list(networks) == ["none", "linear", "quadratic", "cubic", "64 seeds", "256 seeds"]
    assert not networks["none"].second_order and networks["cubic"].form == "cubic" and networks["64 seeds"].seeds == 64


def test_lengths_after_a_slow_one_are_left_out_and_growth_is_drawn(tmp_path):
    execution = speed.Execution(torch.device("cpu"))
    effort = speed.Effort(seconds=0.01)
    found = speed.measure_forms([64, 32, 16], [8], effort, execution, lambda _: None, stop_after=1e-9)
    assert all(list(by_length) == [16] for by_length in found.values())
    speed.forms_table(found)
    speed.plot_growth(found, "title", tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes()[:4] == b"\x89PNG"


def test_timings_in_tables_and_json():
    def timing(mean):
        return speed.Timing(mean, mean, 5, None)

    found = {form: {100: timing(n), 200: None} for n, form in enumerate(("none", "linear", "quadratic", "cubic"), 1)}
    rows = speed.forms_table(found)
    assert rows[0] == {"Form": "Cub.", "N=100": "+3.00", "N=200": None}
    assert rows[-1] == {"Form": "none", "N=100": "1.00", "N=200": None}
    assert [row["peak MiB"] for row in speed.details_table(found)[:2]] == ["-", "out of memory"]
    result = json.loads(json.dumps(speed.timings_as_json(found)))
    assert result["cubic"] == {"100": {"mean": 4, "median": 4, "runs": 5, "peak_mebibytes": None}, "200": None}
    table = speed.table_2({"all": timing(1), "Ref.": timing(2)})
    assert table[0] == {"Method": "runtimes (mean, ms)", "all": "1.00", "Ref.": "2.00"}


def test_synthetic_problems_are_others_at_every_call():
    problems = speed.SyntheticProblems(50)
    first, second = problems(), problems()
    assert len(first) == len(second) == 50 and first.calibrated and first.given_as_numpy
    assert not np.array_equal(first.points0, second.points0)


def test_nothing_needs_opencv_or_matplotlib():
    code = f"""
import runpy, sys
sys.modules.update(dict.fromkeys(("cv2", "matplotlib", "h5py", "poselib")))
sys.argv = ["speed.py", "--json", *{QUICK!r}]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    result = json.loads(done.stdout)
    assert list(result["pruners"]) == [name for name in speed.PRUNERS.split(",") if name not in speed.NEED_OPENCV]
    assert list(result["networks"]) == [*speed.NETWORKS, "ANA-Net, plain"]
    assert list(result["forms"]) == ["none", "linear", "quadratic", "cubic", "256 seeds"]
    assert result["forms"]["linear"]["64"]["median"] > 0
    assert [row["batch"] for row in result["throughput"]] == [1, 2]


def test_benchmark_prints_the_papers_tables(capsys, tmp_path):
    weights = tmp_path / "tiny.safetensors"
    save_network(weights, make_network(ANANetSettings(blocks=1, width=32)))
    run("--pruner", f"all,gms,ananet,{weights}", "--style", "markdown", "--plain", *QUICK)
    out = capsys.readouterr().out
    assert "| Method " in out and "| tiny " in out and "| Ref. " in out
    assert re.search(r"\| Cub\. +\| [+-]", out)
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
def test_wrong_arguments(arguments, word):
    with pytest.raises(InputError, match=word):
        run("--networks-only", *arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(InputError, match="PyTorch sees no CUDA GPU"):
        run("--device", "cuda")
