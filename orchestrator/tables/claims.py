"""The table of a sweep's claims with their verdicts, for all forms of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from orchestrator.decision.claims import Claimed
from orchestrator.decision.verdicts import Verdict
from orchestrator.text import numbers
from orchestrator.text.rows import TextTable

_IN_WORDS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least", "==": "equal to"}
_TOLERATED = {"<": "+", ">": "−", "=": "±"}
"""The sign of a margin, by the first character of the operator."""

_ONE_PROCESS = (
    "In one process: one process timed all seeds of a cell, or it is unknown how many did. Processes differ in speed by"
    " chance. The interval does not include that difference, so it is too narrow and the verdict too certain."
    " workers=per_seed uses another process for each seed."
)


def claims_markdown(found: Sequence[Verdict], sweep: str) -> str:
    """Return the table as a Markdown document."""
    return "\n".join([f"# Claims: {numbers.plain(sweep)}", "", *claims_table(found).markdown()])


def claims_table(found: Sequence[Verdict]) -> TextTable:
    """Return a row for each claim: its sentence, its verdict, and both sides with their ratio or difference."""
    measured = [verdict for verdict in found if verdict.n]
    by_ratio = [verdict.by_ratio for verdict in measured]
    compared = "ratio" if all(by_ratio) else "ratio (×) or difference" if any(by_ratio) else "difference"
    judged = sum(not math.isnan(verdict.p) for verdict in found)
    rows = []
    for verdict in found:
        order, margin = Claimed.parse(verdict.claim.expression).order, verdict.claim.margin
        tolerated = f" {_TOLERATED[order[0]]} {margin:g}" if margin else ""
        row = {
            "claim": verdict.claim.sentence,
            "verdict": f"{verdict.verdict}: {verdict.why}" if verdict.why else verdict.verdict,
            "p of all": "" if judged < 2 or verdict.why else _p(verdict.p_together),
            "measured": _figure(verdict.left) if verdict.n else "",
            # The right side, which may be measured, with its margin: `at least 0.9100 − 0.01`.
            "claimed": f"{_IN_WORDS[order]} {_figure(verdict.right)}{tolerated}" if verdict.n else "",
            compared: numbers.with_interval(
                verdict.point, verdict.lo, verdict.hi, _figure, "×" if verdict.by_ratio else ""
            ),
            "seeds": f"{verdict.n}{' in one process' if verdict.one_process and verdict.n else ''}"
            + (f"; {verdict.seeds_to_settle} would settle it" if verdict.seeds_to_settle else ""),
            "about": verdict.claim.about,
            "expression": verdict.claim.expression,
        }
        rows.append(row)
    table = pd.DataFrame(rows)
    about = (
        "Measured and claimed are the two sides of the expression, means over the seeds; next to them is their"
        f" {compared} with its 95% interval, paired by seed. A claim is confirmed if the whole interval agrees with it,"
        " and refuted if none of it does."
    )
    return TextTable(
        name="claims",
        title="Claims",
        about=[
            about,
            *([_together(judged)] if judged > 1 else []),
            *([_ONE_PROCESS] if any(verdict.one_process for verdict in found) else []),
        ],
        frame=table.loc[:, (table != "").any()],
    )


def _together(judged: int) -> str:
    """Return a sentence on the errors of this many claims together."""
    return (
        f"Each verdict is wrong by chance in at most 5% of sweeps, but of {judged} claims some verdict in up to"
        f" {1 - 0.95**judged:.0%}. Verdicts whose p of all is below 0.05 hold together (Holm 1979)."
    )


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def _figure(value: float) -> str:
    """Return four significant digits, but all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.4g}"
