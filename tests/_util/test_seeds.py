import itertools

import torch

from ananet._util.seeds import generator


def test_the_same_purpose_and_numbers_give_the_same_stream():
    first, second = (torch.rand(5, generator=generator("cpu", "pairs", 3, 1)) for _ in range(2))
    assert torch.equal(first, second)


def test_every_purpose_and_number_has_a_stream_of_its_own():
    keys = [
        (purpose, *numbers)
        for purpose in ("pairs", "augment", "pairs/1", "pairs%2F1")
        for count in range(3)
        for numbers in itertools.product((0, 1, 11), repeat=count)
    ]
    # "pairs/1" is a purpose that spells like another one with a number.
    seeds = {key: generator("cpu", *key).initial_seed() for key in keys}
    assert len(set(seeds.values())) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds.values())


def test_streams_do_not_depend_on_the_state_of_torch():
    torch.manual_seed(0)
    before = torch.rand(3, generator=generator("cpu", "noise", 7))
    torch.manual_seed(1)
    torch.rand(10)
    assert torch.equal(before, torch.rand(3, generator=generator("cpu", "noise", 7)))


def test_streams_stay_as_they_are():
    """A run that goes on, and a data set that is built again, find the numbers they had."""
    assert generator("cpu", "pairs", 0, 1).initial_seed() == 5703780427902569140
