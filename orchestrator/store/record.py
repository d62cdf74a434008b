"""The records of a journal: their kinds, how an attempt ended, and a trial's record with its timing.

The timing is the part of a trial's record that another attempt may replace, if something disturbed the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sweeps.axes import is_whole
from sweeps.layout import OWN_RANKS
from sweeps.rank_exit import Cause, Exit
from sweeps.status import Status
from sweeps.trial import Purpose, TrialSpec


class Kind(StrEnum):
    """The kind of a record, which determines its contents."""

    SWEEP = "sweep"
    """`{fingerprint, rerun, driver, hardware, planned, open}`: a driver took up the sweep. `fingerprint` is the config
    outside `sweep.axes`, `driver` the driver's provenance, `hardware` the models of the devices, `planned` the number
    of trials, `open` that of trials without an end."""
    QUEUED = "queued"
    """`{shares_s}`: the driver will run these trials, each with the seconds by which it makes the sweep longer (by its
    id; null if unknown). `left_out`, if any: the ids of trials that it will run no longer, and that have no end."""
    STARTED = "started"
    """`{trial_id, attempt}`: the gang was told to start this attempt. With `measures`, as in `TrialRecord`, if any."""
    RETRIED = "retried"
    """`{trial_id, attempt, cause, note, wall_s, gpus_held}`: the attempt failed, and another will follow."""
    CUT_OFF = "cut_off"  # `{trial_id, attempt, wall_s, gpus_held}`: the sweep was interrupted during the attempt
    FINISHED = "finished"
    """A `TrialRecord`, plus `files`: the SHA-256 of the trial's files, by name; and `rewritten`, if any: the files that
    its command names and that changed during the attempt."""
    TIMED = "timed"
    """`{trial_id, timed_with}`: the timing of this trial's last attempt is that of another trial with the same steps,
    seed and hardware."""
    PROBED = "probed"
    """`{trial_id, measures, speed, size, gpus, gpus_held, status, note, wall_s, samples_per_s, epoch_s,
    sequence_length, reserved_memory_gb, device_memory_gb}`: a short trial ended that was run before another one."""
    ENDED = "ended"
    """`{missing, tables}`: the tables were written, each with its SHA-256, and `missing` planned trials have no end."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of the journal. Readers skip kinds that they do not know."""

    kind: str
    value: Mapping[str, Any]


EARLY_STOP = "early_stop"
"""The value of `skipped_by` of a trial that started and was stopped. Other rules skip trials before they start."""

OF_STARTED = ("", EARLY_STOP)
"""The values of `skipped_by` of trials that no rule left out before they started."""

PHASES = "phases"
"""The value of `skipped_by` of a trial that cannot change the recommendation."""


@dataclass(frozen=True, kw_only=True)
class TrialOutcome(Exit):
    """How one attempt at a trial ended: the exit of the rank that explains it."""

    wall_s: float  # seconds from the request to start until the last rank's answer, on a monotonic clock
    skipped_by: str = ""  # the rule of the sweep that skipped the trial: `budget`, `early_stop`, `phases` or `base`

    @property
    def status(self) -> Status:
        """The status of the trial, also of one that has not run."""
        return Status.SKIPPED if self.skipped_by else self.cause.status


@dataclass(frozen=True, kw_only=True, slots=True)
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
    wall_s: float  # wall time of its last attempt
    finished_at: str
    """UTC, ISO 8601. Only for people: no duration is computed from it."""
    metrics: Mapping[str, Any]
    provenance: Mapping[str, Any]
    budget: Mapping[str, Any] = field(default_factory=dict)
    """The length that was asked, as `{"epochs": 10}`; empty in records of earlier versions."""
    gpus_held: float = 0.0  # GPUs that it occupied; 0 if unknown
    skipped_by: str = ""  # the rule of the sweep that skipped the trial
    forecast: Mapping[str, Any] = field(default_factory=dict)
    """What rehearsals told of the trial before it ran, as `Forecast.figures`; empty without any."""
    cause: Cause = Cause.NONE  # the root cause of an end other than a plain `ok`
    purpose: Purpose = Purpose.TRAIN
    measures: str = ""  # the id of the trial that this one times again; empty for a trial with a row
    timed_with: str = ""
    """The id of another trial with the same speed, whose timing the row takes; empty if the trial has its own."""
    same_as: str = ""
    """The id of another trial with the same training, whose result this row repeats; empty if the trial ran."""
    disturbed: str = ""
    """Why the timing of this attempt does not replace an earlier one; empty if it does, or if there is none."""
    earlier_s: float = 0.0
    """Seconds of the attempts before the last, computed from other records; not written to the journal."""
    unknown_attempts: int = 0  # how many of those attempts are of unknown length, and so missing in `earlier_s`
    took_window: bool = True  # whether it took steps for a timed window; computed from other records
    in_kept_processes: bool = False  # they had run another trial before; computed from other records, too

    @property
    def ran(self) -> bool:
        """True if the trial was started: it fitted the nodes, and nothing but early stopping skipped it."""
        return self.status is not Status.INFEASIBLE and self.skipped_by in OF_STARTED

    @property
    def machine(self) -> str | None:
        """The first rank's machine: its unique id, else its host name; None if neither is known.

        Containers on one machine have different host names, and several machines may have the same one.
        """
        for name in ("machine", "host"):
            machine = self.provenance.get(name)
            if isinstance(machine, str) and machine:
                return machine
        return None

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines of all ranks, as in `machine`; records of earlier versions have only the first rank's."""
        machines = self.provenance.get("machines")
        if isinstance(machines, str) and machines:
            return tuple(machines.split())
        return (self.machine,) if self.machine else ()

    @property
    def nodes(self) -> int:
        """The nodes that it took, as far as the record tells: several nodes of a cluster may be on one machine."""
        of_command = self.ranks if self.strategy == OWN_RANKS else 1
        asked = self.axes.get("nodes")
        return max(1, of_command, asked if is_whole(asked) else 1, len(self.machines))

    @staticmethod
    def of(trial: TrialSpec, outcome: TrialOutcome, *, attempt: int, finished_at: str) -> TrialRecord:
        """The record of a trial that ended with this outcome.

        A trial that was told to leave its timing to another one has no figures of a window.
        """
        # Whether the trial has left its timing to another one shows only at its end: it may have timed itself.
        metrics, timed_with = dict(outcome.metrics), ""
        if outcome.status is Status.OK and "samples_per_s" not in metrics:
            timed_with = trial.settings.get("timed_with", "")
        # What it measured of a window is not the timing of its row.
        if timed_with:
            metrics = {name: value for name, value in metrics.items() if name not in _WINDOW_METRICS}
        return TrialRecord(
            **trial.columns,
            attempt=attempt,
            status=outcome.status,
            note=outcome.note,
            wall_s=outcome.wall_s,
            finished_at=finished_at,
            metrics=metrics,
            provenance=dict(outcome.provenance),
            skipped_by=outcome.skipped_by,
            cause=outcome.cause,
            timed_with=timed_with,
        )

    def copied_to(self, trial: TrialSpec, *, attempt: int, finished_at: str) -> TrialRecord:
        """Return the record of another trial with the same training, which has not run."""
        # The note names the axes in which the two trials differ.
        others = ", ".join(f"{axis}={value}" for axis, value in self.axes.items() if trial.axes.get(axis) != value)
        return replace(
            self,
            **trial.columns,
            attempt=attempt,
            finished_at=finished_at,
            note="; ".join(filter(None, (self.note, f"same training as {others}"))),
            metrics={name: value for name, value in self.metrics.items() if not self.is_of_window(name)},
            timed_with=self.timed_with or self.trial_id,
            same_as=self.trial_id,
            disturbed="",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        value = {name: item for name, item in asdict(self).items() if name not in FROM_OTHER_RECORDS}
        return {name: item.value if isinstance(item, StrEnum) else item for name, item in value.items()}

    def timed_by(self, other: TrialRecord) -> TrialRecord:
        """Return the record with the timing of another attempt at the same trial."""
        kept = {name: value for name, value in self.metrics.items() if not other.has_timing(name)}
        timing = {name: value for name, value in other.metrics.items() if other.has_timing(name)}
        return replace(self, timing=other.timing, provenance=other.provenance, metrics=kept | timing)

    def has_timing(self, metric: str) -> bool:
        """Return whether this metric is part of the attempt's timing.

        A repetition that ends with its window says nothing about the times of a whole training.
        """
        of_training = self.purpose is not Purpose.WINDOW and metric in (*TRAINING_TIMES, "energy_source")
        return self.is_of_window(metric) or of_training

    @staticmethod
    def is_of_window(metric: str) -> bool:
        """Return whether this metric was measured in the timed window."""
        return metric in _WINDOW_METRICS or metric.startswith("step_")


TRAINING_TIMES = ("first_epoch_s", "train_s", "time_to_target_s", "energy_j")
_WINDOW_METRICS = frozenset(
    (
        *("epoch_s", "samples_per_s", "window_s", "window_steps", "slowest_rank", "mfu", "matrix_flops_per_s"),
        *("mfu_nominal", "tokens_per_s"),
        *("shares", "rank_samples_per_s", "micro_batch_size"),
        *("gpu_util", "gpu_util_spread", "cpu_util", "sm_clock_mhz", "throttle_reasons"),
        *("power_w", "energy_j_per_sample"),
        *("foreign_cpu", "foreign_cpu_by", "foreign_gpu_processes", "throttled_periods", "swapped_pages"),
        "idle_gpu_processes",
    )
)
OF_TRAINING = ("note", "axes", "metrics", "provenance", "disturbed")
"""The fields of a `TrialRecord` that may contain secrets: they come from the user's config, program or machine."""
FROM_OTHER_RECORDS = ("earlier_s", "unknown_attempts", "took_window", "in_kept_processes")
