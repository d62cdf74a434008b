"""The terminal record of a trial: one line of the journal, one row of `tables/trials.csv`.

How one attempt at a trial ended, on any back end, and the root cause.

The timing of a trial as a part of its row, which may come from another attempt than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from sweeps.axes import is_number
from sweeps.status import Status
from sweeps.trial import TrialSpec


class Cause(StrEnum):
    """The root cause of an end other than a plain `ok`, as far as it decides what happens next."""

    NONE = ""
    """Nothing to explain, or unknown."""
    ERROR = "error"
    """The trainable raised."""
    REQUEST = "request"
    """The request itself is invalid: every trial with the same request would fail, too."""
    CRASH = "crash"
    """A rank's process died, but its node did not."""
    NODE = "node"
    """A node, or the supervisor on it, was lost; the trial did not cause it."""
    DEVICE = "device"
    """A GPU was lost or is broken; the trial did not cause it."""
    HOST_MEMORY = "host_memory"
    DEVICE_MEMORY = "device_memory"
    HANG = "hang"
    """No progress for `hang_s`."""
    TIME_LIMIT = "time_limit"
    DISK = "disk"
    """A disk is full or cannot be written."""


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """How one attempt at a trial ended."""

    status: Status
    cause: Cause = Cause.NONE
    """The root cause, which decides whether the trial is tried again."""
    note: str = ""
    """One line for the tables: empty for a plain `ok`."""
    trace: str = ""
    """The full traceback of the rank that caused the failure."""
    wall_s: float
    """Seconds from the request to start until the last rank's answer, on a monotonic clock."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The trial's figures by column name of `tables/trials.csv`; absent if not measured."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """The hardware and software that produced them."""
    skipped_by: str = ""
    """The rule of the sweep that skipped the trial: `budget`, `early_stop`, `phases` or `search`."""
    lost_devices: Sequence[str] = ()
    """For cause DEVICE: the GPUs not to be used any more, as named in `orchestrator.backends.gpu_quarantine`."""


def figure(metrics: Mapping[str, Any], name: str) -> float | None:
    """One of a trial's metrics as a number; None if it was not measured or is not a number."""
    value = metrics.get(name)
    return float(value) if is_number(value) else None


_OF_THE_WINDOW = frozenset(
    (
        *("epoch_s", "samples_per_s", "window_s", "window_steps", "slowest_rank", "mfu", "matrix_flops_per_s"),
        *("shares", "rank_samples_per_s", "micro_batch_size"),
        *("gpu_util", "gpu_util_spread", "cpu_util", "sm_clock_mhz", "throttle_reasons"),
        *("power_w", "energy_j_per_sample"),
        *("foreign_cpu", "foreign_cpu_by", "foreign_gpu_processes", "throttled_periods", "swapped_pages"),
    )
)
_OF_A_STEP = "step_"
_TRAINED = ("first_epoch_s", "train_s", "time_to_target_s", "energy_j")
_OF_THE_TRAINING = (*_TRAINED, "energy_source")
"""Which a repetition that ends with its window cannot measure."""
_SPEEDS = ("samples_per_s", "epoch_s", "window_s")
_HARDWARE_AND_SOFTWARE = ("device_model", "driver", "cuda", "cudnn", "nccl", "torch")


def timing_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row or a repetition, as JSON values, that are its timing."""
    metrics = {name: value for name, value in _metrics(row).items() if _is_timing(name, row)}
    return {name: row[name] for name in ("timing", "provenance") if name in row} | {"metrics": metrics}


def with_timing(row: Mapping[str, Any], timed: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the timing of another attempt at the same trial."""
    timing = timing_of(timed)
    others = {name: value for name, value in _metrics(row).items() if not _is_timing(name, timed)}
    return {**row, **timing, "metrics": {**others, **timing["metrics"]}}


def not_timed(row: Mapping[str, Any], timed: Mapping[str, Any]) -> list[str]:
    """What the row's speed rests on and this other attempt did not measure; without a rate it rests on `train_s`."""
    of_row, found = _metrics(row), timing_of(timed)["metrics"]
    needed = [name for name in _SPEEDS if name in of_row] or ["train_s"]
    return [name for name in needed if name not in found]


def not_repeated(row: Mapping[str, Any], timed: Mapping[str, Any]) -> list[str]:
    """The row's times and energies that are still of its training, whose timing was disturbed."""
    return [name for name in _TRAINED if name in _metrics(row) and not _is_timing(name, timed)]


def comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether hardware and software of these provenances are the same, as far as both tell."""
    return all(one[name] == other[name] for name in _HARDWARE_AND_SOFTWARE if name in one and name in other)


def _is_timing(name: str, timed: Mapping[str, Any]) -> bool:
    whole = timed.get("repeats") != "window"
    return name in _OF_THE_WINDOW or name.startswith(_OF_A_STEP) or (whole and name in _OF_THE_TRAINING)


def _metrics(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a record that may be of any form."""
    metrics = row.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}


_FROM_OTHER_RECORDS = ("earlier_s", "unknown_attempts")


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """How a trial ended, with everything the tables need, so that they can be rebuilt from the journal alone."""

    trial_id: str
    cell_id: str
    sweep: str
    attempt: int
    status: Status
    note: str
    axes: Mapping[str, Any]
    gpus: float
    ranks: int
    device: str
    strategy: str
    timing: str
    global_batch_size: int
    device_batch_size: int
    grad_accum_steps: int
    lr_rule: str
    lr_multiplier: float
    lr: float
    seed: int
    wall_s: float
    """Wall time of its last attempt."""
    finished_at: str
    """UTC, ISO 8601. Only for people: no duration is computed from it."""
    metrics: Mapping[str, Any]
    provenance: Mapping[str, Any]
    gpus_held: float = 0.0
    """GPUs that it occupied; 0 in journals of versions that did not record them."""
    skipped_by: str = ""
    """The rule of the sweep that skipped the trial."""
    disturbed: str = ""
    """What disturbed the timing of its last attempt, where an earlier one is valid and stays."""
    earlier_s: float = 0.0
    """Seconds of the attempts before the last, computed from other records; not written to the journal."""
    unknown_attempts: int = 0
    """How many of those attempts are of unknown length, and so missing in `earlier_s`."""

    @property
    def machine(self) -> str | None:
        """The first rank's machine: its unique id, else its host name; None if neither is known.

        Containers on one machine have different host names, and several machines may have the same one.
        """
        names = (self.provenance.get(name) for name in ("machine", "host"))
        return next((each for each in names if isinstance(each, str) and each), None)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines of all ranks, as in `machine`; records of earlier versions have only the first rank's."""
        all_of_them = self.provenance.get("machines")
        if isinstance(all_of_them, str) and all_of_them:
            return tuple(all_of_them.split())
        return (self.machine,) if self.machine else ()

    @staticmethod
    def of(trial: TrialSpec, outcome: TrialOutcome, *, attempt: int, finished_at: str) -> TrialRecord:
        """The record of a trial that ended with this outcome."""
        return TrialRecord(
            trial_id=trial.trial_id,
            cell_id=trial.cell_id,
            sweep=trial.sweep,
            attempt=attempt,
            status=outcome.status,
            note=outcome.note,
            axes=dict(trial.axes),
            gpus=trial.gpus,
            gpus_held=trial.gpus_held,
            ranks=trial.gang.ranks,
            device=trial.device,
            strategy=trial.strategy,
            timing=trial.timing,
            global_batch_size=trial.batch.global_batch_size,
            device_batch_size=trial.batch.device_batch_size,
            grad_accum_steps=trial.batch.grad_accum_steps,
            lr_rule=trial.lr.rule,
            lr_multiplier=trial.lr.multiplier,
            lr=trial.lr.value,
            seed=trial.seed,
            wall_s=outcome.wall_s,
            finished_at=finished_at,
            metrics=dict(outcome.metrics),
            provenance=dict(outcome.provenance),
            skipped_by=outcome.skipped_by,
        )

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        value = asdict(self) | {"status": self.status.value}
        return {key: each for key, each in value.items() if key not in _FROM_OTHER_RECORDS}

    def timed_by(self, timed: Mapping[str, Any]) -> TrialRecord:
        """The record with the timing of another attempt, as JSON values."""
        return TrialRecord.from_json(with_timing(self.to_json(), timed))

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> TrialRecord:
        """The record from its JSON values. Unknown fields are ignored; absent ones get their defaults."""
        known = [key for key in TrialRecord.__dataclass_fields__ if key in value]
        return TrialRecord(**{key: value[key] for key in known} | {"status": Status(value["status"])})
