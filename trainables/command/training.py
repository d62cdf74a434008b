"""Any training command as a trainable: a trial is one run of it.

The command receives its GPUs (CUDA_VISIBLE_DEVICES), a free port, a working folder and the trial's values, on its
command line and as SWEEP_* environment variables. It starts its ranks itself: a trial has one rank on each node, with
all of its GPUs there. `train` runs in each of them, and that of the first node has the results (`nodes.py`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeps.metric import Target, is_higher_better
from sweeps.trial import BUDGET_UNITS
from trainables.command import process
from trainables.command.check import ANY_OF_GPUS, may_receive
from trainables.command.failure import FailureCause
from trainables.command.hook_counts import THREADED, CountedTraining
from trainables.command.hook_files import FOLDER, Adapter
from trainables.command.invocation import WORK, command_of, file_of, values_of
from trainables.command.log_files import MetricsFile, logs_in, rows_of
from trainables.command.metrics import SPEEDS, CommandMetrics
from trainables.command.nodes import NodeEnd, NodeGroup
from trainables.command.output_parser import OutputParser
from trainables.command.placeholders import LENGTHS, fill
from trainables.command.process import CommandListener
from trainables.command.process_tree import CpuTimes
from trainables.command.settings import CommandSettings
from trainables.context import Context, UntrainedError

_HOW_TO_REPORT = (
    "if it trains without PyTorch, let it print lines such as 'val_accuracy: 0.91' and 'train_s: 12.3', and add"
    " \"trainable.metrics.val_accuracy='val_accuracy: ([0-9.]+)'\" \"trainable.metrics.train_s='train_s: ([0-9.]+)'\""
)


def train(config: Mapping[str, Any], context: Context) -> None:
    """Run `config["trainable"]["argv"]`, report the rows that it prints, and summarize them.

    A stop request ends the command without an error. Raises MemoryError, DivergedError, TrialTimeoutError, CommandError
    for any other failure, and ValueError for an invalid config.
    """
    settings = CommandSettings.of(config["trainable"])
    with tempfile.TemporaryDirectory() as scratch:
        trial_dir = (context.trial_dir or Path(scratch)).absolute()
        hook = file_of(trial_dir, FOLDER, context.rank)
        nodes = NodeGroup(context, Adapter(hook, is_on=settings.adapter == "auto"))
        work = trial_dir / WORK
        if work.is_dir() and not settings.keep_work:
            # Files of an earlier attempt would change this one. Nodes that share the folder remove them at once.
            shutil.rmtree(work, ignore_errors=nodes.count > 1)
        if not nodes.start_together():
            return
        work.mkdir(exist_ok=True)
        run = _CommandRun(settings, config, nodes, trial_dir)
        end = None
        try:
            end = run.to_its_end()
        finally:
            nodes.end(end)
        if nodes.is_first:
            run.summarize(end)


class _CommandRun(CommandListener):
    """One run of the command on this node, whose output becomes the trial's metrics and rows."""

    def __init__(self, settings: CommandSettings, config: Mapping[str, Any], nodes: NodeGroup, trial_dir: Path) -> None:
        self._settings, self._nodes = settings, nodes
        self._context, self._adapter = nodes.context, nodes.adapter
        context = nodes.context
        values = {**config, **values_of(settings, config, context, trial_dir)}
        # Otherwise the command may use one of several GPUs, and the number of samples in its step is unknown.
        self._knows_gpus = context.layout.devices <= 1 or may_receive(settings, ANY_OF_GPUS)
        self._batch = context.batch.global_batch_size if self._knows_gpus else None
        self._command = command_of(settings, values, context, trial_dir)
        self._reader = OutputParser(settings, values["epochs"])
        self._metrics = CommandMetrics(
            output=self._reader.output,
            settings=settings,
            global_batch_size=self._batch,
            budget_epochs=values["epochs"],
            target=Target.of(config),
            processes=context.layout.devices,
        )
        path = self._command.cwd / fill(settings.metrics_file, values) if settings.metrics_file else None
        self._file = MetricsFile(path) if path else None
        self._failure = FailureCause(settings.oom_patterns, settings.diverged_patterns)
        self._reports = 0
        self._has_stopped = False

    def on_line(self, stream: str, line: str) -> None:
        """Read a line of output, or of the metrics file."""
        self._failure.read(stream, line)
        if line.lstrip().startswith("{"):
            self._read_adapter(now=True)
            if self._adapter.has_reported(line):
                return
        for row in self._reader.line(line):
            self._nodes.report(row)

    def on_open_line(self, text: str) -> None:
        """Read a line that has no end yet."""
        self._reader.open_line(text)

    def on_look(self) -> bool:
        """Read what the hook and other nodes report; return whether this node has reported since the last call."""
        self._read_adapter()
        self._nodes.read()
        self._nodes.report_others()
        has_reported = self._reader.output.reports > self._reports
        if has_reported:
            self._reports = self._reader.output.reports
            self._context.observe("reported")
        return has_reported

    def should_stop(self, *, progress: bool) -> bool:
        """Return whether the trial should stop; new lines of the metrics file are progress, too."""
        has_lines = self._read_file()
        return self._context.should_stop(progress=progress or has_lines)

    def ask_to_stop(self) -> bool:
        """Ask the processes of all nodes to stop at one step; return whether they can."""
        step = self._adapter.last_step(nodes=self._nodes.count)
        # The first node chooses the step for all of them.
        if step is not None and self._nodes.is_first:
            self._adapter.stop_at(step)
            self._nodes.stop_at(step)
        return step is not None

    def _read_file(self, *, ended: bool = False) -> bool:
        lines = list(self._file.new(ended=ended)) if self._file else []
        for line in lines:
            self.on_line("file", line)
        return bool(lines)

    def _read_adapter(self, *, now: bool = False) -> None:
        counts = self._adapter.look(now=now)
        self._nodes.send_counts(counts)
        # A process that took no step has nothing to report.
        self._reader.output.reports += bool(counts) and self._adapter.has_steps
        for values in self._adapter.rows():
            for row in self._reader.row(values):
                self._nodes.report(row)

    def to_its_end(self) -> NodeEnd:
        """Run the command; return what this node knows of it. Raises the errors of `train`."""
        cpu = CpuTimes()
        command_exit = process.run(self._command, self, cpu)
        self._read_adapter(now=True)
        self._read_file(ended=True)
        whole: list[dict[str, Any]] = []
        unreadable: ValueError | None = None
        try:
            whole = list(self._file.rows(self._reader)) if self._file else []
        except ValueError as error:  # a command that fails or stops need not have written its file
            unreadable = error
        for row in [*whole, *self._reader.last_row()]:
            self._nodes.report(row)
        remarks = list(command_exit.remarks)
        self._has_stopped = command_exit.status is None
        if command_exit.status is not None:
            self._failure.check(command_exit.status, self._settings.ok_exit_codes)
            if unreadable:
                raise unreadable
            if self._adapter.is_absent(cpu.names()):
                remarks.append(
                    "a Python of the command does not load the hook, so that its steps are not counted: a wrapper sets"
                    " PYTHONPATH, or python runs with -E, -I or -S"
                )
        return NodeEnd(metrics=self._metrics, cores=cpu.cores(), remarks=remarks)

    def summarize(self, end: NodeEnd) -> None:
        """Summarize the trial once it has ended on all nodes. Raises UntrainedError."""
        context, nodes = self._context, self._nodes
        nodes.wait_for_ends(has_stopped=self._has_stopped)
        nodes.report_others(ended=True)
        whole = nodes.whole(end)
        training = self._adapter.training()
        counted = training.figures(self._batch)
        metrics = replace(
            whole.metrics,
            samples_per_step=training.samples_per_step(self._batch),
            samples=counted.get("samples"),
            is_timed_elsewhere="step_s" in counted,
        )
        # What the command itself reports comes first.
        figures = self._work(metrics, training) | self._figures(metrics, counted)
        if self._settings.cwd == "trial":
            figures = self._of_logs(figures) | figures
        workers, why = self._workers(training, whole.cores)
        context.summarize(figures | ({"workers": workers} if workers is not None else {}))
        for remark in whole.remarks:
            context.remark(remark)
        if self._has_stopped:
            return
        if training.took_no_step(found_nothing=metrics.output.found_nothing):
            raise UntrainedError(f"the command took no optimizer step that PyTorch counts: {_HOW_TO_REPORT}")
        knows_gpus = self._knows_gpus or workers is not None
        of_hook = training.remarks(context.batch.global_batch_size, context.lr.value)
        for remark in [*filter(None, [why]), *_remarks(metrics, figures, context, knows_gpus=knows_gpus), *of_hook]:
            context.remark(remark)

    def _figures(self, metrics: CommandMetrics, counted: dict[str, Any]) -> dict[str, Any]:
        """Return the trial's figures: those of the output, and those that the hook has counted."""
        reported = metrics.figures()
        if counted.get("rate_source") == "assumed":
            counted = counted | _declared(counted, metrics)
        if self._settings.is_preset and "step_s" in counted:
            figures = reported | counted
        else:
            figures = _where_lacking(counted, reported, metrics.rate_source) | reported
        return metrics.in_tokens(figures)

    def _of_logs(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Return losses and accuracies that only logs in the working folder have; also report rows if none were."""
        context, folder = self._context, self._command.cwd
        columns = [name for name in self._settings.metrics if is_higher_better(name) is not None]
        lacking = [name for name in columns if name not in figures]
        if not lacking or {"val_loss", "val_accuracy"} & {*figures, *context.metrics}:
            return {}
        from_logs: dict[str, float] = {}
        for log in logs_in(folder):
            reader = OutputParser(self._settings)
            rows = [row for values in rows_of(log) for row in reader.row(values)]
            of_log = CommandMetrics(output=reader.output, settings=self._settings).figures()
            figures_of_log = {name: of_log[name] for name in lacking if name in of_log}
            if not figures_of_log:
                continue
            from_logs |= figures_of_log
            context.remark(f"{', '.join(figures_of_log)}: from {log.relative_to(folder.parent)}")
            for row in rows if not context.rows else ():
                context.report(row)
        return from_logs

    def _work(self, metrics: CommandMetrics, training: CountedTraining) -> dict[str, Any]:
        """Return the epochs that the command trained, their source, and whether it chooses its length itself."""
        work = metrics.work()
        if training.epochs is not None and "epochs" not in work:
            work = {"epochs": training.epochs, "work_source": "counted"}
        # A command that chooses its length is only compared with the other cells.
        lengths = (*BUDGET_UNITS, *(f"budget.{unit}" for unit in BUDGET_UNITS))
        receives_length = may_receive(self._settings, lengths)
        return work if receives_length else work | {"own_length": True}

    def _workers(self, training: CountedTraining, cores: Sequence[float]) -> tuple[float | None, str]:
        """Return how many processes or GPUs trained, and why if too few; None if unknown, or if one is enough."""
        context = self._context
        gpus = context.layout.devices
        if gpus <= 1:
            return None, ""
        threads = context.threads * context.world_size
        counted, why = training.workers(gpus, threads, replicas=context.batch.data_parallel_size)
        if counted is not None or context.device != "cpu" or not cores:
            return counted, why
        # Without the hook's counts, the processes that use the CPU count, or more than their share of cores.
        if len(cores) >= gpus or sum(cores) > THREADED * max(1, threads // gpus):
            return gpus, ""
        return len(cores), f"{len(cores)} of {gpus} processes used the CPU while the command trained"


def _declared(counted: Mapping[str, Any], metrics: CommandMetrics) -> dict[str, Any]:
    """Return the samples that the config declares, which precede what the trial's batch means; {} if it declares none.

    They change the rate of the steps that the hook has counted.
    """
    epochs, samples_per_epoch = metrics.work().get("epochs"), metrics.settings.samples_per_epoch
    if not (epochs and samples_per_epoch):
        return {}
    samples = samples_per_epoch * epochs
    rate = {"samples_per_s": samples / counted["steps"] / counted["step_s"]} if counted.get("step_s") else {}
    return {"samples": samples, "rate_source": "declared", **rate}


def _where_lacking(counted: Mapping[str, Any], reported: Mapping[str, Any], rate_source: str) -> dict[str, Any]:
    """Return the counted figures that may stand beside the reported ones."""
    if not set(SPEEDS) & set(reported):
        return dict(counted)
    # One clock for all columns: beside a reported speed there are no counted times.
    untimed = (*LENGTHS, "rates", "loss", "n_params")
    beside = {name: value for name, value in counted.items() if name in untimed}
    return beside | ({"rate_source": rate_source} if "samples_per_s" in reported else {})


def _remarks(
    metrics: CommandMetrics, figures: Mapping[str, Any], context: Context, *, knows_gpus: bool
) -> Iterator[str]:
    """Yield what was not found in the output: a wrong pattern matches nothing, like a command that prints nothing."""
    yield from (f"no line of the output matches trainable.metrics.{column}" for column in metrics.unread())
    yield from (
        f"trainable.metrics.{column}: a number was not read: {why}" for column, why in metrics.output.unclear.items()
    )
    deciding = [name for name in {*figures, *context.metrics} - {"loss"} if is_higher_better(name) is not None]
    if metrics.output.likely.declaration and not deciding:
        yield f"no metric to choose by was read; the output has one: {metrics.output.likely.declaration}"
    # What is printed instead of a number, as `null`, may stand for nan.
    if metrics.output.unread_epoch is not None:
        yield f"no metric of epoch {metrics.output.unread_epoch:g} was read"
    yield from (f"the last epochs have no {column}" for column in ended_early(context.rows))
    has_speed = bool(set(SPEEDS) & set(figures))
    if metrics.output.found_nothing and not has_speed:
        yield f"no figure was found in trials/{context.trial_id}/stdout.log: {_HOW_TO_REPORT}"
    if metrics.between_lines:
        yield "no line reports a time: epoch_s is the time between epochs' lines, including evaluation"
    yield from metrics.output.steps.remarks()
    # A window without steps says that the training was too short.
    if not has_speed and not metrics.output.found_nothing and "window_steps" not in figures:
        yield "nothing reports how long an epoch takes: see trainable.metrics.epoch_s, trainable.epoch_pattern"
    if "epoch_s" in figures and "samples_per_s" not in figures:
        yield "without trainable.samples_per_epoch there are no samples_per_s, and so no speed-up"
    if not knows_gpus:
        # A script for one GPU is as fast with several, and that would look like a finding about them.
        gpus, lacks_rate = context.layout.devices, "step_s" in figures and "samples_per_s" not in figures
        hint = ", so step_s gives no samples_per_s: name {gpus} there, or print samples_per_s" if lacks_rate else ""
        yield f"trainable.argv has no {{gpus}}: {gpus} were used only if the command takes all that it sees{hint}"


def ended_early(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the losses and accuracies that the first two epochs or more have, and the later ones have not."""
    # An epoch may have several rows, such as one of its training and one of its evaluation.
    by_epoch: dict[object, set[str]] = {}
    for place, row in enumerate(rows):
        by_epoch.setdefault(row.get("epoch", f"row {place}"), set()).update(row)
    epochs = list(by_epoch.values())
    columns = [name for name in (rows[0] if rows else {}) if is_higher_better(name) is not None]
    counts = {name: sum(name in epoch for epoch in epochs) for name in columns}
    return [name for name, n in counts.items() if 2 <= n < len(epochs) and all(name in epoch for epoch in epochs[:n])]
