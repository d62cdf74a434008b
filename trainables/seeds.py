"""Independent streams of random numbers out of one seed, and where torch's own are: dropout draws from those."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def derive(seed: int, *purpose: object) -> int:
    """A seed of its own for this purpose: equal for equal arguments everywhere, unrelated to every other's."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A stream on the CPU, so that every kind of device draws the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def random_state() -> dict[str, Any]:
    """Of this process, on the CPU and on every GPU that it sees."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpus}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Go on from there."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
