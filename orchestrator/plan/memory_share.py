"""The share of a GPU that a packed trial holds: what was asked for or, if measured, what its memory needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.journal.record import TrialRecord
from sweeps.status import Status
from sweeps.trial import TrialSpec

SPARE = 1.2
"""The allocator's blocks may fit less well the next time, and with too little memory the trial would end as `oom`."""

MEASURED = ("reserved_memory_gb", "device_memory_gb")
"""Metrics of a rank: its own peak memory, and that of the whole device."""

_ALIKE_IN_MEMORY = frozenset(
    ("gpus", "seed", "device_batch_size", "global_batch_size", "lr_rule", "lr_multiplier", "probe", "repetition")
)


def size(axes: Mapping[str, Any], device_batch_size: int) -> str:
    """What trials that need the same memory on each device have in common."""
    others = sorted((axis, value) for axis, value in axes.items() if axis not in _ALIKE_IN_MEMORY)
    return repr((device_batch_size, others))


def is_packed(trial: TrialSpec) -> bool:
    """Whether the trial was asked to share its GPU with others."""
    return trial.timing == "shared" and trial.device == "cuda" and 0 < trial.gpus < 1


@dataclass(frozen=True, kw_only=True)
class MemoryShares:
    """The share of a device that trials of each size need; NaN if one has ended without reporting it."""

    needs: Mapping[str, float]

    @staticmethod
    def of(ends: Iterable[TrialRecord], probes: Iterable[Mapping[str, Any]] = ()) -> MemoryShares:
        """From the trials and probes that ran."""
        needs: dict[str, float] = {}
        ran = [(size(end.axes, end.device_batch_size), end.status, end.metrics) for end in ends if _ran(end)]
        tried = [(probe["size"], Status(probe["status"]), probe) for probe in probes if "size" in probe]
        for key, status, figures in [*ran, *tried]:
            share = _share(status, figures)
            needs[key] = share if math.isnan(needs.get(key, math.nan)) else max(needs[key], share)
        return MemoryShares(needs=needs)

    def unknown(self, trials: Iterable[TrialSpec]) -> list[TrialSpec]:
        """One packed trial of every size that has not run yet."""
        found = {_size(trial): trial for trial in reversed(list(trials)) if is_packed(trial)}
        return [trial for key, trial in found.items() if key not in self.needs]

    def placed(self, trial: TrialSpec) -> TrialSpec:
        """The trial with the share of a GPU that it will hold: a whole one until its memory is known."""
        if not is_packed(trial):
            return trial
        need = 1.0 if trial.probes else self.needs.get(_size(trial), 1.0)
        held = min(1.0, max(trial.gpus, 0.0 if math.isnan(need) else math.ceil(need * 100) / 100))
        return replace(trial, gang=replace(trial.gang, gpus_per_rank=held))

    def foreseen(self, trial: TrialSpec) -> TrialSpec:
        """The same for a forecast: the share that was asked for until its memory is known."""
        return self.placed(trial) if _size(trial) in self.needs else trial


def _ran(end: TrialRecord) -> bool:
    return end.device == "cuda" and end.skipped_by in ("", "early_stop") and end.status is not Status.INFEASIBLE


def _size(trial: TrialSpec) -> str:
    return size(trial.axes, trial.batch.device_batch_size)


def _share(status: Status, figures: Mapping[str, Any]) -> float:
    """Of the device's memory; a trial that ran out of memory gets all of it, which may still be too little."""
    if status is Status.OOM:
        return 1.0
    reserved_gb, device_gb = (figures.get(name) for name in MEASURED)
    return SPARE * reserved_gb / device_gb if reserved_gb is not None and device_gb else math.nan
