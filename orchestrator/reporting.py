"""From the ends of trials to everything written about them: the tables first, because nothing may lose those."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pandas as pd

from orchestrator.claim import Claim
from orchestrator.claims import Verdict
from orchestrator.claims_table import claims_markdown, verdicts
from orchestrator.collector import axis_columns, collect_for
from orchestrator.curves import curves_frame
from orchestrator.decision import decide
from orchestrator.durable import write_whole
from orchestrator.layout import Layout
from orchestrator.published import Published
from orchestrator.published_table import published_markdown
from orchestrator.recommendation import Recommendation
from orchestrator.recommendation_table import recommendation_markdown
from orchestrator.record import TrialRecord
from orchestrator.request import Request
from orchestrator.scaling_table import scaling_markdown
from orchestrator.soundness import Finding
from orchestrator.tables import accuracy_markdown, speedup_markdown, write_curves, write_latex, write_tables
from orchestrator.terms import Terms
from sweeps.status import Status

Made = TypeVar("Made")

_WITH_CURVE = (Status.OK, Status.DIVERGED)
"""Ends that leave a curve."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a results directory beside the ends of its trials."""

    driver: Mapping[str, Any] = field(default_factory=dict)
    """Who took the sweep up last, as of `origin.origin`."""
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What was made of the ends."""

    cells: pd.DataFrame
    recommendation: Recommendation | None
    decision: str
    """The recommendation as Markdown; empty where there is none."""
    findings: Sequence[Finding]
    judged: Sequence[Verdict] | None
    """The sweep's claims; None where they could not be judged."""
    claimed: str
    """The claims as Markdown; empty where there are none."""
    beside: str
    """The figures that others published beside these, as Markdown; empty where the sweep has none."""
    has_page: bool
    """Whether report.html is of these ends."""
    troubles: Sequence[str]
    """What could not be made, and where to read why."""

    def markdown(self) -> list[str]:
        """The tables for people, as in the files, the recommendation first."""
        tables = [self.decision, self.claimed, speedup_markdown(self.cells), accuracy_markdown(self.cells), self.beside]
        return [table for table in tables if table]

    def failed_claims(self, fail_on: str | None) -> tuple[str, ...]:
        """Sentences of the claims that let the sweep fail."""
        failing = {None: (), "refuted": ("refuted",), "inconclusive": ("refuted", "inconclusive")}[fail_on]
        if self.judged is None:
            return ("the claims could not be judged",) if failing else ()
        return tuple(each.claim.sentence for each in self.judged if each.verdict in failing)


def report_on(request: Request, layout: Layout, records: Sequence[TrialRecord], known: Known) -> Reported:
    """Write the tables, the recommendation and the report of at least one end.

    OSError where the tables cannot be written. What else fails is a trouble to be told, and loses nothing beside it.
    """
    trials, cells = collect_for(request, records)
    attempts = _Attempts(layout)
    terms = Terms.of(request, axis_columns(list(records)), known.driver.get("arguments"))
    recommendation = attempts.at("recommendation.md", lambda: decide(trials, cells, terms))
    decision = recommendation_markdown(recommendation, str(cells["sweep"].iloc[0])) if recommendation else ""
    claims = [Claim.of(claim) for claim in request.claims]
    judged = attempts.at("claims.md", lambda: verdicts(claims, trials, cells)) if claims else []
    claimed = claims_markdown(judged, request.name) if judged else ""
    scaling = attempts.at("scaling.md", lambda: scaling_markdown(trials, cells)) or ""
    beside = attempts.at("published.md", lambda: _beside(request, cells)) or ""
    texts = {"recommendation.md": decision, "claims.md": claimed, "scaling.md": scaling, "published.md": beside}
    write_tables(layout, trials, cells, {name: text for name, text in texts.items() if text})
    attempts.at("the LaTeX tables", lambda: write_latex(layout, cells))
    unsound = None
    if request.html:
        frames = _Frames(trials=trials, cells=cells, recommendation=recommendation, decision=decision)
        unsound = attempts.at("report.html", lambda: _written(layout, frames, known))
    return Reported(
        cells=cells,
        recommendation=recommendation,
        decision=decision,
        judged=judged,
        claimed=claimed,
        beside=beside,
        findings=[*known.findings, *(unsound or [])],
        has_page=unsound is not None,
        troubles=attempts.troubles,
    )


def _beside(request: Request, cells: pd.DataFrame) -> str:
    return published_markdown(Published.of(request.published), cells) if request.published else ""


@dataclass(frozen=True, kw_only=True)
class _Frames:
    trials: pd.DataFrame
    cells: pd.DataFrame
    recommendation: Recommendation | None
    decision: str


def _written(layout: Layout, frames: _Frames, known: Known) -> list[Finding]:
    """Write the report; what in the directory is not sound beside what was known."""
    from orchestrator.report.material import Material  # half a second of matplotlib, which tables do without
    from orchestrator.report.writing import write_report

    trials = frames.trials
    with_curve = trials.loc[trials["status"].isin([status.value for status in _WITH_CURVE]), "trial_id"]
    curves, findings = curves_frame(layout, with_curve)
    write_curves(layout, curves)
    material = Material(
        trials=trials,
        cells=frames.cells,
        recommendation=frames.recommendation,
        curves=curves,
        driver=known.driver,
        findings=[*known.findings, *findings],
    )
    found, _ = write_report(material, layout, frames.decision)
    return [*findings, *found]


class _Attempts:
    """Steps of which none may take the others down."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.troubles: list[str] = []

    def at(self, what: str, step: Callable[[], Made]) -> Made | None:
        """What the step makes; None if it fails, which is a trouble with its trace in a file."""
        try:
            return step()
        except Exception as error:  # whatever it is, the figures are worth more than the page about them
            trace = self._layout.report_trace
            self.troubles.append(f"{what} could not be made: {type(error).__name__}: {error} (see {trace})")
            with suppress(OSError):  # the line above tells it all the same
                write_whole(trace, traceback.format_exc().encode(errors="replace"))
        return None
