"""The table of a sweep's claims and their verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from orchestrator.decision.verdict import Verdict
from orchestrator.text import figures
from orchestrator.text.table import TextTable


def claims_markdown(found: Sequence[Verdict], sweep: str) -> str:
    """A row a claim."""
    return "\n".join([f"# Claims: {figures.plain(sweep)}", "", *claims_table(found).markdown()])


def claims_table(found: Sequence[Verdict]) -> TextTable:
    """A row a claim."""
    rows = [
        {
            "claim": verdict.claim.sentence,
            "verdict": f"{verdict.verdict}: {verdict.why}" if verdict.why else verdict.verdict,
            "left against right": f"{_figure(verdict.left)} against {_figure(verdict.right)}" if verdict.n else "",
            "left ÷ or − right": figures.with_interval(
                verdict.point, verdict.lo, verdict.hi, _figure, "×" if verdict.by_ratio else ""
            ),
            "seeds": str(verdict.n)
            + (f"; {verdict.seeds_to_settle} would settle it" if verdict.seeds_to_settle else ""),
            "said of": verdict.claim.about,
            "as": verdict.claim.expression + (f" (margin {verdict.claim.margin:g})" if verdict.claim.margin else ""),
        }
        for verdict in found
    ]
    table = pd.DataFrame(rows)
    about = (
        "×: left side of the claim divided by its right side, averaged on logarithms; without ×: left minus right, in"
        " the unit of the columns. Brackets: 95% intervals, paired by seed. A claim is confirmed if its whole interval"
        " agrees with it, and refuted if none of it does."
    )
    return TextTable(name="claims", title="Claims", about=[about], frame=table.loc[:, (table != "").any()])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
