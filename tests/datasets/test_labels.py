import math

import torch

from ananet.datasets.labels import BY_LINE, LabelRule

BY_DEPTH = LabelRule(labels="depth", unknown_weight=0.4, accidental_weight=2.0, unknown_target=(0.3, 0.8))


def test_labels_by_depth_say_right_accidental_wrong_and_unknown():
    """Right, accidental, wrong, off the line, twice unknown, right but off the line.

    In a pair with depth, one without, and one that shows nothing in common.
    """
    near, far = 1e-6, 1e-2
    distance = torch.tensor([near, near, far, far, near, near, far]).expand(3, -1)
    known = torch.tensor([1, 1, 1, 0, 0, 0, 1]).bool().expand(3, -1)
    right = torch.tensor([1, 0, 0, 0, 0, 0, 1]).bool().expand(3, -1)
    mutual = torch.tensor([1, 1, 1, 1, 1, 0, 1]).bool().expand(3, -1)
    share = torch.tensor([0.4, math.nan, 0.0])
    target, weight = BY_DEPTH.of_matches(distance, known, right, mutual, share)
    torch.testing.assert_close(target[0], torch.tensor([1, 0, 0, 0, 0.8, 0.3, 0]))
    torch.testing.assert_close(weight[0], torch.tensor([1, 2, 1, 1, 0.4, 0.4, 1]))
    assert target[1].tolist() == [1, 1, 0, 0, 1, 1, 0] and (weight[1] == 1).all(), "without depth, by the line"
    assert not target[2].any() and weight[2].tolist() == [2, 2, 1, 1, 2, 2, 1], "nothing in common: all wrong"
    line, ones = BY_LINE.of_matches(distance, known, right, mutual, share)
    assert torch.equal(line, (distance < 1e-4).float()) and (ones == 1).all()


def test_the_line_is_a_label_of_its_own():
    distance = torch.tensor([1e-6, 1e-2]).expand(3, -1)
    target, weight = BY_DEPTH.by_line(distance, torch.tensor([0.4, math.nan, 0.0]))
    assert target.tolist() == [[1, 0], [1, 0], [0, 0]] and weight.tolist() == [[1, 1], [1, 1], [0, 1]]


def test_a_pair_of_which_hardly_anything_is_known_is_labelled_by_the_line():
    """Left with wrong matches alone, a network would learn to keep nothing."""
    distance = torch.full((2, 40), 1e-6)
    known = torch.zeros(2, 40, dtype=torch.bool)
    known[0, :3] = known[1, :4] = True
    nothing = torch.zeros_like(known)
    target, weight = BY_DEPTH.of_matches(distance, known, nothing, nothing, torch.tensor([0.5, 0.5]))
    assert (target[0] == 1).all() and (weight[0] == 1).all()
    assert not target[1, :4].any() and (weight[1, 4:] == 0.4).all()
