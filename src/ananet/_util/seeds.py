"""Random streams: one for each purpose, none the same as another's."""

import hashlib

import torch


def generator(device: str | torch.device, purpose: str, *numbers: int) -> torch.Generator:
    """A generator that the purpose and the numbers (seed, step, rank, ...) determine, and nothing else.

    >>> generator("cpu", "pairs", 0, 1).initial_seed() == generator("cpu", "pairs", 0, 1).initial_seed()
    True
    """
    # Escaped, so that no purpose spells like another one with a number behind it.
    key = "/".join([purpose.replace("%", "%25").replace("/", "%2F"), *map(str, numbers)])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
