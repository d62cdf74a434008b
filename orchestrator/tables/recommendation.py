"""The recommendation in words: as Markdown, as JSON for programs, and as plain sentences for the page and the terminal.

Every sentence is in `recommendation.md.j2`, which has a macro for each code of a remark. docs/recommendation.yaml lists
the keys of the JSON object.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from orchestrator.config.commands import command, shell_word
from orchestrator.decision.choice import LOSS_QUANTILE
from orchestrator.decision.recommendation import (
    CLEAR,
    NO_OBJECTIVE,
    SPEED_ONLY,
    TIED,
    Cell,
    GpuCount,
    Recommendation,
    Remark,
)
from orchestrator.decision.thresholds import MOST_SEEDS, SAFE, TIE
from orchestrator.store.files import finite
from orchestrator.tables.candidates import (
    Candidates,
    accuracy_holds,
    by_rate,
    calls,
    equal_rivals,
    name_beside,
    quotient,
    rivals_to_settle,
    used_now,
)
from orchestrator.tables.recommendation_sentences import UNBOUNDED, filled, listed, probability, sentence, template
from orchestrator.tables.scaling_answers import answers, by_batch
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.cell_labels import gpu_word
from orchestrator.text.numbers import counted, fact, percent, suited, times
from sweeps.gpus import cost_of
from sweeps.status import Status

_UNSETTLED = ("indistinguishable", "near_margin")
"""Codes of remarks on what no reasonable number of seeds shows."""

_NOT_CLEAR = "Not CLEAR"
"""The label of the reasons why a recommendation is provisional."""

RUNNER_UP = "Runner-up"
"""The label of how the next eligible cell compares."""

TIE_LABEL = "Tied"
"""The same in a tie, followed by the other cells that tie."""

_LONGER = 10
"""How many times as long trials are to be whose timed windows are too short."""

_DECLARATION = re.compile(r"the output has one: [\"']trainable\.metrics\.(?P<name>\w+)=(?P<value>[^\"]*?\})[\"']")
"""The note of a trial on a metric in its output."""

_LONGEST_NAMES = 24
"""The most characters of the cells between which a command decides; of longer ones only the number is told."""

_FAR_LESS = 0.8
"""The share of the speed-up of training that is left with start-up, below which the headline has both."""

_MOST_TIED = 4
"""The most tied cells in a sentence, those that differ in the rate alone counting as one."""

_LONGEST_TIED = 240
"""The most characters of tied cells in a sentence, of which the first one is always named."""

Labelled = Sequence[tuple[str, str]]
"""Facts as (label, text)."""


@dataclass(frozen=True, kw_only=True)
class RecommendationText:
    """A recommendation in plain sentences, without markup."""

    title: str
    verdict: str
    """CLEAR, SPEED ONLY, TIED or UNDECIDED; empty without an objective."""
    lead: str
    """The recommendation in one sentence."""
    details: Sequence[str]
    """Sentences that belong to the lead."""
    answers: Labelled
    """Whether more GPUs are worth it, whether larger batches are safe, and the runner-up or the tied cells."""
    facts: Labelled
    """What the choice holds for, and why it is provisional."""
    caveats: Sequence[str]
    """Reasons why it is provisional, as phrases."""
    behind: str
    """How much may be lost by the choice; empty if there is only one seed."""
    reasons: Sequence[str]
    sensitivity: Sequence[str]
    """Measurements or settings that would change it."""

    @property
    def sentence(self) -> str:
        """The lead, the details and the caveats."""
        caveats = [f"{label}: {text}." for label, text in self.facts if label == _NOT_CLEAR]
        return " ".join(filter(None, [self.lead, *self.details, *caveats]))


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A next step; its text is empty without a choice."""

    text: str
    command: str = ""
    """The line to type, if any."""
    short: str = "see the report"
    """Words for a command that has no room."""


def next_step(recommendation: Recommendation, trials: pd.DataFrame) -> NextStep:
    """Return what to do next: settle the verdict, or else extend the axis at whose edge the choice is."""
    if recommendation.commands:
        settling = _cost_of_settling(recommendation, trials)
        return NextStep(text=settling, command=recommendation.commands[0], short="same command with mode=settle")
    if recommendation.headline.code == "no_speed" and recommendation.headline.values["fault"] == Fault.TOO_SHORT:
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
    if not epochs >= 1 or any("{epochs}" not in words for words in argv):
        return NextStep(text="train longer: the timed windows are too short")
    found = [match for note in trials["note"].dropna() if (match := _DECLARATION.search(note))]
    metric = [f"trainable.metrics.{found[0]['name']}={found[0]['value']}"] if found else []
    # Other trainings are another sweep.
    changes = [f"budget.epochs={epochs * _LONGER:.0f}", f"sweep.name={trials['sweep'].iloc[0]}_longer", *metric]
    dropped = ("mode=", "rerun=", "budget.", "sweep.name=")
    return NextStep(
        text=f"to train for {_LONGER} times as many epochs{', and read the metric' * bool(metric)}",
        command=command(arguments, changes, dropped),
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
    amounts = (
        "" if not math.isfinite(time_s) else f"about {_amounts([time_s], [] if on_cpu else [hours], recommendation)}, "
    )
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


def in_sentences(recommendation: Recommendation) -> RecommendationText:
    """Return the recommendation in plain sentences."""
    no_choice = math.isnan(recommendation.behind) or recommendation.cell_id is None
    safe = _of_used_now(recommendation)
    # Beside a cell to use meanwhile, chances are those of the cell that may take its place.
    chosen = recommendation.chosen
    of_cell = {"of": name_beside(used_now(recommendation), chosen) if safe and chosen else ""}
    caveats = [filled(remark.code, {**of_cell, **remark.values}) for remark in recommendation.caveats]
    lead_values = {
        "call": calls(recommendation).get(recommendation.cell_id),
        "safe": safe,
        "tied": len(equal_rivals(recommendation)) + 1 if recommendation.verdict == TIED else 0,
        "sure": _sure(recommendation),
        "holds": recommendation.p_within_margin >= SAFE or recommendation.verdict == CLEAR,
        "gain_with_start_up": _gain_with_start_up(recommendation),
    }
    lead, *details = [
        filled(remark.code, {**remark.values, **lead_values})
        for remark in (recommendation.headline, *recommendation.details)
    ]
    facts = []
    if recommendation.tokens:
        length = f"trainings of about {recommendation.tokens:,.0f} tokens; longer ones allow larger batches"
        facts.append(("Valid for", length))
    if caveats:
        facts.append((_NOT_CLEAR, "; ".join(caveats)))
    facts += by_batch(recommendation)
    return RecommendationText(
        title="In short" if recommendation.terms.report.objective == NO_OBJECTIVE else "Recommendation",
        verdict=recommendation.verdict.upper(),
        lead=lead,
        details=details,
        answers=[*answers(recommendation), *_runner_up(recommendation)],
        facts=facts,
        caveats=caveats,
        behind="" if no_choice else filled("behind", recommendation),
        reasons=[sentence(remark) for remark in recommendation.reasons],
        sensitivity=[sentence(remark) for remark in recommendation.sensitivity],
    )


def _sure(recommendation: Recommendation) -> str:
    """Return the probability that a choice without doubts is the best; else a line has it with the doubts."""
    is_sure = recommendation.verdict in (CLEAR, SPEED_ONLY) and not math.isnan(recommendation.p_best)
    return probability(recommendation.p_best, short=True) if is_sure else ""


def _gain_with_start_up(recommendation: Recommendation) -> float:
    """Return the chosen cell's speed-up with start-up; NaN unless that is far less, and on CPUs."""
    if recommendation.on_cpu or recommendation.deciding_time != "time":
        return math.nan
    cells = recommendation.baseline, recommendation.chosen
    training, whole = (quotient(*cells, figure) for figure in ("time", "total_time"))
    return whole if whole < _FAR_LESS * training else math.nan


def _of_used_now(recommendation: Recommendation) -> dict[str, Any] | None:
    """Return what the headline tells of the cell to use while the choice may lose accuracy; None without one."""
    safe = used_now(recommendation)
    if safe is None:
        return None
    device = "cpu" if recommendation.on_cpu or safe.on_cpu else ""
    return {
        "name": name_beside(None, safe),
        "cell": {**safe.values, "device": device},
        "is_baseline": safe == recommendation.baseline,
    }


def _runner_up(recommendation: Recommendation) -> Iterator[tuple[str, str]]:
    """Yield how the next eligible cell compares with the choice, and which others tie with the choice."""
    after = recommendation.runner_up
    cell, chosen = recommendation.cell(after.values["cell_id"] if after else None), recommendation.chosen
    if after is None or cell is None or chosen is None:
        return
    rivals = equal_rivals(recommendation)
    if rivals and recommendation.verdict == TIED:
        yield TIE_LABEL, _tied(rivals, recommendation)
        return
    # The table compares it if it is the cell to use now.
    if cell.cell_id in calls(recommendation):
        return
    values = {
        **after.values,
        "name": by_rate([cell], chosen),
        "holds": "" if math.isnan(cell.p_within_margin) else accuracy_holds(cell, recommendation),
    }
    yield RUNNER_UP, filled("runner_up", values)


def _tied(rivals: Sequence[Cell], recommendation: Recommendation) -> str:
    """Return the cells that tie with the choice, and why they are not it: `8×64 none, dearer: accuracy holds 82%`."""
    word, parts = f"{recommendation.terms.metric.word} holds ", list[str]()
    chosen = recommendation.chosen
    by_name: dict[str, list[Cell]] = {}
    for rival in rivals:
        by_name.setdefault(name_beside(chosen, rival), []).append(rival)
    for name, alike in list(by_name.items())[:_MOST_TIED]:
        parts.append(by_rate(alike, chosen) if len(alike) < 3 else f"{name}, {len(alike)} LRs")
        # The figure behind the name tells a lower accuracy.
        why = [cell.why_not for cell in alike if cell.why_not and cell.why_not.values.get("why") != "more_accurate"]
        reasons = {filled("short_of_choice", remark) for remark in why} - {""}
        parts[-1] += f", {reasons.pop()}" if len(reasons) == 1 else ""
        known = sorted(cell.p_within_margin for cell in alike if not math.isnan(cell.p_within_margin))
        if known and len(alike) == 1:
            parts[-1] += f": {word}{accuracy_holds(alike[0], recommendation)}"
            word = ""
        elif known:
            ends = dict.fromkeys(probability(chance, short=True) for chance in (known[0], known[-1]))
            parts[-1] += f": {word}{'–'.join(ends).replace('%–', '–')}"
            word = ""
    # Names of many axes would need the room of the whole answer.
    while len(parts) > 1 and sum(map(len, parts)) > _LONGEST_TIED:
        parts.pop()
    more = [counted(len(by_name) - len(parts), "other", "others")] if len(by_name) > len(parts) else []
    return "; ".join([*parts, *more])


def recommendation_markdown(recommendation: Recommendation, trials: pd.DataFrame, sweep: str) -> str:
    """Return the recommendation as Markdown, the first of the tables."""
    text = in_sentences(recommendation)
    tables = Candidates.of(recommendation), Candidates.tied(recommendation)
    return str(template().document(text, *tables, next_step(recommendation, trials), sweep)).rstrip("\n") + "\n"


VERSION = 3
"""The version of the object's format: adding keys keeps it, renaming a key or changing its meaning increases it."""


def recommendation_json(recommendation: Recommendation, sweep: str) -> str:
    """Return the text of the file; null means unknown or absent."""
    text = in_sentences(recommendation)
    chosen, baseline = recommendation.chosen, recommendation.baseline
    bound = recommendation.behind if recommendation.behind <= UNBOUNDED else None
    others = [cell for cell in recommendation.shortlist if cell not in (chosen, baseline)]
    content = {
        "version": VERSION,
        "sweep": sweep,
        "sentence": text.sentence,
        "objective": {"name": recommendation.terms.report.objective, "measure": recommendation.measure or None},
        "verdict": recommendation.verdict or None,
        "recommended": chosen and _cell_json(chosen),
        "safe_cell_id": recommendation.safe_cell_id,
        "cell_id_to_use": next(iter(calls(recommendation)), None),
        "provisional": recommendation.provisional,
        "probability": {"best": recommendation.p_best, "within_margin": recommendation.p_within_margin},
        "margin": {recommendation.terms.metric.name: recommendation.terms.report.margin, "tie": TIE},
        "behind_best": {"at_most": bound, "probability": LOSS_QUANTILE},
        "warnings": [*text.caveats, *([chosen.note] if chosen and chosen.note else [])],
        "reasons": text.reasons,
        "not_considered": [sentence(remark) for remark in recommendation.left_out],
        "rivals": [{key: _cell_json(rival)[key] for key in _OF_RIVALS} for rival in recommendation.rivals],
        "baseline": baseline and _cell_json(baseline),
        "alternatives": [_cell_json(cell) for cell in others],
        "gpu_counts": [_gpu_count(count, recommendation) for count in recommendation.gpu_counts],
        "gpu_steps": [asdict(step) for step in recommendation.gpu_steps],
        "larger_batches": [asdict(batch) for batch in recommendation.larger_batches],
        "undecided": {
            "would_change": text.sensitivity,
            "more_seeds": [asdict(more) for more in recommendation.more_seeds],
            "commands": recommendation.commands,
        },
    }
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


_OF_RIVALS = ("cell_id", "name", "eligible", "tied", "n_timed", "n_ok", "probability")
"""What is told of a rival; the rest is among the alternatives."""


def _cell_json(cell: Cell) -> dict[str, Any]:
    """Return a cell; its `speedup` is that of the sentence, over the baseline that accuracies are compared with."""
    figures = {name: None if math.isnan(figure.value) else asdict(figure) for name, figure in cell.figures.items()}
    figures.setdefault("speedup", None)
    figures |= _money_or_hours(figures["cost"], cell.figures["cost"].unit)
    figures |= _money_or_hours(figures["total_cost"], cell.figures["cost"].unit, prefix="total_")
    others = {key: value for key, value in asdict(cell).items() if key not in ("p_best", "p_within_margin")}
    chances = {"best": cell.p_best, "within_margin": cell.p_within_margin}
    return others | {"probability": chances, "figures": figures, "why_not": sentence(cell.why_not) or None}


def _gpu_count(count: GpuCount, recommendation: Recommendation) -> dict[str, Any]:
    cell = recommendation.cell(count.cell_id)
    best = cell and {
        "cell_id": cell.cell_id,
        "name": cell.name,
        "time_s": cell.value(recommendation.deciding_time),
        "metric": cell.value(recommendation.terms.metric.name),
        **_money_or_hours(cell.value("cost"), cell.figures["cost"].unit),
    }
    return {"gpus": count.gpus, "name": count.name, "best": best, "why_none": sentence(count.why_none)}


def _money_or_hours(cost: Any, unit: str, prefix: str = "") -> dict[str, Any]:
    """Return a cost as money; without a price, as hours of GPUs or worker processes."""
    # Two keys, because a number that may be either cannot be compared between sweeps.
    in_hours = unit.endswith("-hours")
    return {f"{prefix}cost": None if in_hours else cost, f"{prefix}hours": cost if in_hours else None}
