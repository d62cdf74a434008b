"""Adds telemetry to a trial's outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.journal.outcome import Outcome
from orchestrator.storage.layout import TELEMETRY
from orchestrator.telemetry.readings import Readings
from sweeps.trial import TrialSpec


def with_telemetry(outcome: Outcome, readings: Sequence[Readings], trial: TrialSpec, trial_dir: Path) -> Outcome:
    """The outcome with these ranks' figures and machines added; the samples are written to the trial's folder.

    The trial's own metrics take precedence over telemetry. If the file cannot be written, the note says so.
    """
    if not readings:
        return outcome
    from orchestrator.telemetry.figures import figures  # imports numpy, which --help and mode=plan do not need

    complete = len(readings) == trial.gang.ranks
    seen = figures(readings, outcome.metrics, alone=_alone(trial)) if complete else {}
    failures = [f"telemetry: {each.failure}" for each in readings if each.failure][:1]
    try:
        _write(trial_dir / TELEMETRY, readings)
    except OSError as error:
        failures.append(f"telemetry was not written: {error.strerror or error}")
    note = "; ".join(filter(None, [outcome.note, *failures]))
    provenance = {**outcome.provenance, **_machines(readings)}
    return replace(outcome, metrics={**seen, **outcome.metrics}, provenance=provenance, note=note)


def _machines(readings: Sequence[Readings]) -> dict[str, str]:
    """The id of the first rank's machine, and all machines' ids if there are several."""
    found = list(dict.fromkeys(each.machine for each in sorted(readings, key=lambda each: each.rank)))
    first = {"machine": found[0]} if found[0] else {}
    return first | ({"machines": " ".join(found)} if len(found) > 1 and all(found) else {})


def _alone(trial: TrialSpec) -> bool:
    """Whether the energy of its devices is the trial's alone, according to the plan."""
    if trial.device == "cpu":
        return trial.timing == "exclusive"
    return trial.timing != "shared" and trial.gang.gpus_per_rank >= 1


def _write(path: Path, readings: Sequence[Readings]) -> None:
    """Write the file, or remove an earlier attempt's if this trial was too short for any sample."""
    if not any(each.ticks for each in readings):
        path.unlink(missing_ok=True)
        return
    from orchestrator.telemetry import file as telemetry_file

    telemetry_file.write(path, readings)
