"""The terminal record of a trial: one line of the journal, one row of `tables/trials.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.journal.outcome import Outcome
from orchestrator.journal.timing import with_timing
from sweeps.status import Status
from sweeps.trial import TrialSpec

_FROM_OTHER_RECORDS = ("earlier_s", "untold_attempts")


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
    spoiled: str = ""
    """What spoiled the timing of its last attempt, where an earlier one is valid and stays."""
    earlier_s: float = 0.0
    """Seconds of the attempts before the last, computed from other records; not written to the journal."""
    untold_attempts: int = 0
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
    def of(trial: TrialSpec, outcome: Outcome, *, attempt: int, finished_at: str) -> TrialRecord:
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
