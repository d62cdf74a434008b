"""Sweeps requested by a program rather than a command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from orchestrator.command_line.checking import checked, composed
from orchestrator.command_line.modes import MODES
from orchestrator.composition.overrides import rewritten
from orchestrator.composition.search_path import initialised, with_search_path
from sweeps.mistakes import MistakesError


def sweep(
    overrides: Sequence[str], *, folder: str | None, sections: Mapping[str, Mapping[str, Any]], quiet: bool
) -> tuple[int, Path]:
    """Run or continue a sweep from within a program; returns its exit status and its results folder.

    `folder` holds further configs, `sections` replace whole sections of the config. Hydra's own output folder is not
    made, and the state of a Hydra used by the program itself is restored. Raises MistakesError.
    """
    given = with_search_path(rewritten(overrides), folder)
    with initialised(), _silence(quiet):
        configured = checked(composed(given, sections=sections))
        if configured.request.mode not in ("run", "report"):
            raise MistakesError(
                [f"mode={configured.request.mode}: a program can run a sweep or report on one; plan_sweep plans it"]
            )
        status = MODES[configured.request.mode](configured)
    return status, configured.request.results_dir


def planned(
    overrides: Sequence[str], *, folder: str | None, sections: Mapping[str, Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], Sequence[str]]:
    """What such a sweep would run, one row per trial, and the remarks on it. Raises MistakesError."""
    from orchestrator.plan import printout
    from orchestrator.plan.plan import plan_now

    given = [*with_search_path(rewritten(overrides), folder), "mode=plan"]
    with initialised():
        configured = checked(composed(given, sections=sections))
        plan = plan_now(configured.request, configured.asked(), configured.trials_on)
    return printout.rows(plan), configured.remarks


@contextmanager
def _silence(quiet: bool) -> Iterator[None]:
    if not quiet:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield
