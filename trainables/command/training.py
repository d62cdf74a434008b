"""Any training command as a trainable: a trial is one run of it.

The command receives its GPUs (CUDA_VISIBLE_DEVICES), a free port, a working folder and the trial's values, on its
command line and as SWEEP_* environment variables. It starts its ranks itself, so the trial is one rank with all GPUs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainables.command import process
from trainables.command.check import ANY_OF_GPUS, may_receive
from trainables.command.metrics import SPEEDS, CommandMetrics, MetricsFile
from trainables.command.process import Command, FailureCause
from trainables.command.settings import LENGTHS, NAMES, CommandSettings, fill
from trainables.context import Context

WORK = "work"
"""The command's working folder, within the trial's."""

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_PASSED_ON = tuple(name for name in NAMES if name != "python")


def train(config: Mapping[str, Any], context: Context) -> None:
    """Run `config["trainable"]["argv"]`, report the rows that it prints, and summarize them.

    A stop request ends the command without an error. Raises MemoryError, DivergedError, TrialTimeoutError, CommandError
    for any other failure, and ValueError for an invalid config.
    """
    settings = CommandSettings.of(config["trainable"])
    with tempfile.TemporaryDirectory() as scratch:
        trial_dir = (context.trial_dir or Path(scratch)).absolute()
        values = {**config, **_values(settings, config, context, trial_dir)}
        work = trial_dir / WORK
        if work.exists() and not settings.keep_work:
            shutil.rmtree(work)  # files of an earlier attempt would change this one
        work.mkdir(exist_ok=True)
        # Otherwise the command may use one of several GPUs, and the number of samples in its step is unknown.
        knows_gpus = context.batch.devices_per_rank <= 1 or may_receive(settings, ANY_OF_GPUS)
        metrics = CommandMetrics(settings, context.batch.global_batch_size if knows_gpus else None, values["epochs"])
        failure = FailureCause(settings.oom_patterns, settings.diverged_patterns)
        command = _command(settings, values, context, trial_dir)
        file = MetricsFile(command.cwd / fill(settings.metrics_file, values) if settings.metrics_file else None)

        def on_line(stream: str, line: str) -> None:
            failure.read(stream, line)
            for row in metrics.line(line):
                context.report(row)

        def should_stop(*, progress: bool) -> bool:
            lines = list(file.new())
            for line in lines:
                on_line("file", line)
            return context.should_stop(progress=progress or bool(lines))

        exit_code = process.run(command, on_line, should_stop)
        for line in file.new():
            on_line("file", line)
        for row in [*file.rows(metrics), *metrics.last_row()]:
            context.report(row)
        context.summarize(metrics.figures())
        if exit_code is not None:
            failure.check(exit_code, settings.ok_exit_codes)
            _remark(metrics, context, knows_gpus=knows_gpus)


def _remark(metrics: CommandMetrics, context: Context, *, knows_gpus: bool) -> None:
    """Remark what was not found in the output: a wrong pattern matches nothing, like a command that prints nothing."""
    figures = metrics.figures()
    for column in metrics.unread():
        context.remark(f"no line of the output matches trainable.metrics.{column}")
    if metrics.found_nothing:
        context.remark(
            f"no figure was found in the output: see trials/{context.trial_id}/stdout.log, trainable.metrics"
        )
    if metrics.between_lines:
        context.remark("no line reports a time: epoch_s is the time between epochs' lines, including evaluation")
    if remark := metrics.remark_on_steps:
        context.remark(remark)
    if not set(SPEEDS) & set(figures) and not metrics.found_nothing:
        context.remark(
            "nothing reports how long an epoch takes: see trainable.metrics.epoch_s, trainable.epoch_pattern"
        )
    if "epoch_s" in figures and "samples_per_s" not in figures:
        context.remark("without trainable.samples_per_epoch there are no samples_per_s, and so no speed-up")
    if not knows_gpus:
        # A script for one GPU is as fast with several, and that would look like a finding about them.
        gpus = context.batch.devices_per_rank
        remark = f"trainable.argv has no {{gpus}}: {gpus} were used only if the command takes all that it sees"
        if "step_s" in figures and "samples_per_s" not in figures:
            remark += ", so step_s gives no samples_per_s: name {gpus} there, or print samples_per_s"
        context.remark(remark)


def _values(settings: CommandSettings, config: Mapping[str, Any], context: Context, trial_dir: Path) -> dict[str, Any]:
    """Return the value of each of `NAMES`; None if it has none."""
    batch, lr = context.batch, context.lr
    lengths = {name: (config.get("budget") or {}).get(name) for name in LENGTHS}
    if lengths["samples"] is not None:
        lengths["steps"] = max(1, round(lengths["samples"] / batch.global_batch_size))
    elif lengths["steps"] is not None:
        lengths["samples"] = lengths["steps"] * batch.global_batch_size
    # On a node without the source folder, Ray has shipped the code to the current one.
    source = Path(settings.source_dir or ".").absolute()
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
        "port": process.free_port(),
        "threads": context.threads,
        "device": context.device.partition(":")[0],
        "trial_id": context.trial_id,
        "trial_dir": str(trial_dir),
        "source_dir": str(source if source.is_dir() else Path.cwd()),
        "python": sys.executable,
        **lengths,
    }


def _command(settings: CommandSettings, values: Mapping[str, Any], context: Context, trial_dir: Path) -> Command:
    source = Path(values["source_dir"])
    words = []
    for word in (fill(each, values) for each in settings.words):
        # A word, or the value of an option, that names a file in the source folder gets its full path.
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        is_file = value and os.path.isfile(source / value)
        words.append(f"{option}{equals}{source / value}" if is_file else word)
    return Command(
        words=words,
        environment=_environment(settings, values, context),
        cwd=trial_dir / WORK if settings.cwd == "trial" else source,
        stdout=trial_dir / "stdout.log",
        stderr=trial_dir / "stderr.log",
        timeout_s=settings.timeout_s,
        grace_s=settings.grace_s,
    )


def _environment(settings: CommandSettings, values: Mapping[str, Any], context: Context) -> dict[str, str]:
    # The command starts its own ranks, and must not take itself for a rank of another launcher.
    inherited = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    path = [str(values["source_dir"]), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",  # otherwise metrics arrive only when a buffer is full
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(values["port"]),
        "PET_MASTER_PORT": str(values["port"]),  # torchrun's default is the same for every trial of a node
        "OMP_NUM_THREADS": str(max(1, context.threads // values["gpus"])),
    }
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if context.device == "cpu" else {}
    variables = {f"SWEEP_{name.upper()}": str(values[name]) for name in _PASSED_ON if values.get(name) is not None}
    own = {name: fill(str(value), values) for name, value in settings.env.items()}
    return {**inherited, **given, **hidden, **variables, **own}
