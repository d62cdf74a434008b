"""Model FLOPs utilisation: the share of a device's matrix rate that a training uses (Chowdhery et al. 2022)."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from sweeps.gpus import gpu_named
from trainables import models
from trainables.context import Context
from trainables.process_group import RankGroup
from trainables.step.precision import Precision
from trainables.supervised.workload import Workload
from trainables.timed_window import Clock
from trainables.torch_private import fake_tensors, flop_counter

_log = logging.getLogger(__name__)

MOST_REAL = 3e10
"""Image models with a smaller product of parameters and pixels are counted on real tensors, in about a second.

Others are counted on meta tensors, which imports torch's compiler; so are models with attention, whose kernel for real
tensors counts more.
"""

_WITHOUT_ATTENTION = ("mlp", "small_cnn", "resnet9", "resnet18", "resnet50", "resnet101")

COUNTED = 2  # samples in the batch that FLOPs are counted for: batch norm needs more than one

SIZES = {"cpu": (512,), "cuda": (8192, 4096, 2048)}
"""Sides of the square matrices that the rate is measured with: the largest that the training has left memory for."""
SLOW_SIZE = 2048  # the largest side in float64, in which many GPUs are a thousand times slower
TRIES, PRODUCTS = 3, 4


def utilisation(
    model: Mapping[str, Any], workload: Workload, samples_per_s: float, *, rank_group: RankGroup, context: Context
) -> dict[str, float]:
    """Return `mfu`: the model's FLOP/s as a share of the matrix rate of all ranks' devices in this precision.

    Also returns `matrix_flops_per_s` and `flops_per_sample`; only the former if the model's FLOPs cannot be counted.
    `mfu_nominal` is the share of what the data sheet of a known GPU promises.
    """
    with context.phase("measurement"):
        own = matrix_flops_per_s(context.device, workload.precision, ranks=rank_group.world_size)
        # A rank with several devices measures one of them: they are equal.
        rate = sum(rank_group.each(own * max(1, len(context.devices))))
        peak = sum(
            rank_group.each(nominal_flops_per_s(context.device, workload.precision) * max(1, len(context.devices)))
        )
    flops = flops_per_sample(model, input_shape=workload.input_shape, num_classes=workload.num_classes)
    figures = {"matrix_flops_per_s": rate}
    if flops is None:
        return figures
    figures |= {"flops_per_sample": flops, "mfu": flops * samples_per_s / rate}
    return figures | ({"mfu_nominal": flops * samples_per_s / peak} if math.isfinite(peak) else {})


def flops_per_sample(model: Mapping[str, Any], *, input_shape: tuple[int, ...], num_classes: int) -> float | None:
    """Return the floating-point operations of a forward and a backward pass for one sample.

    Products and convolutions count, 2 for a multiplication with an addition. Returns None and logs a warning for a
    model that cannot be counted so. A process counts each model once.
    """
    return _count(json.dumps(model, sort_keys=True), input_shape, num_classes)


@functools.cache
def _count(model_json: str, input_shape: tuple[int, ...], num_classes: int) -> float | None:
    model = json.loads(model_json)
    of_transformers = model["name"] == "hf"
    plain = {**model, "batch_norm": "replica"}  # all kinds count the same, and some need other ranks
    plain |= {"pretrained": False} if of_transformers else {}
    of_tokens = len(input_shape) == 1
    dtype = torch.int64 if of_tokens else torch.float32
    try:
        with fake_tensors() if of_transformers else nullcontext(), torch.random.fork_rng(devices=[]):
            counted, device = _built(plain, input_shape, num_classes, "meta"), "meta"
            products = math.prod(input_shape[1:]) * sum(parameter.numel() for parameter in counted.parameters())
            if not of_tokens and products < MOST_REAL and model["name"] in _WITHOUT_ATTENTION:
                counted, device = _built(plain, input_shape, num_classes, "cpu"), "cpu"
            inputs = torch.zeros(COUNTED, *input_shape, dtype=dtype, device=device)
            with flop_counter()(display=False) as counter:
                counted(inputs).sum().backward()
    except Exception as error:  # the user's own model may do anything
        _log.warning("FLOPs were not counted, and mfu stays empty: %s: %s", type(error).__name__, error)
        return None
    return float(counter.get_total_flops()) / COUNTED


def _built(model: Mapping[str, Any], input_shape: tuple[int, ...], num_classes: int, device: str) -> nn.Module:
    with torch.device(device):
        return models.build(model, input_shape=input_shape, num_classes=num_classes)


def nominal_flops_per_s(device: str, precision: Precision) -> float:
    """Return what the data sheet of the device promises in this precision; NaN for other devices and for float64."""
    if torch.device(device).type != "cuda" or precision.parameters == torch.float64:
        return math.nan
    return nominal_peak(torch.cuda.get_device_name(device), precision)


def nominal_peak(name: str, precision: Precision) -> float:
    """Return the peak of a GPU by its name: `NVIDIA H100 80GB HBM3`. NaN if it is not known."""
    gpu = gpu_named(name)
    form = "half" if precision.computes.itemsize == 2 else "tf32" if precision.tf32 else "fp32"
    return float(getattr(gpu, form)) if gpu else math.nan


def matrix_flops_per_s(device: str, precision: Precision, *, ranks: int) -> float:
    """Return the FLOP/s of large matrix products in the precision of the training, the best of a few attempts.

    A process measures it once per number of ranks, because ranks that measure at the same time share the machine.
    """
    dtype = precision.computes
    return _measure_rate(device, dtype, precision.tf32, torch.get_num_threads(), ranks)


@functools.cache
def _measure_rate(device: str, dtype: torch.dtype, tf32: bool, threads: int, ranks: int) -> float:
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
