"""The answer, in a few sentences, of a sweep that asks for no recommendation."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from orchestrator.collection.timed import is_valid
from orchestrator.decision.verdict import CONFIRMED, INCONCLUSIVE, REFUTED, Verdict
from orchestrator.text import figures
from orchestrator.text.cell_in_words import in_words, telling

WHY = "Nothing is recommended, as requested (report.objective=none)."


def answer(cells: pd.DataFrame, judged: Sequence[Verdict]) -> list[str]:
    """The outcome of the claims and the largest speed-up among the cells of a summary."""
    return [sentence for sentence in (_of_claims(judged), _of_scaling(cells), WHY) if sentence]


def _of_claims(judged: Sequence[Verdict]) -> str:
    if not judged:
        return ""
    verdicts = [verdict.verdict for verdict in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in (CONFIRMED, REFUTED, INCONCLUSIVE)}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    return f"Claims: {', '.join(parts)}."


def _of_scaling(cells: pd.DataFrame) -> str:
    """The largest speed-up over a baseline with fewer GPUs, preferably of valid timings; empty if there is none."""
    if not len(cells):
        return ""
    gpus = cells.set_index("cell_id")["gpus"]
    more = cells["gpus"] > gpus.reindex(cells["baseline_cell_id"]).to_numpy()
    scaled = cells[more & cells["speedup"].notna()]
    if scaled.empty:
        return ""
    valid = is_valid(scaled["timing_valid"])
    scaled = scaled[valid] if valid.any() else scaled
    row = scaled.to_dict("records")[int(scaled["speedup"].to_numpy().argmax())]
    speed = figures.with_interval(row["speedup"], row["speedup_lo"], row["speedup_hi"], figures.times, "×")
    best = "The largest speed-up is" if row["speedup"] > 1 else "No cell is faster with more GPUs: the best speed-up is"
    ideal, cell = f"{figures.percent(row['efficiency'])}% of the ideal", in_words(row, telling(scaled))
    doubt = "" if valid.any() else " (its timing is not valid)"
    return f"{best} {speed}, {ideal}, for {cell}{doubt}."
