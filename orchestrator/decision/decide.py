"""Turns the frames of a sweep into its recommendation, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from orchestrator.config.commands import settle_command
from orchestrator.config.request import Terms
from orchestrator.decision.alternatives import Alternatives, gpu_counts, larger_batches
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.claim_verdicts import Verdict
from orchestrator.decision.explain import caveats, chosen_cell, reasons, sensitivity
from orchestrator.decision.gpu_steps import gpu_steps
from orchestrator.decision.more_seeds import further_seeds, unsettled
from orchestrator.decision.no_cell import no_cell, too_few_workers, without_objective
from orchestrator.decision.recommendation import (
    CLEAR,
    NO_OBJECTIVE,
    SPEED_ONLY,
    TIED,
    UNDECIDED,
    GpuCount,
    GpuStep,
    MoreSeeds,
    Recommendation,
    Remark,
)
from orchestrator.decision.shortlist import shortlist
from orchestrator.telemetry.timing_gate import Fault


def decide(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms, claims: Sequence[Verdict] = ()) -> Recommendation:
    """Return the recommendation for frames of `analysis.trials.collect`, and verdicts on the claims of their sweep."""
    warnings = list(too_few_workers(trials))
    if terms.report.objective == NO_OBJECTIVE:
        headline, *details = [*warnings, *without_objective(trials, cells, claims)]
        return Recommendation(terms=terms, headline=headline, details=tuple(details), provisional=False)
    contenders = Contenders.of(trials, cells, terms)
    chosen = contenders.chosen
    if chosen is not None:
        alternatives = Alternatives.of(contenders, chosen)
        outcome = _of_all_cells(contenders, alternatives, [*warnings, *chosen_cell(contenders, chosen)])
        return _with_choice(outcome, contenders, chosen, alternatives)
    answer = no_cell(contenders)
    outcome = _of_all_cells(contenders, Alternatives(), [*warnings, *answer])
    # A repetition can only help against load from outside; the headline names other remedies.
    is_disturbed = answer[0].values.get("fault") in (Fault.DISTURBED.value, Fault.STRAGGLER.value)
    return replace(outcome, commands=_settling(terms) if is_disturbed else ())


def _settling(terms: Terms) -> tuple[str, ...]:
    """Return the command that settles the verdict; none while planned trials are still to run."""
    return () if terms.unfinished else (settle_command(terms.arguments),)


def _of_all_cells(contenders: Contenders, alternatives: Alternatives, answer: Sequence[Remark]) -> Recommendation:
    """Return the part of a recommendation that is there with and without a chosen cell."""
    terms, choice = contenders.terms, contenders.choice
    headline, *details = answer
    counts, steps = tuple(gpu_counts(contenders)), gpu_steps(contenders)
    has_batches = contenders.tried["global_batch_size"].nunique() > 1
    return Recommendation(
        terms=terms,
        measure=contenders.measure.name,
        is_to_target=not contenders.measure.why,
        tokens=terms.budget.get("tokens") if has_batches else None,
        common_baseline_id=contenders.id_of(contenders.baseline),
        poor_reference_cell_id=contenders.id_of(contenders.poor_reference),
        headline=headline,
        details=tuple(details),
        verdict=UNDECIDED,
        provisional=True,
        gpu_counts=counts,
        gpu_steps=steps,
        on_cpu=contenders.on_cpu,
        deciding_time=contenders.deciding_time,
        left_out=tuple(contenders.eligible.left_out),
        shortlist=shortlist(contenders, _named(contenders, alternatives, counts, steps)),
        probabilities={
            str(cell_id): (float(choice.p_within[row]), contenders.p_best(row))
            for row, cell_id in enumerate(contenders.cells["cell_id"])
        },
    )


def _named(
    contenders: Contenders, alternatives: Alternatives, counts: Sequence[GpuCount], steps: Sequence[GpuStep]
) -> list[str | None]:
    """Return the ids of the cells that a recommendation names besides the chosen one and its baseline."""
    rows = [contenders.poor_reference, *alternatives.rows]
    rows += [contenders.names.index(step.name_of_fewer) for step in steps if step.name_of_fewer]
    ids = [contenders.id_of(row) for row in rows]
    ids += [count.cell_id for count in counts]
    ids += [cell.cell_id for step in steps for cell in step.cells]
    ids += [alternatives.runner_up.values["cell_id"]] if alternatives.runner_up else []
    return ids


def _with_choice(
    outcome: Recommendation, contenders: Contenders, chosen: int, alternatives: Alternatives
) -> Recommendation:
    """Return the recommendation with its verdict, its doubts, and the alternatives to the chosen cell."""
    choice = contenders.choice
    doubtful = tuple(caveats(contenders, chosen))
    cells_with_few, needed = further_seeds(contenders, chosen)
    times_again = contenders.timed_once(chosen) or any(doubt.code == "straggler" for doubt in doubtful)
    verdict = _verdict(contenders, chosen, doubtful)
    # Until the verdict is sure, the safe cell is the one to use now.
    is_sure = verdict in (CLEAR, SPEED_ONLY)
    today = chosen if is_sure or alternatives.safe is None else alternatives.safe
    by_id = {cell.cell_id: cell for cell in outcome.shortlist}
    return replace(
        outcome,
        cell_id=contenders.id_of(chosen),
        name=contenders.names[chosen],
        safe_cell_id=contenders.id_of(alternatives.safe),
        cheapest_cell_id=contenders.id_of(alternatives.cheapest),
        larger_batches=larger_batches(contenders, today),
        runner_up=alternatives.runner_up,
        verdict=verdict,
        rivals=tuple(by_id[str(contenders.id_of(row))] for row in alternatives.rivals),
        provisional=bool(doubtful) or contenders.baseline is None,
        caveats=doubtful,
        p_best=contenders.p_best(chosen),
        p_within_margin=float(choice.p_within[chosen]),
        behind=choice.behind if contenders.is_compared else math.nan,
        settling_gains=choice.behind if today == chosen else choice.safe_behind,
        reasons=tuple(reasons(contenders)),
        sensitivity=(*sensitivity(contenders, chosen), *unsettled(contenders, chosen)),
        more_seeds=tuple(_more_seeds(contenders, row, needed) for row in cells_with_few),
        commands=_settling(outcome.terms) if cells_with_few or times_again else (),
    )


def _verdict(contenders: Contenders, chosen: int, doubtful: Sequence[Remark]) -> str:
    choice = contenders.choice
    if choice.is_sure(contenders.p_best(chosen)) and not doubtful:
        return SPEED_ONLY if contenders.baseline is None else CLEAR
    return TIED if choice.ties_with(chosen).any() else UNDECIDED


def _more_seeds(contenders: Contenders, row: int, needed: int) -> MoreSeeds:
    missing = needed - len(contenders.seeds[row])
    return MoreSeeds(cell_id=str(contenders.id_of(row)), name=contenders.names[row], seeds=missing)
