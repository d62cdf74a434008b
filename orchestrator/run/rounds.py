"""Decides what a sweep runs, round by round. A round begins when no trial of the one before runs or waits.

A list of sources is asked in order: copies of results, branches without a base, what the plan or `sweep.phases`
chooses, repetitions of disturbed timings, what `sweep.phases` leaves out, and with `mode=settle` further seeds. The
first source with trials makes the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.backends.backend_choice import nodes_ready
from orchestrator.config.request import Request
from orchestrator.decision.recommendation import CLEAR, SPEED_ONLY, Recommendation
from orchestrator.decision.thresholds import FEWEST_SEEDS
from orchestrator.plan import phases
from orchestrator.plan.phases import Prospects
from orchestrator.plan.plan import GpuFractions, Plan
from orchestrator.run.session import Session
from orchestrator.schedule.queue import LeftOut, Patience, SweepBudget, TrialQueue
from orchestrator.schedule.scheduler import Start
from orchestrator.store.grouping_keys import same_steps_and_seed, same_timing
from orchestrator.store.history import History
from orchestrator.store.record import TrialOutcome, TrialRecord
from orchestrator.telemetry.timing_gate import judgements_of, needs_repetition
from orchestrator.text.numbers import counted
from sweeps.branch import base_of, point_of
from sweeps.identity import LOOPS, SHOWN_DIGITS
from sweeps.probe import repetition_of
from sweeps.status import Status
from sweeps.trial import TrialSpec

SeedTrials = Callable[[TrialSpec, Sequence[int]], Sequence[TrialSpec]]
"""Returns trials of the same cell as a given one, with these seeds."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The answer of one source: the trials to run next, and the waiting ones that will not run."""

    trials: Sequence[TrialSpec] = ()
    left_out: LeftOut = ()
    copied: Sequence[tuple[TrialSpec, TrialRecord]] = ()
    """Trials whose result is that of another trial, which has ended."""
    timed_with: Mapping[str, str] = field(default_factory=dict)
    """The trials whose timing is to be that of another one, by their ids."""
    message: str = ""  # shown when the trials are queued, if they were not waiting before


TrialSource = Callable[[Sequence[TrialSpec], History], Round]
"""Returns what to do with the waiting trials. Nothing runs when it is called."""


class WholeGrid:
    """Runs all waiting trials, and trains only one of several trials with the same training."""

    def __init__(self, plan: Plan) -> None:
        self._original = plan.originals

    def copies(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return the trials whose original has ended with a result."""
        ends = history.ends
        copied = []
        for trial in self._independent(waiting):
            original = self._original.get(trial.trial_id, "")
            end = history.of(original).result if original in ends else None
            if end is not None and not end.same_as:
                copied.append((trial, end))
        return Round(copied=copied)

    def next(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return all trials that need not wait; bases come before branches."""
        trials = self._independent(waiting)
        ids = {base_of(trial) for trial in trials}
        bases = [trial for trial in trials if trial.trial_id in ids]
        # Before trials share a GPU, one of each size runs alone, which measures its memory.
        return Round(trials=bases or _memory(history).unknown(trials) or trials)

    def _independent(self, waiting: Sequence[TrialSpec]) -> list[TrialSpec]:
        """Return the trials whose original does not wait."""
        ids = {trial.trial_id for trial in waiting}
        return [trial for trial in waiting if self._original.get(trial.trial_id) not in ids]


class Branches:
    """Leaves out branches without a base, and deletes the checkpoints from which no further branch starts."""

    def __init__(self, plan: Plan, waiting: Sequence[TrialSpec], session: Session) -> None:
        self._trials = plan.trials
        self._session = session
        self._open = {trial.trial_id for trial in waiting if base_of(trial)}
        self._drop_points(plan.trials)

    def without_base(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return the branches whose base has ended without a result to start from."""
        ids, ends = {trial.trial_id for trial in waiting}, history.ends
        left_out = []
        for trial in waiting:
            base = ends.get(base_of(trial)) if base_of(trial) not in ids else None
            if base is not None and base.status is not Status.OK:
                note = f"its base, trial {base.trial_id[:SHOWN_DIGITS]}, is {base.status.value}: {base.note}"
                rule = base.skipped_by or "base"
                left_out.append((trial, TrialOutcome(note=note, wall_s=0.0, skipped_by=rule)))
        return Round(left_out=left_out)

    def close(self, trial: TrialSpec) -> None:
        """Note that a trial has a result, so that it will not start from its checkpoint again."""
        if base_of(trial):
            self._open.discard(trial.trial_id)
            self._drop_points([trial])

    def _drop_points(self, branches: Iterable[TrialSpec]) -> None:
        points = {(base_of(trial), point_of(trial)): trial for trial in branches if base_of(trial)}
        needed = {(base_of(trial), point_of(trial)) for trial in self._trials if trial.trial_id in self._open}
        for point, branch in points.items():
            if point not in needed:
                self._session.drop_branch_point(branch)


class ProbeThenTrain:
    """Runs trials named for a rerun and probes, then only what can change the recommendation: `sweep.phases`."""

    def __init__(self, request: Request, plan: Plan) -> None:
        self._request = request
        self._plan = plan
        self._has_begun = False
        self._prospects = Prospects()

    def next(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return the trials of the current phase."""
        if not self._has_begun:
            self._has_begun = True
            named = [trial for trial in waiting if trial.trial_id in self._plan.named]
            others = [trial for trial in waiting if trial.trial_id not in self._plan.named]
            # The user asked for the named trials, whatever the probes would say of their cells.
            first = [*named, *phases.probes(others, history.probes)]
            if first:
                return Round(trials=first)
        if not waiting:
            return Round()
        # With rerun=failed, earlier ends of the waiting trials no longer count.
        ids = {trial.trial_id for trial in waiting}
        ends = {trial_id: end for trial_id, end in history.ends.items() if trial_id not in ids}
        self._prospects = Prospects.of(self._request, self._plan.trials, ends, history.probes)
        return Round(trials=phases.next_trials(waiting, self._prospects))

    def rest(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return the trials that cannot change the recommendation, once repetitions have changed no timing."""
        return Round(left_out=[(trial, phases.skipped(trial, self._prospects)) for trial in waiting])


class FurtherSeeds:
    """Runs further seeds until the verdict is clear, no reasonable number makes it so, or a budget runs out."""

    def __init__(self, request: Request, plan: Plan, more_seeds: SeedTrials | None) -> None:
        """`more_seeds` makes the trials; None: no further seeds run."""
        self._request = request
        self._plan = plan
        self.more_seeds = more_seeds
        self.added: dict[str, TrialSpec] = {}  # the further seeds, by trial id
        self.unsettled = ""  # why no further seeds run although the verdict is not clear: the budget that ran out

    def next(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return trials with the seeds that the recommendation asks for; none if nothing would be gained by them.

        The number of seeds of a cell at most doubles in a round, because few seeds predict badly how many are needed.
        """
        if self.more_seeds is None or self.unsettled or not history.ends:
            return Round()
        from orchestrator.decision.more_seeds import with_more  # it loads pandas

        # The recommendation itself decides which seeds are missing, so that both say the same.
        ends = list(history.ends.values())
        recommendation = self.recommendation(history)
        cells = {trial.cell_id: trial for trial in self._plan.trials}
        seeds: dict[str, list[int]] = {}
        for end in ends:
            seeds.setdefault(end.cell_id, []).append(end.seed)
        wishes = [wish for wish in recommendation.more_seeds if wish.cell_id in cells]
        if recommendation.verdict in (CLEAR, SPEED_ONLY) or not wishes:
            return Round()
        # All cells in question get equally many seeds.
        doubled = 2 * max(len(seeds[wish.cell_id]) for wish in wishes)
        wanted = max(wish.seeds + len(seeds[wish.cell_id]) for wish in wishes)
        target = min(max(FEWEST_SEEDS, doubled), wanted)
        trials: list[TrialSpec] = []
        for wish in wishes:
            own = seeds[wish.cell_id]
            if target > len(own):
                new = sorted({*with_more(own, target - len(own))} - {*own})
                trials += self.more_seeds(cells[wish.cell_id], new)
        self.added |= {trial.trial_id: trial for trial in trials}
        names = ", ".join(wish.name for wish in wishes)
        count = counted(len(trials), "further seed is", "further seeds are")
        return Round(trials=trials, message=f"{recommendation.verdict}: {names}: {count} run")

    def recommendation(self, history: History) -> Recommendation:
        """Return what is recommended so far."""
        from orchestrator.analysis.trials import collect  # pandas, which other sweeps do not need yet
        from orchestrator.decision.decide import decide

        return decide(*collect(self._request, list(history.ends.values())))

    def leave_out(self, ends: LeftOut) -> LeftOut:
        """Return the ends of other trials. A further seed gets no end, which would count against its cell."""
        for trial, end in ends:
            if trial.trial_id in self.added:
                self.unsettled = end.note
        others = [(trial, end) for trial, end in ends if trial.trial_id not in self.added]
        for trial, _ in ends:
            self.added.pop(trial.trial_id, None)
        return others


class Repetitions:
    """Times disturbed trials again, alone on their nodes, also those of earlier drivers.

    A sweep checks its timings once; `mode=settle` times the disturbed trials of cells that matter again, once.
    """

    def __init__(self, request: Request, plan: Plan, extra_seeds: FurtherSeeds) -> None:
        self._rerun_invalid = request.settings.rerun_invalid
        self._plan = plan
        self._extra_seeds = extra_seeds
        self._is_done = False
        self._repeated: set[str] = set()  # the trials that this driver has timed again

    def next(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return a repetition of each disturbed timing, as far as allowed."""
        if self._is_done:
            return Round()
        ends = history.ends
        idle = self._plan.not_run_again(ends)
        ran = [trial for trial in self._plan.trials if trial.trial_id not in idle]
        if self._extra_seeds.more_seeds:
            # Further seeds are no part of the plan, but their timings decide the verdict.
            ran += self._extra_seeds.added.values()
            repetitions = to_repeat(ran, ends, self._repeated, 1.0)
            if repetitions:
                recommendation = self._extra_seeds.recommendation(history)
                repetitions = [trial for trial in repetitions if recommendation.matters(trial.cell_id)]
            self._repeated |= {trial.measures for trial in repetitions}
        else:
            repetitions = to_repeat(ran, ends, history.repeated, self._rerun_invalid)
            self._is_done = True
        count = counted(len(repetitions), "trial is", "trials are")
        return Round(trials=repetitions, message=f"disturbed or doubtful timings: {count} timed again, one at a time")


class Rounds:
    """The rounds of one driver, which it supplies to the trial queue."""

    def __init__(
        self, request: Request, plan: Plan, session: Session, history: History, more_seeds: SeedTrials | None = None
    ) -> None:
        """With `more_seeds`, further seeds run until the verdict is clear."""
        self._request = request
        self._plan = plan
        self._session = session
        self._history = history
        self._waiting = plan.may_run(waits=request.waits)
        self._extra_seeds = FurtherSeeds(request, plan, more_seeds)
        self._branches = Branches(plan, self._waiting, session)
        self._timings = SharedTimings(history, plan.trials)
        repetitions = Repetitions(request, plan, self._extra_seeds)
        timings = [self._timings.next, repetitions.next]
        self._sources: list[TrialSource]
        # Repetitions come before the end: good measurements may open further cells.
        if request.settings.sweep.phases:
            probe_then_train = ProbeThenTrain(request, plan)
            self._sources = [probe_then_train.next, *timings, probe_then_train.rest]
        else:
            grid = WholeGrid(plan)
            self._sources = [grid.copies, self._branches.without_base, grid.next, *timings]
        self._sources.append(self._extra_seeds.next)

    @property
    def planned(self) -> Plan:
        """The plan with the further seeds that were added to it."""
        return replace(self._plan, trials=[*self._plan.trials, *self._extra_seeds.added.values()])

    @property
    def unsettled(self) -> str:
        """The budget that ran out before the verdict was clear; empty otherwise."""
        return self._extra_seeds.unsettled

    def queue(self, *, began_s: float) -> TrialQueue | None:
        """Return the queue of the first round, to which this object supplies the next ones; None if nothing is to run.

        The wall-clock budget counts from `began_s` on.
        """
        trials = self.next(())
        if not trials:
            return None
        request, history, nodes = self._request, self._history, self._plan.nodes
        wait_s = request.settings.cluster.wait_s
        # If the driver has waited for nodes already, the trials do not wait once more.
        patience = Patience(wait_s=wait_s, waited_s=0.0 if nodes_ready(nodes, request, wait_s) else wait_s)
        # One ok trial of an earlier run shows that the failures depend on the axes.
        has_ok_trial = any(end.status is Status.OK for end in history.ends.values())
        return TrialQueue(
            trials,
            durations=self._plan.durations,
            budget=SweepBudget(
                **vars(request.settings.sweep.budget),
                price_per_gpu_hour=request.settings.report.price_per_gpu_hour,
                used_gpu_s=history.spent_gpu_s,
                began_s=began_s,
            ),
            patience=patience,
            supplier=self,
            as_started=self._timings.as_started,
            equal_failures=None if has_ok_trial else request.settings.equal_failures,
        )

    def next(self, left_out: LeftOut) -> Sequence[TrialSpec]:
        """Journal what the last round left out. Return the trials of the next one; empty at the end of the sweep.

        Asks one source after the other until one has trials, and carries out what each of them says.
        """
        if self._session.stopping():
            return []
        self.leave_out(left_out)
        for source in self._sources:
            # A source may leave trials out, which the next one then does not see.
            answer = source(self._waiting, self._history)
            for trial, end in answer.copied:
                self._session.copied(trial, end)
                self._branches.close(trial)
            for trial_id, other in answer.timed_with.items():
                self._session.timed_with(trial_id, other)
            self._session.left_out(answer.left_out)
            gone = {trial.trial_id for trial, _ in (*answer.copied, *answer.left_out)}
            gone |= {trial.trial_id for trial in answer.trials}
            self._waiting = [trial for trial in self._waiting if trial.trial_id not in gone]
            if answer.trials:
                if answer.message:
                    self._session.queued(self._plan.shares_s_of(answer.trials), answer.message)
                # Trials that share a GPU get the fraction of it that they are known to need.
                memory = _memory(self._history)
                return [memory.placed(trial) for trial in answer.trials]
        return []

    def leave_out(self, ends: LeftOut) -> None:
        """Journal why trials will not run."""
        self._session.left_out(self._extra_seeds.leave_out(ends))
        self._session.dequeued([trial for trial, _ in ends])

    def ended(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Note the end of a trial."""
        if outcome.status.is_result():
            self._branches.close(trial)


class SharedTimings:
    """Which speeds this driver has timed: a trial that differs only in its learning rate need not be timed again.

    This holds for the project's own training loop, whose steps take equally long at any rate, on the same nodes.
    """

    def __init__(self, history: History, trials: Iterable[TrialSpec] = ()) -> None:
        self._history = history
        self._of_loops = {trial.trial_id for trial in trials if trial.trainable in LOOPS}
        self._started: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        """The trials that this driver has started, by their steps and nodes."""

    def as_started(self, start: Start) -> TrialSpec:
        """Return the trial; it leaves its timing to another one with the same steps, seed and nodes if there is one."""
        trial, group = start.trial, same_steps_and_seed(start.trial)
        if not group or trial.trainable not in LOOPS or trial.measures:
            return trial
        self._of_loops.add(trial.trial_id)
        place = tuple(node.name for node in start.nodes)
        alike = self._started.setdefault((group, place), [])
        timed = [trial_id for trial_id in alike if trial_id != trial.trial_id and self._is_timed(trial_id)]
        alike.append(trial.trial_id)
        if not timed:
            return trial
        return trial.with_settings(timed_with=timed[0])

    def next(self, waiting: Sequence[TrialSpec], history: History) -> Round:
        """Return which disturbed timings need no repetition, because another trial has timed the same steps."""
        valid: dict[str, str] = {}  # the first trial with a valid timing, by what trials alike have in common
        disturbed: dict[str, str] = {}
        ends = history.ends
        timed = {trial_id: end for trial_id, end in ends.items() if trial_id in self._of_loops and _has_speed(end)}
        in_need, judgements = needs_repetition(ends), judgements_of(list(timed.values()))
        for trial_id, end in timed.items():
            group = same_timing(end)
            if group and trial_id in in_need:
                disturbed[trial_id] = group
            elif group and trial_id in judgements and judgements[trial_id].fault is None:
                valid.setdefault(group, trial_id)
        return Round(timed_with={trial_id: valid[group] for trial_id, group in disturbed.items() if group in valid})

    def _is_timed(self, trial_id: str) -> bool:
        """Return whether the trial has ended, and its timing is valid and not that of another trial."""
        trial = self._history.of(trial_id)
        if trial.running or trial.end is None or not _has_speed(trial.end):
            return False
        judgement = judgements_of([trial.end]).get(trial_id)
        return judgement is not None and judgement.fault is None


def _has_speed(end: TrialRecord) -> bool:
    """Return whether the trial has measured a speed itself."""
    return not end.timed_with and "samples_per_s" in end.metrics


def _memory(history: History) -> GpuFractions:
    return GpuFractions.of(history.ends.values(), history.probes.values())


def to_repeat(
    ran: Sequence[TrialSpec], ends: Mapping[str, TrialRecord], repeated: Collection[str], fraction: float
) -> list[TrialSpec]:
    """Return repetitions of timings in need of one, with the node to themselves, of a fraction of the trials.

    At least one may be repeated, however few there are, unless `fraction` is 0. Trials that were `repeated` before
    count, and are not repeated again. Retried, continued and rerun trials are repeated like others. Timings that are
    too short or shared are not: a repetition would not be better. One repetition counts for all with the `same_timing`.
    """
    most = max(1, int(fraction * len(ran))) if fraction > 0 else 0
    disturbed = needs_repetition(ends)
    left = most - sum(trial.trial_id in repeated for trial in ran)
    again: dict[str, TrialSpec] = {}
    for trial in ran:
        if trial.trial_id in disturbed and trial.trial_id not in repeated:
            group = same_timing(ends[trial.trial_id]) if trial.trainable in LOOPS else ""
            again.setdefault(group or trial.trial_id, trial)
    return [repetition_of(trial) for trial in list(again.values())[: max(0, left)]]
