"""Where torch's own streams of random numbers are: dropout draws from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """Of this process, on the CPU and on every GPU that it sees."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpus}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Go on from there."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
