"""A recommendation in plain English."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from orchestrator.decision.choice import SHOWN, TIE
from orchestrator.decision.contenders import Contenders, counted
from orchestrator.decision.recommendation import FEWEST_SEEDS, NOTICED, is_sure
from orchestrator.text import figures

_MOST = 3
"""Lines of one kind."""


def nothing(found: Contenders) -> str:
    """Why no cell is recommended."""
    if len(found.candidates):
        return f"No recommendation: every cell is likely to miss the margin of {found.contest.margin:g}."
    told = "; ".join(found.left_out) or "no trial has ended"
    if found.measure.unit == "s" and any(line.endswith("no value of it") for line in found.left_out):
        told += " (trials have one that report samples_per_s and samples, or train_s)"
    return f"No recommendation by {found.measure.told}: {told}."


def doubts(found: Contenders, chosen: int) -> list[str]:
    """What makes the recommendation provisional."""
    p_best, p_within = float(found.choice.p_best[chosen]), float(found.choice.p_within[chosen])
    fewest = int(found.candidates["n_ok"].min())
    compared = not math.isnan(found.choice.shortfall.point[chosen])
    invalid = not found.candidates["timing_valid"].astype("boolean").fillna(False).all()
    chance_unknown = math.isnan(p_best) and fewest < 2
    few = (
        "one seed tells nothing about chance"
        if chance_unknown
        else f"{fewest} seed{'s' * (fewest > 1)} a cell {'are' if fewest > 1 else 'is'} few"
    )
    return [
        *([few] if fewest < FEWEST_SEEDS else []),
        *([] if chance_unknown or is_sure(p_best) else [f"its probability of being the best is {probability(p_best)}"]),
        *(
            []
            if chance_unknown or not compared or is_sure(p_within)
            else [f"that of being within the margin {probability(p_within)}"]
        ),
        *(["no timing is valid"] if invalid else []),
        *([] if compared else ["validation accuracy is not compared"]),
    ]


def sentence(found: Contenders, chosen: int, doubts: Sequence[str]) -> str:
    """The recommendation."""
    loss, baseline = found.choice.shortfall.point[chosen], found.contest.baseline
    told = f"Use {found.names[chosen]}: {found.measure.told} {_value(found, chosen)}"
    if baseline == chosen:
        told += ", the baseline itself"
    elif baseline is not None:
        known = not math.isnan(found.choice.level.point[baseline])
        told += f", against {_value(found, baseline)} of the baseline ({found.names[baseline]})" if known else ""
        against = "it" if known else f"the baseline ({found.names[baseline]})"
        told += f"; validation accuracy {loss:+.4f} against {against} (margin {found.contest.margin:g})"
    return f"{told}. Provisional: {'; '.join(doubts)}." if doubts else f"{told}."


def reasons(found: Contenders) -> Iterator[str]:
    """Why this cell, and what was not considered."""
    choice, margin = found.choice, found.contest.margin
    compared = found.contest.baseline is not None
    among = "among those that are more likely than not within the margin" if compared else ""
    yield f"Of {len(found.candidates)} cells it has the least {found.measure.told} {among}".strip() + "."
    if found.measure.why:
        yield f"Not to a target accuracy: {found.measure.why}."
    if choice.all_tie:
        yield f"All of them are within {TIE:.0%} of each other by it, so validation accuracy chose."
    if shown := counted(int((choice.p_within < SHOWN).sum()), "cell is", "cells are"):
        yield f"{shown} shown to lose more than {margin:g} in validation accuracy."
    if found.left_out:
        yield f"Not considered: {'; '.join(found.left_out)}."
    if compared and not found.at_reference:
        yield "No cell is known to be at the reference batch: the baseline is the most accurate one."


def would_change(found: Contenders, chosen: int) -> Iterator[str]:
    """Margins that let a better cell in, cells that may prove better, axes that may go on."""
    level, loss, choice = found.choice.level.point, found.choice.shortfall.point, found.choice
    better = [i for i in range(len(level)) if level[i] < level[chosen] - math.log1p(TIE) and loss[i] < 0]
    for i in sorted(better, key=lambda i: -loss[i])[:_MOST]:
        chance = probability(float(choice.p_within[i]))
        yield (
            f"report.margin={_rounded_up(-loss[i])} would let in {found.names[i]}: {_value(found, i)}, validation"
            f" accuracy {loss[i]:+.4f}, within {found.contest.margin:g} with probability {chance}."
        )
    rivals = [i for i in np.argsort(-choice.p_best).tolist() if i != chosen and choice.p_best[i] >= NOTICED]
    for i in rivals[:_MOST]:
        chance = probability(float(choice.p_best[i]))
        yield f"{found.names[i]} is the best with probability {chance}: {_value(found, i)}{_loss(loss[i])}."
    yield from _at_the_edge(found, chosen)


def _at_the_edge(found: Contenders, chosen: int) -> Iterator[str]:
    row = found.cells.loc[chosen]
    for axis, what in (("gpus", "GPU count"), ("global_batch_size", "batch"), ("lr_multiplier", "lr_multiplier")):
        least, most = found.cells[axis].min(), found.cells[axis].max()
        ends = {most: "largest"} | ({least: "smallest"} if axis == "lr_multiplier" else {})
        if least < most and row[axis] in ends:
            yield f"Its {what}, {row[axis]:g}, is the sweep's {ends[row[axis]]}: a wider axis may hold a better cell."


def probability(value: float) -> str:
    """`97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    return "over 99%" if value > 0.99 else "below 1%" if value < 0.01 else f"{value:.0%}"


def _value(found: Contenders, row: int) -> str:
    return f"{figures.number(math.exp(found.choice.level.point[row]))} {found.measure.unit}"


def _loss(difference: float) -> str:
    return "" if math.isnan(difference) else f", validation accuracy {difference:+.4f}"


def _rounded_up(value: float) -> str:
    """With two digits, so that as a margin it lets a loss of this size pass."""
    digits = 1 - math.floor(math.log10(value))
    return f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:g}"
