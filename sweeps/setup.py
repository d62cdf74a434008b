"""What a config says of trials, whichever point of the grid they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What does not vary between the trials of one point's config axes: the resolved config, read once."""

    trainable: str
    config: Mapping[str, Any]
    """The sections a trainable may read; `optimizer` is one of them where the trainable has an optimizer section."""
    reference_lr: float
    reference_batch_size: int
    optimizer: Mapping[str, Any]
    """The optimizer's config with its `name`; `unknown` for code that keeps its optimizer to itself."""
    strategy: str
    """`auto`: one process for one rank, DDP for several."""
    device: str
    gpus_per_worker: float | None
    gpu_types: tuple[str, ...] = ()
    """Of the GPUs that a gang is to have; empty for any."""
    cpus_per_worker: int | None
    """None: a rank's GPUs' share of the cores."""
    cores_per_gpu: int
    timing: str
    grad_accum_steps: int
    uneven_batch: bool
    warmup_epochs: float
    identity: Mapping[str, Any]
    """What identifies the config's part of a trial: the request as it was made, source and data versions."""
