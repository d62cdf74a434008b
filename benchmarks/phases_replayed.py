r"""Replay `sweep.phases` on finished full grids: what it would have spent and recommended.

    python -m benchmarks.phases_replayed replayed.json --full results/a --full results/b --phased results/c -- \
        sweep=batch_scaling …

The rules of the phases run on the journals of full grids of the same command: each trial that they request ends as it
did there. So both see the same noise and the same speeds. Probes come from the journal of `--phased`, which also gives
the result of a real run. Timings count as valid, because on a busy machine none would be. `regret` is how far the
objective of the answer is above the full grid's answer, by the pooled full grids.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra

from benchmarks.figures import machine, tell
from orchestrator.analysis.trials import collect
from orchestrator.cli.sweep_checks import checked
from orchestrator.config.compose import Composition
from orchestrator.config.request import Request
from orchestrator.config.search_path import config_dir
from orchestrator.decision.decide import decide
from orchestrator.plan import phases
from orchestrator.plan.phases import Prospects
from orchestrator.store.history import History
from orchestrator.store.journal import replay
from orchestrator.store.record import Kind, TrialRecord
from orchestrator.telemetry.cpu import this_machine
from sweeps.status import Status
from sweeps.trial import TrialSpec

_DISTURBANCES = ("foreign_cpu", "foreign_gpu_processes", "throttled_periods", "swapped_pages", "throttle_reasons")


def question_of(words: Sequence[str]) -> tuple[Request, list[TrialSpec]]:
    """Return the request of the command line."""
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3", job_name="orchestrator"):
        configured = checked(Composition(words))
        return configured.request, configured.trials((this_machine(),))


def key(axes: Mapping[str, Any]) -> str:
    return json.dumps(dict(axes), sort_keys=True)


def ends_of(folder: Path, planned: Sequence[TrialSpec]) -> dict[str, TrialRecord]:
    """Return the results by their axes, with all timings valid and in the current format."""
    rows = {key(row.axes): row for row in History(replay(folder / "journal.jsonl").records).all_ends.values()}
    ends = ((trial, rows[key(trial.axes)]) for trial in planned)
    return {
        key(trial.axes): dataclasses.replace(undisturbed(end), trial_id=trial.trial_id, cell_id=trial.cell_id)
        for trial, end in ends
    }


def undisturbed(record: TrialRecord) -> TrialRecord:
    kept = {name: value for name, value in record.metrics.items() if name not in _DISTURBANCES}
    return dataclasses.replace(record, metrics=kept)


def recommended(request: Request, ends: Sequence[TrialRecord]) -> Any:
    return decide(*collect(request, ends))


def played(
    request: Request, planned: Sequence[TrialSpec], full: Mapping[str, TrialRecord], probed: Mapping[str, Any]
) -> list[TrialRecord]:
    """Return the results that exist once the phases request no further trial."""
    ends: dict[str, TrialRecord] = {}
    waiting = list(planned)
    while asked := phases.next_trials(waiting, Prospects.of(request, planned, ends, probed)):
        ids = {trial.trial_id for trial in asked}
        waiting = [trial for trial in waiting if trial.trial_id not in ids]
        for trial in asked:
            ends[trial.trial_id] = as_it_ended(trial, full[key(trial.axes)])
    return list(ends.values())


def as_it_ended(trial: TrialSpec, end: TrialRecord) -> TrialRecord:
    """Return a trial that ends after its training, without its timed window and warm-up."""
    bound = trial.settings.get("give_up_below")
    if bound is None or end.metrics["val_accuracy"] >= bound:
        return end
    saved_s = end.metrics.get("window_s", 0.0) + trial.settings["warmup_s"]
    return dataclasses.replace(end, status=Status.SKIPPED, skipped_by="early_stop", wall_s=end.wall_s - saved_s)


def hours(ends: Sequence[TrialRecord]) -> float:
    return sum(end.gpus * end.wall_s for end in ends) / 3600


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--full", type=Path, action="append", required=True, help="results of a full grid")
    arguments.add_argument("--phased", type=Path, required=True, help="results with sweep.phases=[probe,train]")
    arguments.add_argument("words", nargs="+", help="what the orchestrator was asked, without phases and results_dir")
    given = arguments.parse_args()
    request, planned = question_of(given.words)
    records = replay(given.phased / "journal.jsonl").records
    probed = {record.value["speed"]: record.value for record in records if record.kind == Kind.PROBED}
    real = [undisturbed(row) for row in History(records).all_ends.values()]
    grids = [ends_of(folder, planned) for folder in given.full]
    pooled = [
        dataclasses.replace(end, seed=end.seed + 1000 * at) for at, grid in enumerate(grids) for end in grid.values()
    ]
    _, cells, _ = collect(request, pooled)
    level = dict(zip(cells["cell_id"], 1 / cells["samples_per_s"], strict=True))
    probing_h = sum(value["gpus"] * value["wall_s"] for value in probed.values()) / 3600
    rows = []
    for folder, grid in zip(given.full, grids, strict=True):
        whole, part = list(grid.values()), played(request, planned, grid, probed)
        best, phased = recommended(request, whole), recommended(request, part)
        rows.append(
            {
                "grid": folder.parent.name if folder.name == request.settings.sweep.name else folder.name,
                "full": best.name,
                "full_p_best": best.p_best,
                "phases": phased.name,
                "phases_p_best": phased.p_best,
                "regret": level[phased.cell_id] / level[best.cell_id] - 1,
                "trials": [len(whole), len(part)],
                "gpu_hours": [hours(whole), hours(part) + probing_h],
                "share": (hours(part) + probing_h) / hours(whole),
            }
        )
    ran = [end for end in real if end.skipped_by in ("", "early_stop")]
    told = recommended(request, real)
    run = {"phases": told.name, "p_best": told.p_best, "trials": len(ran), "gpu_hours": hours(ran) + probing_h}
    tell({**machine(), "probes": len(probed), "replayed": rows, "run": run}, given.json)


if __name__ == "__main__":
    main()
