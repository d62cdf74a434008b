"""The part of trials that their config determines, independent of the point of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is common to all trials with the same config axes: the resolved config, read once."""

    trainable: str
    config: Mapping[str, Any]
    """The sections a trainable may read, including `optimizer` if the trainable has such a section."""
    reference_lr: float
    reference_batch_size: int
    optimizer: Mapping[str, Any]
    """The optimizer's config with its `name`; `unknown` for code that does not reveal its optimizer."""
    strategy: str
    """`auto`: one process for one rank, DDP for several."""
    device: str
    gpus_per_worker: float | None
    gpu_types: tuple[str, ...] = ()
    """Required types of GPUs; empty for any."""
    cpus_per_worker: int | None
    """None: the share of the cores that belongs to a rank's GPUs."""
    cores_per_gpu: int
    timing: str
    grad_accum_steps: int
    uneven_batch: bool
    warmup_epochs: float
    identity: Mapping[str, Any]
    """The config's part of a trial's identity: the request as written, and versions of sources and data."""
