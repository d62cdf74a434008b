"""The trainable of `gang_start`: it imports torch, as trainables that compute do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from trainables.context import Context


def train(config: Mapping[str, Any], context: Context) -> None:
    """Use the device, sleep; tell when."""
    told = {"called": time.time()}
    torch.ones(1000, device=context.device).sum().item()
    told["computes"] = time.time()
    time.sleep(config["seconds"])
    context.report({"epoch": 1})
    context.summarize(told)
