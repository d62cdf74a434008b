"""The values of `mode=` and the functions behind them; each imports only what it needs, so that --help stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweeps.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.cli.checked_sweep import CheckedSweep
    from orchestrator.config.request import Request


def _run(checked: CheckedSweep) -> int:
    from orchestrator.backends.backend import NotStartedError
    from orchestrator.run import driver
    from orchestrator.store.lock import LockedError

    console = _console()
    for remark in checked.remarks:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)
    try:
        return driver.run(checked.request, checked.grid.fingerprint(), checked.grid, console, checked.secrets)
    except LockedError as error:
        raise ConfigError([str(error)]) from error
    except NotStartedError as error:  # no trial has run; the same command may be repeated
        print(error, file=sys.stderr)
        return 1


def _plan(checked: CheckedSweep) -> int:
    from orchestrator.plan.plan import plan_now
    from orchestrator.plan.printout import text_of

    request = checked.request
    plan = plan_now(request, checked.grid.fingerprint(), checked.grid)
    remarks = [*checked.remarks, *_of_changes(request, plan.changed)]
    print(text_of(plan, request.plan_format, request.criteria.price_per_gpu_hour, remarks))
    return 0


def _of_changes(request: Request, changes: Sequence[str]) -> Iterator[str]:
    """Yield a remark if there are results of another config or other code, which the plan leaves out."""
    if changes:
        first, more = changes[0], f", and {len(changes) - 1} more" if len(changes) > 1 else ""
        way_on = "left out here" + (
            "" if request.allow_changed else ", and mode=run would refuse to continue with them"
        )
        yield f"{request.results_dir} holds results from another configuration or other code ({first}{more}): {way_on}"


def _report(checked: CheckedSweep) -> int:
    from orchestrator.run import driver

    return driver.report(checked.request, _console())


def _predict(checked: CheckedSweep) -> int:
    from orchestrator.tables.scaling import predicted

    _console().print(predicted(checked.request), markup=False, soft_wrap=True)
    return 0


def _compare(checked: CheckedSweep) -> int:
    from orchestrator.tables.compare import compared

    _console().print(compared(checked.request), markup=False, soft_wrap=True)
    return 0


def _verify(checked: CheckedSweep) -> int:
    from orchestrator.run import verify

    return verify.show(checked.request, checked.grid.fingerprint(), checked.grid)


def _launch(checked: CheckedSweep) -> int:
    from orchestrator.launch.launch import text_of

    request = checked.request
    print(text_of(checked.config, request.sweep.name, request.arguments), end="")
    return 0


def _writing(mode: Callable[[CheckedSweep], int]) -> Callable[[CheckedSweep], int]:
    """Wrap a mode so that a full disk is reported and ends it with status 1."""

    def carried_out(checked: CheckedSweep) -> int:
        from orchestrator.store import files

        try:
            return mode(checked)
        except OSError as error:
            if not files.is_at_fault(error, checked.request.results_dir):
                raise
            print(files.advice(error, checked.request.results_dir), file=sys.stderr)
            return 1

    return carried_out


MODES: Mapping[str, Callable[[CheckedSweep], int]] = {
    "run": _writing(_run),
    "plan": _plan,
    "report": _writing(_report),
    "verify": _verify,
    "launch": _launch,
    "predict": _predict,
    "compare": _compare,
}
"""Functions by mode; each returns the exit status, and raises ConfigError for a request it cannot carry out."""


def _init(config: Mapping[str, Any]) -> int:
    from orchestrator.cli.init_project import write_project

    return write_project(config)


WITHOUT_SWEEP: Mapping[str, Callable[[Mapping[str, Any]], int]] = {"init": _init}
"""Modes that need no sweep; they receive the config."""


def _console() -> Console:
    from rich.console import Console

    # A line may hold `:train:`, which is no train. In Jupyter stdout carries text, too, and a program can silence it.
    return Console(highlight=False, emoji=False, force_jupyter=False)
