"""The next step after a sweep: the command that settles its verdict or extends its grid, and its time and cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.config.commands import command, shell_word
from orchestrator.decision.recommendation import CLEAR, SPEED_ONLY, TIED, Cell, Recommendation, Remark
from orchestrator.decision.thresholds import MOST_SEEDS, TIE
from orchestrator.tables.candidates import by_rate, calls, equal_rivals, name_beside, rivals_to_settle
from orchestrator.tables.recommendation_sentences import UNBOUNDED, sentence
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.cell_labels import gpu_word
from orchestrator.text.numbers import counted, fact, listed, percent, suited, times
from sweeps.gpus import cost_of
from sweeps.status import Status

_UNSETTLED = ("indistinguishable", "near_margin")
"""Codes of remarks on what no reasonable number of seeds shows."""

_LONGER = 10
"""How many times as long trials are to be whose timed windows are too short."""

_DECLARATION = re.compile(r"the output has one: [\"']trainable\.metrics\.(?P<name>\w+)=(?P<value>[^\"]*?\})[\"']")
"""The note of a trial on a metric in its output."""

_LONGEST_NAMES = 24
"""The most characters of the cells between which a command decides; of longer ones only the number is told."""


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A next step; its text is empty without a choice."""

    text: str
    command: str = ""
    """The line to type, if any."""
    short: str = ""
    """Words for a command that is too long for its place; empty if there are none."""


def next_step(recommendation: Recommendation, trials: pd.DataFrame) -> NextStep:
    """Return what to do next: settle the verdict, or else extend the axis at whose edge the choice is.

    A sweep that runs has no next step, and one with planned trials left has the command that continues it. If the
    metric is only in the trials' output, it is to be read first: without it, no number of seeds settles the verdict.
    """
    terms = recommendation.terms
    if terms.runs:
        return NextStep(text="")
    if terms.unfinished and terms.arguments and recommendation.headline.code != "none_ok":
        again = command(terms.arguments, [], dropped=())
        return NextStep(text="to run the rest", command=again, short="same command")
    is_too_short = (
        recommendation.headline.code == "no_speed" and recommendation.headline.values["fault"] == Fault.TOO_SHORT
    )
    metric = _metric_in_output(trials)
    if metric and not is_too_short and terms.metric.score(trials).isna().all():
        return _as_another_sweep(recommendation, trials, "to read the metric", "metric", metric=metric)
    if recommendation.commands:
        settling = _cost_of_settling(recommendation, trials)
        return NextStep(text=settling, command=recommendation.commands[0], short="same command with mode=settle")
    if is_too_short:
        return _longer(recommendation, trials)
    chosen = recommendation.chosen
    if chosen is None:
        return NextStep(text="")
    remarks = {remark.code: remark for remark in reversed(recommendation.sensitivity)}
    for code in _UNSETTLED:
        if code in remarks:
            return NextStep(text=sentence(remarks[code]))
    if "at_the_edge" in remarks:
        return _beyond(remarks["at_the_edge"], chosen, recommendation)
    if recommendation.verdict in (CLEAR, SPEED_ONLY):
        return NextStep(text=f"nothing is left to settle: train with {recommendation.name}.")
    if recommendation.verdict == TIED:
        tell = "further seeds would hardly tell the tied cells apart"
        return NextStep(text=f"train with {recommendation.name}: {tell}.")
    return NextStep(text="no further seed would help: see why it is not CLEAR.")


def _longer(recommendation: Recommendation, trials: pd.DataFrame) -> NextStep:
    """Return the step to trials that are long enough to be timed, with the metric that was found in their output."""
    arguments = recommendation.terms.arguments
    epochs = trials.loc[trials["timing_fault"] == Fault.TOO_SHORT.value, "epochs"].median()
    argv = [argument for argument in arguments if argument.startswith("trainable.argv=")]
    is_fixed = any("{epochs}" not in words for words in argv)
    if not epochs >= 1 or is_fixed:
        passed = ", and the command receives no {epochs}" if is_fixed else ""
        return NextStep(text=f"train longer: the timed windows are too short{passed}")
    metric = _metric_in_output(trials)
    text = f"to train for {_LONGER} times as many epochs{', and read the metric' * bool(metric)}"
    budget = f"budget.epochs={epochs * _LONGER:.0f}"
    return _as_another_sweep(recommendation, trials, text, "longer", budget=budget, metric=metric)


def _metric_in_output(trials: pd.DataFrame) -> str:
    """Return the override that reads the metric which was found in the trials' output; empty if none was."""
    found = [match for note in trials["note"].dropna() if (match := _DECLARATION.search(note))]
    return f"trainable.metrics.{found[0]['name']}={found[0]['value']}" if found else ""


def _as_another_sweep(
    recommendation: Recommendation, trials: pd.DataFrame, text: str, ending: str, *, budget: str = "", metric: str = ""
) -> NextStep:
    """Return the step to the same sweep with another budget and with a metric, under a name with this ending."""
    # Other trainings are another sweep.
    changes = [*filter(None, [budget, f"sweep.name={trials['sweep'].iloc[0]}_{ending}", metric])]
    dropped = ("mode=", "rerun=", "sweep.name=", *(["budget."] if budget else []))
    return NextStep(
        text=text,
        command=command(recommendation.terms.arguments, changes, dropped),
        short=f"same command with {' '.join(map(shell_word, changes))}",
    )


def _beyond(edge: Remark, chosen: Cell, recommendation: Recommendation) -> NextStep:
    """Return the step to twice the number of GPUs, the batch or the learning rate at the edge of the grid, or half."""
    given = edge.values
    # A sweep has one of the sides of a batch.
    axis = next((name for name in (given["axis"], "device_batch_size") if name in chosen.axes), None)
    if axis is None:
        return NextStep(text=sentence(edge))
    factor, on_cpu = 2 if given["largest"] else 0.5, recommendation.on_cpu or chosen.on_cpu
    value, before = (fact(chosen.axes[axis] * size) for size in (factor, 1))
    words = {
        "gpus": f"{value} {gpu_word(on_cpu=on_cpu)}, if available",
        "device_batch_size": f"a batch of {value} per {gpu_word(on_cpu=on_cpu, one=True)} instead of {before}",
        "global_batch_size": f"a batch of {value} instead of {before}",
    }
    assignment = f"sweep.axes.{axis}=["
    change = [f"{assignment}{value}]" if override.startswith(assignment) else override for override in chosen.overrides]
    # With more GPUs, a training takes hardly longer.
    time_s = chosen.value("total_time") * chosen.n_ok
    hours = time_s / 3600 * chosen.values["gpus"] * (factor if axis == "gpus" else 1)
    amounts = ""
    if math.isfinite(time_s):
        amounts = f"about {_amounts([time_s], [] if on_cpu else [hours], recommendation)}, "
    return NextStep(
        text=f"{amounts}to try {words.get(axis, f'{axis}={value} instead of {before}')}",
        command=command(recommendation.terms.arguments, change),
    )


def _amounts(took_s: Sequence[float], hours: Sequence[float], recommendation: Recommendation) -> str:
    """Return `60 s, 0.15 EUR`, or `60 s to 8 min, 0.15 to 1.20 EUR`; GPU-hours without a price, on CPUs times alone."""

    def span(*texts: str) -> str:
        least, most = texts[0], texts[-1]
        if least == most:
            return most
        number, _, unit = least.rpartition(" ")
        return f"{number if most.endswith(f' {unit}') else least} to {most}"

    def time(seconds: float) -> str:
        took = f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
        return took if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"

    report = recommendation.terms.report
    price = report.price_per_gpu_hour
    if recommendation.on_cpu or not hours:
        return span(*map(time, took_s))
    amounts = hours if price is None else [cost_of(each, price) for each in hours]
    unit = suited("GPU-hours" if price is None else report.unit_of_cost, *amounts)
    return f"{span(*map(time, took_s))}, {span(*map(unit.text, amounts))}"


def _cost_of_settling(recommendation: Recommendation, trials: pd.DataFrame) -> str:
    """Return what the command that settles the verdict takes, and what for: `60 s, 0.15 EUR, to decide between …`.

    Further seeds take from what now seems needed to the most that `mode=settle` runs: `60 s to 8 min`.
    """
    sizes = ["wall_s", "gpus_held"]
    # Disturbed timings and stragglers are repeated by mode=settle, too.
    is_faulty = trials["timing_fault"].isin([Fault.DISTURBED.value, Fault.STRAGGLER.value])
    again = trials.loc[is_faulty & trials["cell_id"].map(recommendation.matters), sizes]
    of_cell = trials[trials["status"] == Status.OK.value].groupby("cell_id")[sizes].mean()
    n_seeds = trials.groupby("cell_id").size()
    took_s, hours = list[float](), list[float]()
    # Few seeds predict badly how many are needed: further rounds may follow the first one.
    for is_most in (False, True):
        counts = {
            more.cell_id: max(more.seeds, MOST_SEEDS - n_seeds.get(more.cell_id, 0) if is_most else 0)
            for more in recommendation.more_seeds
        }
        added = of_cell.reindex([cell_id for cell_id, count in counts.items() for _ in range(count)])
        added = pd.concat([added, again]).fillna(0.0)
        gpu_s = (added["wall_s"] * added["gpus_held"]).sum()
        is_alone = (trials["timing"] == "exclusive").any()
        # Trials that do not need all GPUs run side by side.
        side_by_side_s = max(added["wall_s"].max(), gpu_s / trials["gpus_held"].max())
        took_s.append(added["wall_s"].sum() if is_alone else side_by_side_s)
        hours.append(gpu_s / 3600)
    # The cells of timings that are too short alone are unknown, and odd journals have odd times.
    amounts = "" if added.empty or not math.isfinite(sum(took_s)) else f"{_amounts(took_s, hours, recommendation)}, "
    return f"{amounts}{_settled(recommendation, timings=len(again))}{_gained(recommendation)}"


def _gained(recommendation: Recommendation) -> str:
    """Return what settling may gain at most: `, gaining up to 1.23×`; empty if unknown or at most a tie."""
    most, objective = recommendation.settling_gains, recommendation.terms.report.objective
    if not TIE < round(most, 2) <= UNBOUNDED:
        return ""
    if objective == "time":
        return f", gaining up to {times(1 + most)}×"
    return f", saving up to {percent(most / (1 + most))}%"


def _settled(recommendation: Recommendation, timings: int) -> str:
    """Return what settling the verdict is for: `to decide between the 3 tied cells and 2×128 sqrt`."""
    called = [cell for cell_id in calls(recommendation) if (cell := recommendation.cell(cell_id))]
    rivals = rivals_to_settle(recommendation)
    # Cells that differ in the rate alone have one name.
    chosen = recommendation.chosen
    rates = Counter(name_beside(chosen, cell) for cell in (*called, *rivals))
    names = [f"{name} ({count} LRs)" if count > 1 else name for name, count in rates.items()]
    if not names:
        return f"for {counted(timings, 'timing', 'timings')} again"
    if rates.total() == 1:
        return f"to be surer of {names[0]}"
    # No more than fits beside the rest.
    if len(names) <= 3 and sum(map(len, names)) <= _LONGEST_NAMES:
        return f"to decide between {listed(names)}"
    ties = equal_rivals(recommendation) if recommendation.verdict == TIED else []
    tied, others = [cell for cell in rivals if cell in ties], [cell for cell in rivals if cell not in ties]
    of = "the" if len(tied) == len(ties) else f"{len(tied) + 1} of the"
    kept = f"{of} {len(ties) + 1} tied cells" if tied else "these two" if len(called) > 1 else "this cell"
    is_short = len(others) == 1 and len(names[-1]) <= _LONGEST_NAMES
    more = [by_rate(others, chosen) if is_short else f"{counted(len(others), 'other', 'others')}"] if others else []
    return f"to decide between {listed([kept, *more])}"
