"""How whole calls of a GPU are packed and cut. `interpreted_calls.py` runs them."""

import numpy as np
import torch

from ananet import Correspondences
from ananet.inference import calls
from ananet.inference.ananet.folded import FoldedANANet
from ananet.inference.ananet.fused import FusedANANet
from ananet.inference.calls import DeviceCalls, Shape, padded_length
from tests.conftest import make_problem
from tests.inference.test_ananet import trained


def device_calls(**settings) -> DeviceCalls:
    engine = FusedANANet(FoldedANANet(trained(blocks=1, **settings)))
    return DeviceCalls(engine, decision=0.0, unseen=-10.0, conflict_odds=30.0)


def test_a_pair_has_the_same_length_whatever_is_beside_it():
    found = device_calls()
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in rng.integers(1, 5000, 300)] + [70_000, 200_000]
    seen = []
    for group, shape in found.groups(lengths):
        seen += group
        assert all(shape.length == padded_length(lengths[number]) for number in group)
        assert len(group) <= shape.batch and shape.length % 128 == 0
        assert shape.capacity <= max(calls.MATCHES_AT_ONCE, padded_length(max(lengths[n] for n in group)))
    assert sorted(seen) == list(range(len(lengths)))
    assert len({shape for _, shape in found.groups(lengths)}) < 15, "each shape is recorded once"


def test_what_is_sent_can_be_read_back():
    shape = Shape(4, 128, 10, alone=False)
    numbers = np.full(shape.numbers, np.nan)
    m = make_problem(20, 10).matches._as_tensors()
    bare = Correspondences(np.ones((3, 2)), np.zeros((3, 2)), image_size0=(100, 50), image_size1=(60, 80)).to("cpu")
    side = ("ratio", "mutual", "size", "angle")
    device = shape.split(torch.empty(shape.numbers, dtype=torch.float64))
    assert calls._pack(shape.split(numbers), device, [m, bare], side) == [0, 30, 33]
    for values in (numbers, torch.from_numpy(numbers)):
        cameras, addresses, start, points, side_numbers = shape.split(values)
        assert addresses[1].tolist() == [
            device.cameras[1].data_ptr(),
            device.cameras[1, 9:].data_ptr(),
            device.points[0, 30].data_ptr(),
            device.points[1, 30].data_ptr(),
        ]
        assert start.tolist() == [0, 30, 33, 33, 33]
        np.testing.assert_array_equal(cameras[0, :9], m.K0.ravel())
        np.testing.assert_allclose(cameras[1, :18], [70, 0, 50, 0, 70, 25, 0, 0, 1, 56, 0, 30, 0, 56, 40, 0, 0, 1])
        np.testing.assert_array_equal(cameras[1, 18:24], [-50, 150, 100, -40, 100, 120])
        np.testing.assert_array_equal(points[0, :30], m.points0)
        np.testing.assert_array_equal(points[1, :33], torch.cat([m.points1, bare.points1]))
        np.testing.assert_array_equal(side_numbers[0, :30], m.ratio)
        np.testing.assert_array_equal(side_numbers[1, :30], m.mutual)
        assert np.isnan(np.asarray(side_numbers)[2:, :33]).all() and np.isnan(np.asarray(side_numbers)[:, 30:33]).all()
    assert np.isnan(np.asarray(cameras)[1, 30:]).all() and cameras[0, 30:34].tolist() == [0, 1, 0, 1]


def test_answers_lie_where_kernels_can_read_them_fast():
    for shape in (Shape(1, 128, 4, alone=True), Shape(3, 256, 10, alone=False), Shape(512, 128, 5, alone=False)):
        flags, logits, scores, mask = shape.split_results(torch.zeros(shape.result_bytes, dtype=torch.uint8))
        assert len(flags) == shape.batch and len(logits) == len(scores) == len(mask) == shape.capacity
        assert (logits.dtype, scores.dtype, mask.dtype) == (torch.float32, torch.float32, torch.bool)
        assert shape.header % 2 == 0 and shape.flags % 16 == 0
        most = Shape(1024, 128, shape.channels, alone=False)
        assert shape.numbers <= most.numbers and shape.result_bytes <= most.result_bytes


def test_side_input_that_is_not_known_is_nothing():
    found = device_calls(side=("ratio", "size"))
    numbers = torch.tensor([[0.25, np.nan], [0.01, np.nan], [0.02, np.nan]], dtype=torch.float64)
    channels = found._side_input(numbers)
    assert channels[0].tolist()[:2] == [0.75, 1.0]
    assert channels[1].tolist() == [0, 0, 0]


def test_shapes_to_prepare():
    found = device_calls()
    assert found.shapes_of([2048, 2000]) == [Shape(1, 2048, 4, True), Shape(32, 2048, 4, False)]


def test_what_is_on_a_device_is_read_there():
    m = make_problem(20, 10).matches.to("cpu")
    here = torch.device("cpu")
    for as_it_is in (m, m.replace(K0=None, K1=None), m._in_double()):
        assert calls._readable(as_it_is, here) is as_it_is
    gaps = m.points0.repeat_interleave(2, 0)[::2]
    for other in (m.replace(points0=gaps), m.replace(K0=m.K0.double()), m.replace(points1=m.points1.half())):
        found = calls._readable(other, here)
        for name in ("points0", "points1", "K0", "K1"):
            values = getattr(found, name)
            assert values.dtype == torch.float64 and values.is_contiguous()
            assert torch.equal(values, getattr(other, name).double())
