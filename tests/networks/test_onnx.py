"""ONNX Runtime answers what the network answers, for any number of matches."""

import pytest
import torch

from ananet.attention import FORMS
from ananet.networks import ANANet, ANANetSettings

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_onnx_runtime_agrees_for_any_number_of_matches(form, tmp_path):
    torch.manual_seed(0)
    network = ANANet(ANANetSettings(form=form, blocks=2)).eval()
    n = torch.export.Dim("n", min=2, max=8192)
    path = str(tmp_path / "network.onnx")
    torch.onnx.export(network, (torch.randn(1, 50, 4),), path, dynamo=True, dynamic_shapes=({1: n},), verbose=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for count in (2, 7, 500):
        matches = torch.rand(1, count, 4) * 2 - 1
        (logits,) = session.run(None, {session.get_inputs()[0].name: matches.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), network(matches), atol=3e-5, rtol=1e-4)
