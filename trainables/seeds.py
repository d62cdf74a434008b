"""Independent streams of random numbers out of one seed."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *purpose: object) -> int:
    """A seed of its own for this purpose: equal for equal arguments everywhere, unrelated to every other's."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A stream on the CPU, so that every kind of device draws the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
