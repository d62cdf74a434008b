"""How much of what a device can multiply a training makes use of (model FLOPs utilisation: Chowdhery et al. 2022)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import torch

from trainables import models
from trainables.clock import Clock
from trainables.context import Context
from trainables.process_group import Gang
from trainables.step.training_step import Precision
from trainables.supervised.evaluation import Workload

_log = logging.getLogger(__name__)

COUNTED = 2
"""Samples that are counted over: batch norm needs more than one."""

SIZES = {"cpu": (512,), "cuda": (8192, 4096, 2048)}
"""Of the square matrices that a device's rate is measured with: the largest that the training left memory for."""
SLOW_SIZE = 2048
"""The most in float64, in which many GPUs take seconds for what others do in milliseconds."""
TRIES, PRODUCTS = 3, 4


def utilisation(
    model: Mapping[str, Any], workload: Workload, samples_per_s: float, *, gang: Gang, context: Context
) -> dict[str, float]:
    """`mfu`: what the model needs, by what all ranks' devices multiply in this precision; a share of 1.

    Beside it `matrix_flops_per_s` and `flops_per_sample`; of a model that cannot be counted the first alone.
    """
    with context.phase("probe"):
        own = matrix_flops_per_s(context.device, workload.precision, ranks=gang.world_size)
        # A rank that drives several devices has one of them measured: they are alike.
        rate = sum(gang.each(own * max(1, len(context.devices))))
    flops = flops_per_sample(model, input_shape=workload.input_shape, num_classes=workload.num_classes)
    figures = {"matrix_flops_per_s": rate}
    return figures if flops is None else figures | {"flops_per_sample": flops, "mfu": flops * samples_per_s / rate}


def flops_per_sample(model: Mapping[str, Any], *, input_shape: tuple[int, int, int], num_classes: int) -> float | None:
    """Floating-point operations of a forward and a backward pass for one sample: those of products and convolutions.

    Counted on a model without data, 2 for a multiplication with an addition. None for a model that cannot be counted
    so, which is logged.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    try:
        with torch.device("meta"):
            plain = {**model, "batch_norm": "replica"}  # others count the same, and some ask for the other ranks
            counted = models.build(plain, input_shape=input_shape, num_classes=num_classes)
            images = torch.empty(COUNTED, *input_shape)
        with FlopCounterMode(display=False) as counter:
            counted(images).sum().backward()
    except Exception as error:  # a model of the user's own may do anything
        _log.warning("FLOPs were not counted, and mfu stays empty: %s: %s", type(error).__name__, error)
        return None
    return float(counter.get_total_flops()) / COUNTED


def matrix_flops_per_s(device: str, precision: Precision, *, ranks: int) -> float:
    """FLOP/s of large matrix products in the precision of the training, the best of a few tries.

    Measured once in a process for as many ranks, which are taken to do the same at the same time.
    """
    return _measured(device, precision.autocast or precision.parameters, precision.tf32, torch.get_num_threads(), ranks)


@functools.cache
def _measured(device: str, dtype: torch.dtype, tf32: bool, threads: int, ranks: int) -> float:
    sizes = SIZES[torch.device(device).type]
    for size in sizes[:-1]:
        if dtype == torch.float64 and size > SLOW_SIZE:
            continue
        try:
            return _rate(size, device, dtype)
        except torch.OutOfMemoryError:
            continue
    return _rate(sizes[-1], device, dtype)


def _rate(size: int, device: str, dtype: torch.dtype) -> float:
    clock = Clock(device)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    left @ right
    fastest_s = float("inf")
    for _ in range(TRIES):
        started = clock.read()
        for _ in range(PRODUCTS):
            left @ right
        fastest_s = min(fastest_s, clock.read() - started)
    return PRODUCTS * 2 * size**3 / fastest_s
