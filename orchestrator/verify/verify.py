"""mode=verify: checks that a results directory is consistent, whatever happened to its drivers.

Changes nothing. Each violation is a line. What a crash may leave (a partial last record, trials without an end, tables
older than the journal) is no violation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.backends.choice import known_nodes
from orchestrator.config.request import Request
from orchestrator.driver import orphans
from orchestrator.journal.history import ends_under, latest
from orchestrator.journal.journal import replay, terminal
from orchestrator.journal.line import Kind
from orchestrator.journal.soundness import read_results
from orchestrator.plan.plan import TrialsOn
from orchestrator.storage.layout import Layout
from orchestrator.storage.lock import owner_alive
from orchestrator.verify import files as verify_files
from orchestrator.verify import journal as verify_journal
from sweeps.mistakes import MistakesError
from sweeps.probe import stand_ins

PATIENCE_S = 10.0
"""How long the processes of a dead driver may take to end."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of the checks."""

    violations: Sequence[str]
    remarks: Sequence[str]
    """Worth knowing, but no violations."""


def show(request: Request, asked: Mapping[str, Any], trials_on: TrialsOn) -> int:
    """Check and print the findings; returns 1 if there are violations, else 0. Raises MistakesError without results."""
    layout = Layout(request.results_dir)
    if not layout.journal.exists():
        raise MistakesError([f"there are no results in {layout.root}"])
    verdict = verify(request, layout, _planned(request, trials_on), asked)
    for line in verdict.violations:
        print(line, file=sys.stderr)
    for line in verdict.remarks:
        print(line)
    print(f"{len(verdict.violations) or 'no'} violation{'s' * (len(verdict.violations) != 1)} in {layout.root}")
    return 1 if verdict.violations else 0


def verify(request: Request, layout: Layout, planned: Sequence[str], asked: Mapping[str, Any]) -> Verdict:
    """Check the results in `layout`; `planned` has the ids of the sweep's trials, if known."""
    found = replay(layout.journal)
    reading = verify_journal.read(found.records)
    same = latest(found.records) in (None, asked)
    ends = ends_under(found.records, latest(found.records) or {})
    owner = owner_alive(layout)
    violations = list(reading.violations)
    # The last record may be incomplete if the journal is being written, or its driver died while writing.
    torn = [f"{layout.journal}: {damage}" for damage in found.damages if damage.reason.startswith("torn")]
    corrupt = [f"{layout.journal}: {damage}" for damage in found.damages]
    violations += [damage for damage in corrupt if damage not in torn]
    if reading.ended is not None:
        violations += verify_journal.of_the_plan(planned if same else (), ends, reading.ended)
    unfinished = [trial_id for trial_id, trial in reading.trials.items() if trial.status is None]
    violations += verify_files.of_ended_trials(layout, found.records)
    violations += verify_files.of_running_trials(layout, unfinished)
    violations += verify_files.of_checkpoints(layout)
    probes = [record.value["trial_id"] for record in found.records if record.kind == Kind.PROBED]
    repetitions = [stand_in for trial_id in reading.trials for stand_in in stand_ins(trial_id)]
    violations += verify_files.without_a_record(layout, [*reading.trials, *probes, *repetitions])
    violations += verify_files.of_the_tables(request, layout, read_results(layout), ended=reading.ended is not None)
    violations += _orphans(layout)
    missing = [trial_id for trial_id in planned if trial_id not in terminal(found.records)]
    remarks = [
        *torn,
        f"records: {len(found.records)}, trials: {len(reading.trials)}, with an end: {len(ends)}"
        + (f", planned without one: {len(missing)} of {len(planned)}" if same and planned else ""),
    ]
    if owner:
        remarks.append(f"a driver is running: process {owner.pid} on host {owner.host}")
    if not same:
        remarks.append(
            "the journal is of another configuration or other code than this command's: the plan was not checked"
        )
    if layout.quarantine.exists():
        remarks.append(f"{layout.quarantine} holds what was damaged before, and was left out")
    return Verdict(violations=violations, remarks=remarks)


def _planned(request: Request, trials_on: TrialsOn) -> list[str]:
    """The ids of the planned trials; empty if only a cluster could tell its nodes."""
    nodes = known_nodes(request)
    return [trial.trial_id for trial in trials_on(nodes)] if nodes else []


def _orphans(layout: Layout) -> Iterator[str]:
    """Processes of dead drivers that have not ended within PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while (left := orphans.left_over(layout.root)) and time.monotonic() < until:
        time.sleep(0.2)
    yield from (f"process {pid} of a dead driver of {layout.root} still runs" for pid in left)
