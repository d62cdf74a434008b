"""Any training command as a trainable: a trial is one run of it.

The command gets its GPUs (CUDA_VISIBLE_DEVICES), a free port, a folder to work in and its numbers, on its command line
and as SWEEP_* environment variables. It starts its ranks itself, so the trial is one rank with all of its GPUs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainables.command import process as command_process
from trainables.command.check import OF_GPUS, may_hear
from trainables.command.metrics import SPEEDS, CommandMetrics, MetricsFile
from trainables.command.process import Command, CommandEnding
from trainables.command.settings import LENGTHS, NAMES, CommandSettings, fill
from trainables.context import Context

WORK = "work"
"""The folder, within the trial's own, that the command runs in."""


def train(config: Mapping[str, Any], context: Context) -> None:
    """Run `config["trainable"]["argv"]`, report the rows it prints, summarize what it came to.

    Raises MemoryError, DivergedError and TrialTimeoutError for what they say, CommandError for any other failure,
    ValueError for a config that cannot be. Being asked to stop ends the command, and is no error.
    """
    settings = CommandSettings.of(config["trainable"])
    with _trial_dir(context) as trial_dir:
        values = {**config, **_values(settings, config, context, trial_dir)}
        _clear(settings, trial_dir / WORK)
        hears_of_its_gpus = _hears_of_its_gpus(settings, context)
        batch_size = context.batch.global_batch_size if hears_of_its_gpus else None
        metrics = CommandMetrics(settings, batch_size, values["epochs"])
        ending = CommandEnding(settings.oom_patterns, settings.diverged_patterns)
        command = _command(settings, values, context, trial_dir)
        file = MetricsFile(command.cwd / fill(settings.metrics_file, values) if settings.metrics_file else None)

        def hear(stream: str, line: str) -> None:
            ending.hear(stream, line)
            for row in metrics.line(line):
                context.report(row)

        def should_stop() -> bool:
            for line in file.new():
                hear("file", line)
            return context.should_stop()

        ended = command_process.run(command, hear, should_stop)
        for line in file.new():
            hear("file", line)
        for row in [*file.rows(metrics), *metrics.last_row()]:
            context.report(row)
        context.summarize(metrics.figures())
        if not ended.stopped:
            ending.check(ended.exit_code, settings.ok_exit_codes)
            _remark(metrics, context)
            if not hears_of_its_gpus:
                _remark_gpus(metrics, context)


def _remark(metrics: CommandMetrics, context: Context) -> None:
    """A pattern with a slip reads nothing, and looks like a command that does not tell."""
    for column in metrics.unread():
        context.remark(f"no line of the output matches trainable.metrics.{column}")
    if metrics.found_nothing:
        context.remark(
            f"no figure was found in the output: see trials/{context.trial_id}/stdout.log, trainable.metrics"
        )
    if metrics.between_lines:
        context.remark("no line reports a time: epoch_s is the time between epochs' lines, including evaluation")
    if told := metrics.remark_on_steps:
        context.remark(told)
    figures = metrics.figures()
    if not set(SPEEDS) & set(figures) and not metrics.found_nothing:
        context.remark(
            "nothing reports how long an epoch takes: see trainable.metrics.epoch_s, trainable.epoch_pattern"
        )
    if "epoch_s" in figures and "samples_per_s" not in figures:
        context.remark("without trainable.samples_per_epoch there are no samples_per_s, and so no speed-up")


def _hears_of_its_gpus(settings: CommandSettings, context: Context) -> bool:
    """Otherwise it may use one of several, and nobody knows how many samples its step has."""
    return context.batch.devices_per_rank <= 1 or may_hear(settings, OF_GPUS)


def _remark_gpus(metrics: CommandMetrics, context: Context) -> None:
    """A script for one GPU is as fast with several, and that would pass for a finding about them."""
    gpus, figures = context.batch.devices_per_rank, metrics.figures()
    remark = f"trainable.argv has no {{gpus}}: {gpus} were used only if the command takes all that it sees"
    if "step_s" in figures and "samples_per_s" not in figures:
        remark += ", so step_s gives no samples_per_s: name {gpus} there, or print samples_per_s"
    context.remark(remark)


def _values(settings: CommandSettings, config: Mapping[str, Any], context: Context, trial_dir: Path) -> dict[str, Any]:
    """What the braces stand for; a name of `NAMES` each, None where there is no such value."""
    batch, lr, budget = context.batch, context.lr, config.get("budget") or {}
    return {
        "gpus": batch.devices_per_rank,
        "device_batch_size": batch.device_batch_size,
        "global_batch_size": batch.global_batch_size,
        "grad_accum_steps": batch.grad_accum_steps,
        "lr": lr.value,
        "lr_rule": lr.rule,
        "warmup_from": lr.warmup_from,
        "warmup_epochs": lr.warmup_epochs,
        "reference_batch_size": lr.reference_batch_size,
        "seed": context.seed,
        "port": command_process.free_port(),
        "threads": context.threads,
        "device": context.device.partition(":")[0],
        "trial_id": context.trial_id,
        "trial_dir": str(trial_dir),
        "source_dir": str(_source_dir(settings)),
        "python": sys.executable,
        **_lengths(budget, batch.global_batch_size),
    }


def _lengths(budget: Mapping[str, Any], global_batch_size: int) -> dict[str, Any]:
    """The budget's length under its name; a length in samples also in steps, and the other way round."""
    lengths = {name: budget.get(name) for name in LENGTHS}
    if lengths["samples"] is not None:
        lengths["steps"] = max(1, round(lengths["samples"] / global_batch_size))
    elif lengths["steps"] is not None:
        lengths["samples"] = lengths["steps"] * global_batch_size
    return lengths


def _command(settings: CommandSettings, values: Mapping[str, Any], context: Context, trial_dir: Path) -> Command:
    source = Path(values["source_dir"])
    words = [_located(fill(word, values), source) for word in settings.words]
    return Command(
        words=words,
        environment=_environment(settings, values, context),
        cwd=trial_dir / WORK if settings.cwd == "trial" else source,
        stdout=trial_dir / "stdout.log",
        stderr=trial_dir / "stderr.log",
        timeout_s=settings.timeout_s,
        grace_s=settings.grace_s,
    )


def _clear(settings: CommandSettings, work: Path) -> None:
    """An empty folder to work in: what an earlier attempt left would change what this one does."""
    if work.exists() and not settings.keep_work:
        shutil.rmtree(work)
    work.mkdir(exist_ok=True)


def _located(word: str, source: Path) -> str:
    """A word, or what follows the = of an option, that names a file of the source folder names it from anywhere."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{source / value}" if value and os.path.isfile(source / value) else word


def _environment(settings: CommandSettings, values: Mapping[str, Any], context: Context) -> dict[str, str]:
    variables = {f"SWEEP_{name.upper()}": str(values[name]) for name in _PASSED_ON if values.get(name) is not None}
    own = {name: fill(str(value), values) for name, value in settings.env.items()}
    path = [str(values["source_dir"]), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",  # else metrics come only when a buffer is full
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(values["port"]),
        "PET_MASTER_PORT": str(values["port"]),  # torchrun's own default is the same for every trial of a node
        "OMP_NUM_THREADS": str(max(1, context.threads // values["gpus"])),
    }
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if context.device == "cpu" else {}
    # A rank of another launcher must not be inherited: the command starts its own.
    inherited = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    return {**inherited, **given, **hidden, **variables, **own}


_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_PASSED_ON = tuple(name for name in NAMES if name != "python")


def _source_dir(settings: CommandSettings) -> Path:
    """The source folder; on a node without it, the folder that Ray has shipped the code to."""
    folder = Path(settings.source_dir or ".").absolute()
    return folder if folder.is_dir() else Path.cwd()


@contextmanager
def _trial_dir(context: Context) -> Iterator[Path]:
    """The trial's folder, or one for the moment where nothing is kept."""
    if context.trial_dir is not None:
        context.trial_dir.mkdir(parents=True, exist_ok=True)
        yield context.trial_dir.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
