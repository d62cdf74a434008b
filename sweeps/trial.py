"""One trial, as a plain value: everything that is decided before it starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sweeps.printable import printable_line


@dataclass(frozen=True, kw_only=True)
class Gang:
    """The processes and GPUs of a trial while it runs: all `ranks` start, or none."""

    ranks: int
    gpus_per_rank: float
    """0 on a machine without GPUs; below 1 only for a single rank."""
    cpus_per_rank: int
    workers_per_rank: int = 1
    """Processes that the rank starts itself, if there are no GPUs to count."""
    gpu_types: tuple[str, ...] = ()
    """Empty: any GPUs; one type: only such GPUs; several: equally many ranks on each, in this order."""

    def parts(self) -> list[Gang]:
        """The gang, or one gang per GPU type if types are mixed; together, their ranks are in order."""
        types, ranks = self.gpu_types, self.ranks
        if len(types) < 2:
            return [self]
        counts = Counter(types[rank * len(types) // ranks] for rank in range(ranks))
        return [replace(self, ranks=count, gpu_types=(gpu_type,)) for gpu_type, count in counts.items()]

    @property
    def devices_per_rank(self) -> int:
        """Devices that one process drives; a fraction of one counts as one."""
        return max(1, int(self.gpus_per_rank), self.workers_per_rank)

    @property
    def gpus(self) -> float:
        """GPUs held in total."""
        return self.ranks * self.gpus_per_rank


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How one optimizer step's samples are divided: global = Σ shares × grad_accum_steps."""

    global_batch_size: int
    grad_accum_steps: int = 1
    shares: tuple[int, ...]
    """Samples per forward pass, one number for each rank."""
    devices_per_rank: int = 1
    """Devices of a rank; its replicas of the model divide its share evenly. Without GPUs: processes that it starts."""
    tensor_parallel: int = 1
    context_parallel: int = 1
    pipeline_parallel: int = 1
    """The product of the three is the number of devices that hold one replica of the model."""

    @property
    def data_parallel_size(self) -> int:
        """Return the replicas of the model on the devices of all ranks."""
        devices = self.tensor_parallel * self.context_parallel * self.pipeline_parallel
        return max(1, len(self.shares) * self.devices_per_rank // devices)

    @property
    def device_batch_size(self) -> int:
        """The largest share of any replica, which has to fit into the memory of its devices."""
        return math.ceil(max(self.shares) * len(self.shares) / self.data_parallel_size)


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The result of applying a learning-rate rule to the reference rate, before any schedule."""

    rule: str = "none"
    reference_batch_size: int = 0
    """The global batch that the rule starts from; 0: the trial's."""
    multiplier: float = 1.0
    value: float
    """The rate the schedule starts from once any warm-up is over."""
    warmup_from: float
    """The rate at sample 0; equal to `value` if the rule has no warm-up. The warm-up is linear in samples."""
    warmup_epochs: float = 0.0
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Optimizer settings that the rule changes besides the rate, as {setting: value}."""

    def at(self, position: float, epoch_samples: int) -> float:
        """Return the rate after `position` samples, before any schedule.

        The warm-up is linear in samples (Goyal et al. 2017, section 2.2).
        """
        warmup_samples = self.warmup_epochs * epoch_samples
        if position >= warmup_samples:
            return self.value
        return self.warmup_from + (self.value - self.warmup_from) * position / warmup_samples


class Purpose(StrEnum):
    """The reason why a trial runs. Only `train` gives a row; the others measure another trial, `TrialSpec.measures`."""

    TRAIN = "train"
    PROBE = "probe"
    """Measures speed and memory before the other trial runs."""
    REPETITION = "repetition"
    """Trains the other trial once more, which has ended, to time it again."""
    WINDOW = "window"
    """Repeats no more than the timed window of the other trial."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial. `trial_id` covers everything that can change its result; `cell_id` the same without the seed."""

    trial_id: str
    cell_id: str
    sweep: str
    axes: Mapping[str, Any]
    """The point of the grid as written, {axis: value}."""
    gpus: float
    gang: Gang
    device: str
    """`cuda` or `cpu`; on `cpu`, `gpus` counts worker processes."""
    strategy: str
    timing: str
    """`device`, `exclusive` or `shared`."""
    batch: Batch
    lr: LearningRate
    seed: int
    trainable: str
    """Dotted path `package.module:function` of a function `(config, context) -> None`."""
    config: Mapping[str, Any]
    """The resolved config sections a trainable may read; JSON values only."""
    purpose: Purpose = Purpose.TRAIN
    measures: str = ""
    """The id of the trial that this one measures; empty for `train`."""

    @property
    def label(self) -> str:
        """A name for people: `batch_scaling/gpus=2,device_batch_size=128,lr_rule=linear,seed=0`."""
        return printable_line(f"{self.sweep}/" + ",".join(f"{axis}={value}" for axis, value in self.axes.items()))

    @property
    def memory_share(self) -> float | None:
        """The fraction of its GPU's memory that the rank may use on a shared device; None: no limit."""
        share = self.gang.gpus_per_rank
        return share if self.timing == "shared" and 0 < share < 1 else None

    @property
    def gpus_held(self) -> float:
        """GPUs that the trial occupies, and so costs; worker processes on `cpu`.

        A timed trial occupies whole devices even if it asks for a fraction; a packed one occupies as much of a device
        as its memory was measured to need, which may be more than it asked for.
        """
        if self.device == "cpu":
            return self.gpus
        share = self.gang.gpus_per_rank
        return self.gang.ranks * (share if self.timing == "shared" else math.ceil(share))

    def rank_request(self, rank: int) -> dict[str, Any]:
        """The request to one rank of the gang, as JSON values; the back end adds where to meet and where to write."""
        return {
            "trial_id": self.trial_id,
            "label": self.label,
            "trainable": self.trainable,
            "config": dict(self.config),
            "rank": rank,
            "world_size": self.gang.ranks,
            "device": self.device,
            "gpus_per_rank": self.gang.gpus_per_rank,
            "memory_share": self.memory_share,
            "threads": self.gang.cpus_per_rank,
            "strategy": self.strategy,
            "seed": self.seed,
            "batch": asdict(self.batch) | {"shares": list(self.batch.shares)},
            "lr": asdict(self.lr),
        }
