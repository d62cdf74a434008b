"""The values of `mode=`, and the functions that they call: each imports what it needs, so that --help stays quick."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.errors import ConfigError
from sweeps.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.config.checked_sweep import CheckedSweep
    from orchestrator.config.compose import Composition
    from orchestrator.plan.plan import Plan


def _run(checked: CheckedSweep) -> int:
    from orchestrator.backends.backend import NotStartedError
    from orchestrator.run import driver

    try:
        return driver.run(checked, _console())
    except NotStartedError as error:  # no trial has run; the same command may be repeated
        print(printable(str(error)), file=sys.stderr)
        return 1


def _plan(checked: CheckedSweep) -> int:
    from orchestrator.plan.plan import plan_now
    from orchestrator.plan.printout import as_json, as_text, budget_line, headline
    from orchestrator.schedule.queue import SweepBudget

    request = checked.request
    plan = plan_now(checked)
    remarks = list(checked.remarks)
    if plan.forecasts.is_incomplete(plan.to_run):
        remarks.append("rehearsals were cut off, or disturbed by other programs: mode=forecast makes them again")
    if plan.changed:
        refusal = "" if request.settings.allow_changed else ", and mode=run would refuse to continue with them"
        remarks.append(
            f"{request.results_dir} holds results from another configuration or other code ({_first(plan.changed)}):"
            f" left out here{refusal}"
        )
    report = request.settings.report
    if request.settings.format == "json":
        text = as_json(plan, report.price_per_gpu_hour, remarks)
    else:
        limits = request.settings.sweep.budget
        price = report.price_per_gpu_hour
        cut = budget_line(plan, SweepBudget(**vars(limits), price_per_gpu_hour=price, used_gpu_s=plan.spent_gpu_s))
        table = as_text(plan, report.price_per_gpu_hour, remarks, report.unit_of_cost)
        text = "\n".join(filter(None, [f"{headline(plan, checked.config)}\n", table, cut]))
    print(printable(text))
    # Nothing would run: no trial fits.
    return int(bool(plan.infeasible) and not plan.finished and not plan.may_run(waits=request.waits))


def _first(changes: Sequence[str]) -> str:
    """Return the first change: the full list, which mode=run shows, may be as long as the config."""
    return changes[0] + (f", and {len(changes) - 1} more" if len(changes) > 1 else "")


def _forecast(checked: CheckedSweep) -> int:
    from orchestrator.config.commands import command
    from orchestrator.plan.forecast_printout import forecast_text, unanswered
    from orchestrator.plan.forecasts import can_rehearse, rehearse_missing
    from orchestrator.plan.plan import plan_now
    from orchestrator.plan.prices import offers_of
    from orchestrator.plan.printout import headline
    from orchestrator.run.provenance import load_warning
    from orchestrator.store.results_folder import ResultsFolder

    offers_of(checked.request.settings)  # an error in the price list must not wait for the rehearsals
    console = _console(stderr=True)
    plan, folder = plan_now(checked), ResultsFolder(checked.request.results_dir)
    if checked.request.settings.extrapolates:
        return _extrapolated(checked, plan)
    with console.status("") as status:
        # A log has no status line: each rehearsal gets a line.
        tell = status.update if console.is_terminal else partial(console.print, markup=False, soft_wrap=True)
        is_first = not checked.request.settings.shapes_of  # which are not timed

        def say(line: str) -> None:
            nonlocal is_first
            if is_first and (warning := load_warning(plan.trials, "rehearsals will be disturbed")):
                console.print(warning, style="yellow", markup=False, soft_wrap=True)
            is_first = False
            tell(line)

        file = folder.rehearsals_for(checked.request.settings.shapes_of)
        failures = rehearse_missing(plan.trials, plan.forecasts, file, say)
    for failure in failures:
        console.print(failure, markup=False, soft_wrap=True)
    plan = plan_now(checked)
    text, lacking = forecast_text(plan, checked.request), unanswered(plan)
    if checked.request.settings.format == "table":
        text = f"{headline(plan, checked.config)}\n\n{text}"
        if lacking and not any(map(can_rehearse, plan.trials)):
            text += "\n\nonly trainings by this project's own loop are rehearsed; to run one seed of each cell:\n"
            one_seed = ("mode=", "rerun=", "sweep.axes.seed=")
            text += command(checked.composition.arguments, ["sweep.axes.seed=[0]"], dropped=one_seed)
        elif counts := sorted({trial.gpus for trial in lacking if trial.trial_id in plan.infeasible}):
            arguments = checked.composition.arguments
            if all(trial.device == "cpu" and can_rehearse(trial) for trial in plan.trials):
                text += "\n\nto forecast the cells on a GPU that is not here:\n"
                text += command(arguments, ["forecast.device=H100"], dropped=("rerun=",))
            more = [f"forecast.gpus=[{','.join(f'{count:g}' for count in counts)}]"]
            text += "\n\nto extrapolate from fewer GPUs that ran:\n"
            text += command(arguments, more, dropped=("sweep.axes.gpus=", "rerun="))
    print(printable(text))
    return int(bool(failures or lacking))


def _extrapolated(checked: CheckedSweep, plan: Plan) -> int:
    """Print the forecast of other GPU counts; nothing is rehearsed, because those GPUs are not here."""
    from orchestrator.cli.recorded_arguments import command_again
    from orchestrator.plan.forecast_printout import forecast_text, unanswered
    from orchestrator.plan.plan import measuring_command

    request = checked.request
    if plan.changed:
        note = f"note: the results are from another configuration or other code ({_first(plan.changed)})"
        _console(stderr=True).print(f"{note}: extrapolated as they are", markup=False, soft_wrap=True)
    text, lacking = forecast_text(plan, request), unanswered(plan)
    if lacking and request.settings.format == "table":
        measuring = plan.forecasts.measured.overrides_to_measure(lacking)
        # Another configuration would be refused in this folder.
        again = command_again(str(request.results_dir), measuring) if plan.changed else ""
        again = again or measuring_command(checked, measuring)
        text += f"\n\nto measure what is missing, where there are as many GPUs:\n{again}"
    print(printable(text))
    return 1 if lacking else 0


def _report(checked: CheckedSweep) -> int:
    from orchestrator.cli.recorded_arguments import what_if
    from orchestrator.run import driver

    return driver.report(checked, _console(), lambda history: what_if(history, checked.composition))


def _compare(checked: CheckedSweep) -> int:
    from orchestrator.tables.compare import compared

    _console().print(compared(checked.request), markup=False, soft_wrap=True)
    return 0


def _status(checked: CheckedSweep) -> int:
    from orchestrator.cli.status import show_status, status_of

    status = status_of(checked.request.results_dir)
    if checked.request.settings.format == "json":
        print(json.dumps(status))
    else:
        show_status(status, _console())
    return 0


def _watch(checked: CheckedSweep) -> int:
    from orchestrator.cli.watch_page import serve

    return serve(checked.request, checked.secrets, _console())


def _launch(checked: CheckedSweep) -> int:
    from orchestrator.cli.launch import launch_file

    print(launch_file(checked.config, checked.request.settings.sweep.name, checked.composition.arguments), end="")
    return 0


def _verify(checked: CheckedSweep) -> int:
    from orchestrator.run import verify

    return int(verify.show(checked))


TEMPLATES = Path(__file__).parents[1] / "templates"
"""One folder per kind of project; its files end in `.txt` because they are not part of this project's code."""


def write_project(config: Mapping[str, Any]) -> int:
    """Write the project that `config["init"]` describes, print the next command, and return the exit status.

    Files that exist are kept. Raises ConfigError for an unknown kind, or a folder that cannot be written.
    """
    from orchestrator.config.key_checks import value_errors

    section = config["init"]
    errors = list(value_errors(config, ["init.kind", "init.dir"]))
    place = "" if section["dir"] is None else str(section["dir"])  # Hydra reads 5 as a number
    target = Path(os.path.expanduser(place))
    if section["dir"] in (None, ""):
        errors.append("init.dir is not set: mode=init init.dir=my-sweep")
    elif target.exists() and not target.is_dir():
        errors.append(f"init.dir={section['dir']} is not a folder")
    if errors:
        raise ConfigError(errors)
    template = TEMPLATES / section["kind"]
    sources = {target / source.relative_to(template).with_suffix(""): source for source in template.rglob("*.txt")}
    # Under its real name it would hide the template's files from git here.
    sources = {file.with_name(file.name.replace("gitignore", ".gitignore")): text for file, text in sources.items()}
    # The user may have edited a file since an earlier mode=init.
    kept = [file for file in sorted(sources) if file.exists()]
    is_new = not target.exists()
    written: list[Path] = []
    try:
        for file in sorted(sources.keys() - kept):
            file.parent.mkdir(parents=True, exist_ok=True)
            written.append(file)
            file.write_text(sources[file].read_text())
    except OSError as error:
        # Another attempt would keep half-written files.
        for file in written:
            file.unlink(missing_ok=True)
        if is_new:
            shutil.rmtree(target, ignore_errors=True)
        raise ConfigError([f"init.dir={section['dir']} cannot be written: {error.strerror}"]) from error
    for file in written:
        print(file)
    for file in kept:
        print(f"{file} exists and is kept")
    from orchestrator.config.commands import program

    print(f"\nnext: cd {target} && {program()} -cd conf sweep=mine mode=plan    (README.md has the rest)")
    return 0


def _init(composition: Composition) -> int:
    return write_project(composition.config)


def _list(composition: Composition) -> int:
    from orchestrator.cli.status import show_list, sweeps_in
    from orchestrator.store.cloud import is_uri

    config = composition.config
    folder = Path(os.path.expanduser(str(config["results_dir"])))
    if is_uri(str(config["results_dir"])):
        raise ConfigError([f"mode=list reads folders, not {config['results_dir']}"])
    rows, configs = sweeps_in(folder), composition.groups.options("sweep")
    if config["format"] == "json":
        print(json.dumps({"sweeps": rows, "configs": configs}))
    else:
        show_list(folder, rows, configs, _console())
    return 0


def _reported(
    function: Callable[[Any], int], results_dir_of: Callable[[Any], Path], *, prints: bool
) -> Callable[[Any], int]:
    """Wrap a mode so that a full disk, or lost output of one that `prints`, is reported and ends it with status 1."""

    def carried_out(asked: Any) -> int:
        from orchestrator.cli.streams import has_lost_output
        from orchestrator.store import files

        try:
            status = function(asked)
        except OSError as error:
            results_dir = results_dir_of(asked)
            if not files.is_at_fault(error, results_dir):
                raise
            print(printable(files.advice(error, results_dir)), file=sys.stderr)
            return 1
        return status or int(prints and has_lost_output())

    return carried_out


_PRINTING = (_plan, _forecast, _verify, _status, _launch, _compare, _list)  # what they print is their result

MODES: Mapping[str, Callable[[CheckedSweep], int]] = {
    mode: _reported(function, lambda checked: checked.request.results_dir, prints=function in _PRINTING)
    for mode, function in {
        "run": _run,
        "settle": _run,
        "plan": _plan,
        "forecast": _forecast,
        "report": _report,
        "verify": _verify,
        "status": _status,
        "watch": _watch,
        "launch": _launch,
        "compare": _compare,
    }.items()
}
"""Functions by mode; each returns the exit status, and raises ConfigError for a request it cannot carry out."""

WITHOUT_SWEEP: Mapping[str, Callable[[Composition], int]] = {
    mode: _reported(function, lambda composition: Path(composition.config["results_dir"]), prints=function in _PRINTING)
    for mode, function in {"init": _init, "list": _list}.items()
}
"""Modes that need no sweep; they receive the composed config."""


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        """A console on which only its own control sequences reach the terminal, and none of a text."""

        def render(self, *given: Any, **settings: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*given, **settings):
                yield Segment(text if control else printable(text), style, control)

    # Text such as `:train:` is no emoji. In Jupyter, plain text goes to stdout, which a program can silence.
    return PrintableConsole(highlight=False, emoji=False, force_jupyter=False, stderr=stderr)
