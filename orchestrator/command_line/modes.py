"""What `mode=` can say, and who carries it out; each imports what only it needs, because help is to come quickly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sweeps.mistakes import MistakesError

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.command_line.question import Question


def _run(question: Question) -> int:
    from orchestrator.backends.backend import NotStartedError
    from orchestrator.driver import driver
    from orchestrator.storage.lock import LockedError

    console = _console()
    for remark in question.remarks:
        console.print(f"note: {remark}", markup=False, soft_wrap=True)
    try:
        return driver.run(question.request, question.asked(), question.trials_on, console, question.secrets)
    except LockedError as error:
        raise MistakesError([str(error)]) from error
    except NotStartedError as error:  # no trial has run, and the same command may
        print(error, file=sys.stderr)
        return 1


def _plan(question: Question) -> int:
    from orchestrator.plan.plan import plan_now
    from orchestrator.plan.printout import text_of

    request = question.request
    plan = plan_now(request, question.asked(), question.trials_on)
    print(text_of(plan, request.plan_format, request.price_per_gpu_hour, question.remarks))
    return 0


def _report(question: Question) -> int:
    from orchestrator.driver import driver

    return driver.report(question.request, _console())


def _predict(question: Question) -> int:
    from orchestrator.tables.predict import predicted

    _console().print(predicted(question.request), markup=False, soft_wrap=True)
    return 0


def _compare(question: Question) -> int:
    from orchestrator.tables.compare import compared

    _console().print(compared(question.request), markup=False, soft_wrap=True)
    return 0


def _verify(question: Question) -> int:
    from orchestrator.verify import verify

    return verify.show(question.request, question.asked(), question.trials_on)


def _launch(question: Question) -> int:
    from orchestrator.launch.launch import text_of

    request = question.request
    print(text_of(question.config, request.name, request.arguments), end="")
    return 0


def _writing(mode: Callable[[Question], int]) -> Callable[[Question], int]:
    """The mode, which tells of a disk that takes no more and ends with status 1."""

    def carried_out(question: Question) -> int:
        from orchestrator.storage import disk

        try:
            return mode(question)
        except OSError as error:
            if not disk.is_at_fault(error, question.request.results_dir):
                raise
            print(disk.advice(error, question.request.results_dir), file=sys.stderr)
            return 1

    return carried_out


MODES: Mapping[str, Callable[[Question], int]] = {
    "run": _writing(_run),
    "plan": _plan,
    "report": _writing(_report),
    "verify": _verify,
    "launch": _launch,
    "predict": _predict,
    "compare": _compare,
}
"""By mode; each returns the exit status, and raises MistakesError for a request that cannot be carried out."""


def _init(config: Mapping[str, Any]) -> int:
    from orchestrator.command_line.init_project import write_project

    return write_project(config)


WITHOUT_SWEEP: Mapping[str, Callable[[Mapping[str, Any]], int]] = {"init": _init}
"""The modes that need no sweep; they are given the config."""


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, force_jupyter=False)  # there, lines of text too, which a program can silence
