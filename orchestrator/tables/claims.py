"""The table of a sweep's claims with their verdicts, for all forms of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from orchestrator.decision.claims import Claimed
from orchestrator.decision.verdicts import UNDECIDED_BY_INTERVAL, Verdict
from orchestrator.text import numbers
from orchestrator.text.rows import Document, TextTable, without_empty

CLAIMS = "claims.md"

_IN_WORDS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least", "==": "equal to"}
_TOLERATED = {"<": "+", ">": "−", "=": "±"}
"""The sign of a margin, by the first character of the operator."""

_ONE_PROCESS = (
    "In one process: one process timed all seeds of a cell, or it is unknown how many did. Processes differ in speed by"
    " chance. The interval does not include that difference, so it is too narrow and the verdict too certain."
    " workers=per_seed uses another process for each seed."
)


def claims_document(verdicts: Sequence[Verdict], sweep: str) -> Document:
    """Return the document with a row for each claim: its sentence, its verdict, and both sides, compared."""
    # A claim without a measured seed has neither a ratio nor a difference.
    by_ratio = [verdict.by_ratio for verdict in verdicts if verdict.n]
    compared = "ratio" if all(by_ratio) else "ratio (×) or difference" if any(by_ratio) else "difference"
    decided = sum(verdict.why in ("", UNDECIDED_BY_INTERVAL) for verdict in verdicts)
    about = [
        "Measured and claimed are the two sides of the expression, means over the seeds; next to them is their"
        f" {compared} with its 95% interval, paired by seed. A claim is confirmed if the whole interval agrees with it,"
        " and refuted if none of it does."
    ]
    # Several claims together are wrong more often than each of them.
    if decided > 1:
        about.append(
            f"Each verdict is wrong by chance in at most 5% of sweeps, but of {decided} claims some verdict in up to"
            f" {1 - 0.95**decided:.0%}."
        )
    if any(verdict.one_process for verdict in verdicts):
        about.append(_ONE_PROCESS)
    rows = [_row(verdict, compared) for verdict in verdicts]
    table = TextTable(name="claims", title="Claims", about=about, frame=without_empty(pd.DataFrame(rows)))
    counts = Counter(verdict.verdict for verdict in verdicts)
    line = ("Claims", f"{', '.join(f'{count} {word}' for word, count in counts.items())} (tables/{CLAIMS})")
    return Document(text=table.document(f"Claims: {sweep}"), tables=[table], line=line)


def _row(verdict: Verdict, compared: str) -> dict[str, str]:
    """Return a claim's row. The right side, which may be measured, has its margin: `at least 0.9100 − 0.01`."""
    claim = verdict.claim
    order = Claimed.parse(claim.expression).order
    tolerated = f" {_TOLERATED[order[0]]} {claim.margin:g}" if claim.margin else ""
    sign = "×" if verdict.by_ratio else ""
    seeds = f"{verdict.n}{' in one process' if verdict.one_process and verdict.n else ''}"
    if verdict.seeds_to_settle:
        seeds += f"; {verdict.seeds_to_settle} would settle it"
    return {
        "claim": claim.sentence,
        "verdict": f"{verdict.verdict}: {verdict.why}" if verdict.why else verdict.verdict,
        "measured": _four(verdict.left) if verdict.n else "",
        "claimed": f"{_IN_WORDS[order]} {_four(verdict.right)}{tolerated}" if verdict.n else "",
        compared: numbers.with_interval(verdict.point, verdict.lo, verdict.hi, _four, sign),
        "seeds": seeds,
        "about": claim.about,
        "expression": claim.expression,
    }


def _four(value: float) -> str:
    """Return four significant digits, but all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.4g}"
