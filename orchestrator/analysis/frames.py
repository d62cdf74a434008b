"""The frames of a results directory, from its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.config.request import Request
from orchestrator.store.history import ends_under, latest
from orchestrator.store.journal import replay
from orchestrator.store.layout import Layout
from sweeps.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def frames(layout: Layout, request: Request) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trials and cells, compared according to the request. Raises ConfigError if there are no results."""
    if not layout.journal.exists():
        raise ConfigError([f"there are no results in {layout.root}"])
    found = replay(layout.journal)
    ends = ends_under(found.records, latest(found.records) or {})
    if not ends:
        raise ConfigError([f"no trial has ended yet in {layout.root}"])
    from orchestrator.analysis.trials import collect_for

    return collect_for(request, list(ends.values()))
