"""The values of `mode=` and the functions behind them; each imports only what it needs, so that --help stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweeps.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.cli.configured_sweep import ConfiguredSweep
    from orchestrator.config.request import Request


def _run(configured: ConfiguredSweep) -> int:
    from orchestrator.backends.backend import NotStartedError
    from orchestrator.run import driver
    from orchestrator.store.lock import LockedError

    console = _console()
    for remark in configured.remarks:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)
    try:
        return driver.run(
            configured.request, configured.fingerprint(), configured.trials_on, console, configured.secrets
        )
    except LockedError as error:
        raise ConfigError([str(error)]) from error
    except NotStartedError as error:  # no trial has run; the same command may be repeated
        print(error, file=sys.stderr)
        return 1


def _plan(configured: ConfiguredSweep) -> int:
    from orchestrator.plan.plan import plan_now
    from orchestrator.plan.printout import text_of

    request = configured.request
    plan = plan_now(request, configured.fingerprint(), configured.trials_on)
    remarks = [*configured.remarks, *_of_changes(request, plan.changed)]
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


def _report(configured: ConfiguredSweep) -> int:
    from orchestrator.run import driver

    return driver.report(configured.request, _console())


def _predict(configured: ConfiguredSweep) -> int:
    from orchestrator.tables.scaling import predicted

    _console().print(predicted(configured.request), markup=False, soft_wrap=True)
    return 0


def _compare(configured: ConfiguredSweep) -> int:
    from orchestrator.tables.compare import compared

    _console().print(compared(configured.request), markup=False, soft_wrap=True)
    return 0


def _verify(configured: ConfiguredSweep) -> int:
    from orchestrator.run import verify

    return verify.show(configured.request, configured.fingerprint(), configured.trials_on)


def _launch(configured: ConfiguredSweep) -> int:
    from orchestrator.launch.launch import text_of

    request = configured.request
    print(text_of(configured.config, request.sweep.name, request.arguments), end="")
    return 0


def _writing(mode: Callable[[ConfiguredSweep], int]) -> Callable[[ConfiguredSweep], int]:
    """Wrap a mode so that a full disk is reported and ends it with status 1."""

    def carried_out(configured: ConfiguredSweep) -> int:
        from orchestrator.store import files

        try:
            return mode(configured)
        except OSError as error:
            if not files.is_at_fault(error, configured.request.results_dir):
                raise
            print(files.advice(error, configured.request.results_dir), file=sys.stderr)
            return 1

    return carried_out


MODES: Mapping[str, Callable[[ConfiguredSweep], int]] = {
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
