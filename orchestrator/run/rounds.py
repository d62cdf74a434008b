"""Decides what a sweep runs, round by round: as planned, or by phases; then disturbed timings once more.

With `mode=settle`, rounds of further seeds follow, for the cells that the recommendation names, until its verdict is
clear, no reasonable number of seeds would make it so, or a budget runs out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.config.request import Request, Terms
from orchestrator.decision.recommendation import CLEAR, FEWEST_SEEDS, SPEED_ONLY
from orchestrator.plan import phases
from orchestrator.plan.phases import Prospects
from orchestrator.plan.plan import MemoryShares, Plan
from orchestrator.run.session import Session
from orchestrator.schedule.queue import TrialQueue
from orchestrator.schedule.scheduler import Start
from orchestrator.store.history import History, speed_group
from orchestrator.store.record import TrialOutcome, TrialRecord
from orchestrator.store.secrets import Secrets
from orchestrator.telemetry.timing_gate import judged, needs_repetition
from orchestrator.trackers.tracking import TrackedListener, Tracker
from sweeps.branch import base_of, point_of
from sweeps.identity import LOOPS, SHOWN_DIGITS, equivalent_cells
from sweeps.probe import repetition_of
from sweeps.status import Status
from sweeps.trial import TrialSpec

Further = Callable[[TrialSpec, Sequence[int]], Sequence[TrialSpec]]
"""Returns trials of the same cell as a given one, with these seeds."""

Choice = tuple[Sequence[TrialSpec], Callable[[TrialSpec], TrialOutcome]]
"""The trials to run next, and the outcomes of those that will never run."""


class Rounds:
    """The source of the queue's trials; a round begins when none of the previous one is running or waiting."""

    def __init__(
        self, request: Request, planned: Plan, session: Session, history: History, further: Further | None = None
    ) -> None:
        """With `further`, further seeds run until the verdict is clear."""
        self._request = request
        self._further = further
        self._added: dict[str, TrialSpec] = {}
        self._timed_again: set[str] = set()
        self._planned = planned
        self._session = session
        self._history = history
        self._checked = False
        self.unsettled = ""
        """Why no further seeds run although the verdict is not clear: the budget that ran out."""
        self._skipped: Callable[[TrialSpec], TrialOutcome] = _never_skipped
        self._later: Sequence[TrialSpec] = self._to_run()
        self._originals = self._find_originals()
        self._open = {trial.trial_id for trial in self._later if base_of(trial)}
        self._drop_branch_points(planned.trials)
        self.first: Sequence[TrialSpec] = self._placed(self._first())
        """The trials of the first round."""

    def ended(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Note the end of a trial, and delete checkpoints from which no further branch starts."""
        if base_of(trial) and outcome.status.is_result():
            self._open.discard(trial.trial_id)
            self._drop_branch_points([trial])

    def row(self, trial_id: str) -> TrialRecord | None:
        """Return how this trial ended, if it has."""
        return self._history.of(trial_id).row

    def __bool__(self) -> bool:
        """Return whether there is anything to run."""
        return bool(self.first or self._later)

    def next(self, left_out: Sequence[tuple[TrialSpec, TrialOutcome]]) -> Sequence[TrialSpec]:
        """The next round, once it is in the journal what the last one left out; empty at the end of the sweep."""
        if self._session.stopping():
            return ()
        self.leave_out(left_out)
        # Disturbed timings come before the end: good measurements may open further cells.
        return self._placed(self._chosen() or self._disturbed() or self._rest() or self._further_seeds())

    def leave_out(self, ends: Sequence[tuple[TrialSpec, TrialOutcome]]) -> None:
        """Journal why trials will not run. A further seed has no row instead, which would count against its cell."""
        self._session.left_out([(trial, end) for trial, end in ends if trial.trial_id not in self._added])
        for trial, end in ends:
            if self._added.pop(trial.trial_id, None):
                self.unsettled = end.note

    @property
    def planned(self) -> Plan:
        """The plan with the further seeds that were added to it."""
        return replace(self._planned, trials=[*self._planned.trials, *self._added.values()])

    def _first(self) -> Sequence[TrialSpec]:
        probes = phases.probes(self._later, self._history.probes) if self._request.selection.phases else ()
        first = [*self._named(), *probes] or self._chosen() or self._disturbed() or self._rest()
        return first or self._further_seeds()

    def _named(self) -> Sequence[TrialSpec]:
        """Trials that the user named explicitly, which phases might skip."""
        if not self._request.selection.phases:
            return ()
        named = [trial for trial in self._later if trial.trial_id in self._planned.named]
        self._later = [trial for trial in self._later if trial.trial_id not in self._planned.named]
        return named

    def _placed(self, trials: Sequence[TrialSpec]) -> Sequence[TrialSpec]:
        """The trials; those that share a GPU get the share of it that they are known to need."""
        known = self._memory()
        return [known.placed(trial) for trial in trials]

    def _memory(self) -> MemoryShares:
        return MemoryShares.of(self._history.rows.values(), self._history.probes.values())

    def _to_run(self) -> list[TrialSpec]:
        """Return the trials that may run, also those that may wait for room; not those stopped early before."""
        selection, ends = self._request.selection, self._history.rows
        stops = (selection.phases or selection.early_stop_after) and selection.rerun.word == "none"
        all_failing = {
            key for key, end in ends.items() if stops and end.skipped_by == "early_stop"
        } - self._planned.named
        may_run = self._planned.may_run(waits=self._request.cluster.wait_s > 0)
        return [trial for trial in may_run if trial.trial_id not in all_failing]

    def _chosen(self) -> Sequence[TrialSpec]:
        """The next trials according to the phases.

        Without phases, all of them; but if trials are to share GPUs, one of each size runs alone first.
        """
        self._copy()
        self._leave_out_branches()
        if not self._later:
            return ()
        to_run, self._skipped = self._choice()
        asked = {trial.trial_id for trial in to_run}
        self._later = [trial for trial in self._later if trial.trial_id not in asked]
        return to_run

    def _copy(self) -> None:
        """Copy the results of trials whose training is the same as that of a trial that has ended."""
        ids, rest, rows = {trial.trial_id for trial in self._later}, [], self._history.rows
        for trial in self._later:
            original = self._originals.get(trial.trial_id, "")
            row = self._history.of(original).result if original in rows and original not in ids else None
            if row is None or row.same_as:
                rest.append(trial)
            else:
                self._session.copied(trial, row)
                self._open.discard(trial.trial_id)
        self._later = rest

    def _leave_out_branches(self) -> None:
        """Leave out the branches whose base has ended without a result to start from."""
        ids, rows = {trial.trial_id for trial in self._later}, self._history.rows
        bases = {trial.trial_id: rows.get(base_of(trial)) for trial in self._later if base_of(trial) not in ids}
        without = {key: base for key, base in bases.items() if base is not None and base.status is not Status.OK}
        self._session.left_out(
            [(trial, _without(without[trial.trial_id])) for trial in self._later if trial.trial_id in without]
        )
        self._later = [trial for trial in self._later if trial.trial_id not in without]

    def _drop_branch_points(self, trials: Iterable[TrialSpec]) -> None:
        """Delete the checkpoints that these branches started from, unless a branch still has to start from them."""
        points = {(base_of(trial), point_of(trial)): trial for trial in trials if base_of(trial)}
        needed = {(base_of(each), point_of(each)) for each in self._planned.trials if each.trial_id in self._open}
        for branch in (branch for point, branch in points.items() if point not in needed):
            self._session.drop_branch_point(branch)

    def _find_originals(self) -> dict[str, str]:
        """Return {trial: the first one with the same training}, without those first ones.

        Phases train only one of them. A trial that is named for a rerun has no original that is not.
        """
        if self._request.selection.phases:
            return {}
        trials, named = self._planned.trials, self._planned.named
        same = equivalent_cells(trials)
        by_cell = {(trial.cell_id, trial.seed): trial.trial_id for trial in trials}
        pairs = ((trial.trial_id, by_cell.get((same.get(trial.cell_id, ""), trial.seed))) for trial in trials)
        return {key: original for key, original in pairs if original and (original in named or key not in named)}

    def _rest(self) -> Sequence[TrialSpec]:
        """Run nothing: the remaining trials are skipped for the reasons for which they were not chosen."""
        self._session.left_out([(trial, self._skipped(trial)) for trial in self._later])
        self._later = ()
        return ()

    def _choice(self) -> Choice:
        if self._request.selection.phases:
            return self._by_phases()
        ids = {trial.trial_id for trial in self._later}
        everything = [trial for trial in self._later if self._originals.get(trial.trial_id) not in ids]
        bases = {base_of(trial) for trial in everything}
        first = [trial for trial in everything if trial.trial_id in bases]
        return first or self._memory().unknown(everything) or everything, _never_skipped

    def _by_phases(self) -> Choice:
        again = {trial.trial_id for trial in self._later}  # with rerun=failed, earlier ends no longer count
        ends = {key: end for key, end in self._history.rows.items() if key not in again}
        probed = self._history.probes
        prospects = Prospects.of(self._request, self._planned.trials, ends, probed)
        return phases.next_trials(self._later, prospects), lambda trial: phases.skipped(trial, prospects)

    def _disturbed(self) -> Sequence[TrialSpec]:
        """On the first call, repetitions of disturbed timings, also of those under an earlier driver.

        `mode=settle` times every disturbed trial again, once.
        """
        if self._checked:
            return ()
        self._checked = True
        ends = self._history.rows
        idle = self._planned.not_run_again(ends)
        ran = [trial for trial in self.planned.trials if trial.trial_id not in idle]
        if self._further:
            disturbed = once_more(ran, ends, self._timed_again, 1.0)
            self._timed_again |= {str(trial.probes) for trial in disturbed}
        else:
            disturbed = once_more(ran, ends, self._history.repeated, self._request.selection.rerun_invalid)
        if disturbed:
            self._session.found_disturbed(disturbed)
        return disturbed

    def _further_seeds(self) -> Sequence[TrialSpec]:
        """Return trials with the seeds that the recommendation asks for; none if nothing would be gained by them.

        The number of seeds of a cell at most doubles in a round, because few seeds predict badly how many are needed.
        """
        if not self._further or self.unsettled or not self._history.rows:
            return ()
        from orchestrator.analysis.trials import cell_axes, collect_for  # pandas, which other sweeps do not need yet
        from orchestrator.decision.decide import decide, with_more

        rows = list(self._history.rows.values())
        found = decide(*collect_for(self._request, rows), Terms.of(self._request, cell_axes(rows)))
        cells = {trial.cell_id: trial for trial in self._planned.trials}
        seeds: dict[str, list[int]] = {}
        for row in rows:
            seeds.setdefault(row.cell_id, []).append(row.seed)
        asked = [(more, seeds[more.cell_id]) for more in found.more_seeds if more.cell_id in cells]
        if found.verdict in (CLEAR, SPEED_ONLY) or not asked:
            return ()
        target = min(max(FEWEST_SEEDS, 2 * max(len(own) for _, own in asked)), max(m.seeds + len(s) for m, s in asked))
        new = [
            trial
            for more, own in asked
            if target > len(own)
            for trial in self._further(cells[more.cell_id], sorted({*with_more(own, target - len(own))} - {*own}))
        ]
        self._added |= {trial.trial_id: trial for trial in new}
        self._checked = False  # their timings may be disturbed, too
        self._session.added(new, f"{found.verdict}: {', '.join(more.name for more, _ in asked)}")
        return new


class SharedTimings:
    """Which speeds this driver has timed: a trial that differs only in its learning rate need not be timed again.

    This holds for the project's own training loop, whose steps take equally long at any rate, on the same nodes.
    """

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, ...]] = {}
        self._timed: dict[tuple[str, tuple[str, ...]], str] = {}

    def as_started(self, start: Start) -> TrialSpec:
        """Return the trial; it leaves its timing to another one with the same steps, seed and nodes if there is one."""
        trial, group = start.trial, speed_group(start.trial)
        if not group or trial.trainable not in LOOPS or trial.probes:
            return trial
        place = self._places[trial.trial_id] = tuple(node.name for node in start.nodes)
        timed_with = self._timed.get((group, place), trial.trial_id)
        if timed_with == trial.trial_id:
            return trial
        settings = {**(trial.config.get("trainable") or {}), "timed_with": timed_with}
        return replace(trial, config={**trial.config, "trainable": settings})

    def ended(self, trial: TrialSpec, row: TrialRecord | None) -> None:
        """Take the end of a trial; only a valid timing is shared."""
        place = self._places.get(trial.trial_id)
        if place is None or row is None or row.timed_with or "samples_per_s" not in row.metrics:
            return
        if row.trial_id in (found := judged([row])) and found[row.trial_id].fault is None:
            self._timed.setdefault((speed_group(trial), place), row.trial_id)


class SweepListener(TrackedListener):
    """The listener of a sweep: it also adds the next round to the queue when the last one is over."""

    def __init__(
        self,
        session: Session,
        trackers: Mapping[str, Tracker],
        secrets: Secrets,
        rounds: Rounds,
        queue: TrialQueue,
        timings: SharedTimings,
    ) -> None:
        super().__init__(session, trackers, secrets)
        self._rounds, self._queue, self._timings = rounds, queue, timings

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Forward the end of a trial; later ones may take its timing."""
        super().finished(trial, outcome)
        self._timings.ended(trial, self._rounds.row(trial.trial_id))
        self._rounds.ended(trial, outcome)

    def ticked(self) -> None:
        """Refresh the display, and add the next round if it is time for it."""
        super().ticked()
        if self._queue.needs_trials:
            if trials := self._rounds.next(self._queue.newly_left_out()):
                self._queue.add(trials, time.monotonic())
            else:
                self._queue.close()


def _without(base: TrialRecord) -> TrialOutcome:
    """Return the outcome of a branch whose base has ended like this."""
    note = f"its base, trial {base.trial_id[:SHOWN_DIGITS]}, is {base.status.value}: {base.note}"
    return TrialOutcome(status=Status.SKIPPED, note=note, wall_s=0.0, skipped_by=base.skipped_by or "base")


def _never_skipped(trial: TrialSpec) -> TrialOutcome:
    raise RuntimeError(f"{trial.label}: whatever is left of a grid runs")


def once_more(
    ran: Sequence[TrialSpec], rows: Mapping[str, TrialRecord], repeated: Collection[str], share: float
) -> list[TrialSpec]:
    """Return repetitions of disturbed timings, with the node to themselves, of at most `share` of the trials that ran.

    At least one may be repeated, however few there are, unless `share` is 0. Trials that were `repeated` before count,
    and are not repeated again. Retried, continued and rerun trials are repeated like others. Timings that are too short
    or shared are not: a repetition would not be better.
    """
    most = max(1, int(share * len(ran))) if share > 0 else 0
    disturbed = needs_repetition(rows)
    left = most - sum(trial.trial_id in repeated for trial in ran)
    again = [trial for trial in ran if trial.trial_id in disturbed and trial.trial_id not in repeated]
    return list(map(repetition_of, again[: max(0, left)]))
