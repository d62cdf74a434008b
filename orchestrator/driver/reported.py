"""What was made of the ends of trials, and what of it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.decision.recommendation import Recommendation
from orchestrator.decision.verdict import Verdict
from orchestrator.journal.soundness import Finding
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text.table import TextTable

CLAIMS = "claims.md"


@dataclass(frozen=True, kw_only=True)
class Further:
    """What a sweep has beside the figures of its cells."""

    file: str
    text: str
    """Markdown."""
    tables: Sequence[TextTable]
    """The same for the page and the terminal; none where it only says why there is nothing."""
    printed: bool = True
    """Whether it is among what a sweep prints at its end."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What was made of the ends."""

    cells: pd.DataFrame
    recommendation: Recommendation
    decision: str
    """The recommendation as Markdown."""
    findings: Sequence[Finding]
    judged: Sequence[Verdict] | None
    """The sweep's claims; None where they could not be judged."""
    further: Sequence[Further]
    """The claims, the figures that others published beside these, the scaling laws: where there are any."""
    has_page: bool
    """Whether report.html is of these ends."""
    troubles: Sequence[str]
    """What could not be made, and where to read why."""

    def markdown(self) -> list[str]:
        """The tables for people, as in the files, the recommendation first."""
        first = [each.text for each in self.further if each.file == CLAIMS]
        last = [each.text for each in self.further if each.file != CLAIMS and each.tables and each.printed]
        tables = [self.decision, *first, speedup_markdown(self.cells), accuracy_markdown(self.cells), *last]
        return [table for table in tables if table]

    def tables(self) -> list[TextTable]:
        """Those of `further` that are printed."""
        return [table for each in self.further if each.printed for table in each.tables]

    def failed_claims(self, fail_on: str | None) -> tuple[str, ...]:
        """Sentences of the claims that let the sweep fail."""
        failing = {None: (), "refuted": ("refuted",), "inconclusive": ("refuted", "inconclusive")}[fail_on]
        if self.judged is None:
            return ("the claims could not be judged",) if failing else ()
        return tuple(each.claim.sentence for each in self.judged if each.verdict in failing)
