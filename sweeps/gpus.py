"""Rates, memory and bandwidth of known GPUs, from their data sheets; and the cost of GPU-hours."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

BESIDE_GB = 1.0
"""The most that a process holds outside of torch's allocator: the CUDA context, NCCL's buffers, memory of libraries."""

SHAPES_OF = "shapes_of"
"""The key of the config that names the GPU of a rehearsal from shapes."""


class GpuModel(NamedTuple):
    """A kind of GPU."""

    half: float
    """FLOP/s of dense products with float32 sums, without sparsity; of `tf32` and `fp32`, too."""
    tf32: float
    fp32: float
    memory_gb: float
    """GiB that torch may use."""
    bytes_per_s: float


def _gpu(half: float, tf32: float, fp32: float, memory_gb: float, gb_per_s: float) -> GpuModel:
    return GpuModel(half * 1e12, tf32 * 1e12, fp32 * 1e12, memory_gb, gb_per_s * 1e9)


GPUS: Mapping[str, GpuModel] = {
    "B200": _gpu(2250, 1125, 75, 178.4, 8000),
    "H200": _gpu(989, 494, 67, 139.8, 4800),
    "H100 PCIe": _gpu(756, 378, 51, 79.1, 2000),
    "H100 NVL": _gpu(835, 417, 60, 93.1, 3900),
    "H100": _gpu(989, 494, 67, 79.1, 3350),
    "GH200": _gpu(989, 494, 67, 94.5, 4000),
    "H20": _gpu(148, 74, 44, 95.2, 4000),
    "A100": _gpu(312, 156, 19.5, 79.1, 2039),
    "A100 40GB": _gpu(312, 156, 19.5, 39.4, 1555),
    "A10G": _gpu(70, 35, 35, 22.0, 600),
    "A40": _gpu(149.7, 74.8, 37.4, 44.4, 696),
    "L40S": _gpu(362, 183, 91.6, 44.4, 864),
    "L4": _gpu(121, 60, 30.3, 22.0, 300),
    "V100": _gpu(125, math.nan, 15.7, 15.8, 900),
    "V100 32GB": _gpu(125, math.nan, 15.7, 31.7, 900),
    "T4": _gpu(65, math.nan, 8.1, 14.6, 320),
    "RTX 4090": _gpu(165.2, 82.6, 82.6, 23.5, 1008),
    "RTX 3090": _gpu(71, 35.6, 35.6, 23.6, 936),
}
"""GPUs by a part of their names, from NVIDIA's data sheets."""


def gpu_named(name: str) -> GpuModel | None:
    """Return the GPU by its name: `NVIDIA H100 80GB HBM3`. None if it is not known."""
    words = {*re.split(r"[ -]", name.lower())}
    known = [part for part in GPUS if {*part.lower().split()} <= words]
    return GPUS[max(known, key=len)] if known else None


def name_errors(name: object) -> Iterator[str]:
    """Yield what is wrong with `forecast.device`."""
    if name is not None and (not isinstance(name, str) or gpu_named(name) is None):
        yield f"forecast.device={name!r} is not a known GPU: name one of {', '.join(GPUS)}"


def cost_of(gpu_hours: Any, price_per_gpu_hour: float | None) -> Any:
    """Return the cost of GPU-hours, a number or an array; NaN without a price."""
    return gpu_hours * (math.nan if price_per_gpu_hour is None else price_per_gpu_hour)
