"""The sources of a sweep's rounds: each says which waiting trials run next, and which will not run.

`WholeGrid` runs the grid and copies equal trainings, `Branches` leaves out branches without a base, `ProbeThenTrain`
follows `sweep.phases`, `SharedTimings` and `Repetitions` replace disturbed timings, and `FurtherSeeds` serves
`mode=settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.config.request import Request
from orchestrator.decision.recommendation import CLEAR, SPEED_ONLY, Recommendation
from orchestrator.decision.thresholds import FEWEST_SEEDS
from orchestrator.plan import phases
from orchestrator.plan.phases import Prospects
from orchestrator.plan.plan import GpuFractions, Plan
from orchestrator.run.session import Session
from orchestrator.schedule.queue import LeftOut
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
        return Round(trials=bases or gpu_fractions(history).unknown(trials) or trials)

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
        recommendation = self.recommendation(history)
        cells = {trial.cell_id: trial for trial in self._plan.trials}
        seeds: dict[str, list[int]] = {}
        for end in history.ends.values():
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
        baseline = recommendation.common_baseline_id
        names = [f"{wish.name}{' (baseline)' if wish.cell_id == baseline else ''}" for wish in wishes]
        count = counted(len(trials), "further seed", "further seeds")
        return Round(trials=trials, message=f"{recommendation.verdict}: {count} of {', '.join(names)}; more may follow")

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
        return Round(trials=repetitions, message=f"disturbed or doubtful: {count} timed again, one at a time")


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
        """Return which timings are to be those of another trial with the same steps.

        A disturbed timing need not be repeated if another trial has a valid one. A repetition counts for all of them:
        otherwise chance would decide between learning-rate rules, whose steps take equally long.
        """
        ends, repeated = history.ends, history.repeated
        timed = {trial_id: end for trial_id, end in ends.items() if trial_id in self._of_loops and _has_speed(end)}
        in_need, judgements = needs_repetition(ends), judgements_of(list(timed.values()))
        alike: dict[str, list[str]] = {}
        for trial_id, end in timed.items():
            if group := same_timing(end):
                alike.setdefault(group, []).append(trial_id)
        timed_with: dict[str, str] = {}
        for members in alike.values():
            valid = [key for key in members if key in judgements and not judgements[key].fault and key not in in_need]
            again = [key for key in valid if key in repeated]
            if valid:
                replaced = members if again else [key for key in members if key in in_need]
                source = (again or valid)[0]
                timed_with |= {key: source for key in replaced if key != source}
        return Round(timed_with=timed_with)

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


def gpu_fractions(history: History) -> GpuFractions:
    """Return the fractions of a GPU that trials need, as far as the ended ones and the probes tell."""
    return GpuFractions.of(history.ends.values(), history.probes.values())


def to_repeat(
    ran: Sequence[TrialSpec], ends: Mapping[str, TrialRecord], repeated: Collection[str], fraction: float
) -> list[TrialSpec]:
    """Return repetitions of timings in need of one, with the node to themselves, of a fraction of the trials.

    At least one may be repeated, however few there are, unless `fraction` is 0. Trials that were `repeated` before
    count, and are not repeated again. Retried, continued and rerun trials are repeated like others. Timings that are
    too short or shared are not: a repetition would not be better. Of trials with the `same_timing` only the first is
    repeated, whose repetition counts for all (see `SharedTimings`).
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
