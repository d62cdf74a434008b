"""Any training command as a trainable: a trial is one run of it.

The command receives its GPUs (CUDA_VISIBLE_DEVICES), a free port, a working folder and the trial's values, on its
command line and as SWEEP_* environment variables. It starts its ranks itself: a trial has one rank on each node, with
all of its GPUs there. `train` runs in each of them, and that of the first node has the results (`nodes.py`).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.metric import Target, is_higher_better
from trainables.command import process
from trainables.command.adapter import FOLDER, HOOK, THREADED, Adapter
from trainables.command.check import ANY_OF_GPUS, may_receive
from trainables.command.log_files import MetricsFile, logs_in, rows_of
from trainables.command.metrics import SPEEDS, CommandMetrics
from trainables.command.nodes import NodeEnd, Nodes, file_of, launcher_variables, place_of
from trainables.command.process import Command, CommandListener, FailureCause
from trainables.command.process_tree import CpuTimes
from trainables.command.settings import LENGTHS, NAMES, CommandSettings, fill, filled, text_of
from trainables.context import Context, UntrainedError

WORK = "work"
"""The command's working folder, within the trial's."""

_OF_A_RANK = re.compile(
    r"((LOCAL|GROUP|NODE|ROLE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|ROLE_NAME|PET_\w+|TORCHELASTIC_\w+"
    r"|OMPI_(COMM_WORLD|UNIVERSE|MCA_orte|MCA_ess)\w*|PMIX?_\w+|MPI_LOCAL\w+|MV2_COMM_WORLD_\w+|JSM_NAMESPACE_\w+"
    r"|SLURM_(?!(JOB_?ID|JOB_NAME|(JOB_)?NODELIST|TMPDIR|SUBMIT_\w+|ARRAY_\w+|CLUSTER_NAME|CONF)$)\w+"
    r"|(HOROVOD_)?(LOCAL_|CROSS_)SIZE|HOROVOD_((LOCAL_|CROSS_)?RANK|SIZE)|CROSS_RANK|MPI(RUN)?_RANK(ID)?"
    r"|(ALPS_APP|FLUX_TASK|PALS|PRTE)_\w+|MASTER_(ADDR|PORT)"
)
"""Variables by which launchers such as torchrun, Open MPI, MPICH, Slurm, Horovod and Flux tell a process its rank.

Those that identify the allocation stay: from them alone, no framework takes itself for a rank of Slurm's. Lightning
asks for SLURM_NTASKS, JAX for SLURM_PROCID, SLURM_LOCALID and SLURM_STEP_NODELIST.
"""

_OF_ALLOCATIONS = re.compile(
    r"(?:^|[\s/;&|(])(?:srun|mpirun|mpiexec(?:\.hydra)?|orterun|prterun|jsrun|aprun|flux)(?:\s|$)"
)
"""Launchers that start their ranks in the allocation of which these variables tell."""

_PASSED_ON = tuple(name for name in NAMES if name != "python")


def train(config: Mapping[str, Any], context: Context) -> None:
    """Run `config["trainable"]["argv"]`, report the rows that it prints, and summarize them.

    A stop request ends the command without an error. Raises MemoryError, DivergedError, TrialTimeoutError, CommandError
    for any other failure, and ValueError for an invalid config.
    """
    settings = CommandSettings.of(config["trainable"])
    with tempfile.TemporaryDirectory() as scratch:
        trial_dir = (context.trial_dir or Path(scratch)).absolute()
        adapter = Adapter(file_of(trial_dir, FOLDER, context.rank)) if settings.adapter == "auto" else None
        nodes = Nodes(context, adapter)
        work = trial_dir / WORK
        if work.exists() and not settings.keep_work:
            # Files of an earlier attempt would change this one. Nodes that share the folder remove them at once.
            shutil.rmtree(work, ignore_errors=nodes.count > 1)
        if not nodes.start_together():
            return
        work.mkdir(exist_ok=True)
        run = _Run(settings, config, context, trial_dir, nodes, adapter)
        end = None
        try:
            end = run.to_its_end()
        finally:
            nodes.end(end)
        if nodes.is_first:
            run.summarize(end)


class _Run:
    """One run of the command on this node."""

    def __init__(
        self,
        settings: CommandSettings,
        config: Mapping[str, Any],
        context: Context,
        trial_dir: Path,
        nodes: Nodes,
        adapter: Adapter | None,
    ) -> None:
        self._settings, self._context, self._nodes, self._adapter = settings, context, nodes, adapter
        values = {**config, **_values(settings, config, context, trial_dir)}
        # Otherwise the command may use one of several GPUs, and the number of samples in its step is unknown.
        self._knows_gpus = context.layout.devices <= 1 or may_receive(settings, ANY_OF_GPUS)
        self._batch = context.batch.global_batch_size if self._knows_gpus else None
        self._command = _command(settings, values, context, trial_dir)
        metrics = CommandMetrics(
            settings, self._batch, values["epochs"], target=Target.of(config), processes=context.layout.devices
        )
        metrics_file = self._command.cwd / fill(settings.metrics_file, values) if settings.metrics_file else None
        failure = FailureCause(settings.oom_patterns, settings.diverged_patterns)
        self._output = _Output(context, metrics, MetricsFile(metrics_file), failure, adapter, nodes)
        self._has_stopped = False

    def to_its_end(self) -> NodeEnd:
        """Run the command; return what this node knows of it. Raises the errors of `train`."""
        output, cpu = self._output, CpuTimes()
        command_exit = process.run(self._command, output, cpu)
        output.finish()
        remarks = list(command_exit.remarks)
        self._has_stopped = command_exit.status is None
        if command_exit.status is not None:
            output.failure.check(command_exit.status, self._settings.ok_exit_codes)
            if self._adapter is not None and self._adapter.is_absent(cpu.names()):
                remarks.append(
                    "a Python of the command does not load the hook, so that its steps are not counted: a wrapper sets"
                    " PYTHONPATH, or python runs with -E, -I or -S"
                )
        return NodeEnd(metrics=output.metrics, cores=cpu.cores(), remarks=remarks)

    def summarize(self, end: NodeEnd) -> None:
        """Summarize the trial once it has ended on all nodes. Raises UntrainedError."""
        settings, context, adapter, nodes = self._settings, self._context, self._adapter, self._nodes
        nodes.wait_for_ends(has_stopped=self._has_stopped)
        nodes.report_others(ended=True)
        metrics = nodes.metrics(end.metrics)
        figures = _figures(metrics, adapter, self._batch)
        # What the command itself reports comes first.
        figures = _work(metrics, adapter, settings) | figures
        if settings.cwd == "trial":
            figures = _of_logs(settings, context, self._command.cwd, figures) | figures
        workers, why = _workers(context, adapter, sorted(nodes.cores(end.cores), reverse=True))
        context.summarize(figures | ({"workers": workers} if workers is not None else {}))
        for remark in [*end.remarks, *nodes.remarks()]:
            context.remark(remark)
        if self._has_stopped:
            return
        if adapter is not None and adapter.took_no_step(found_nothing=metrics.found_nothing):
            raise UntrainedError("the command took no optimizer step")
        if why:
            context.remark(why)
        _remark(metrics, figures, context, knows_gpus=self._knows_gpus or workers is not None)
        for remark in adapter.remarks(context.batch.global_batch_size, context.lr.value) if adapter is not None else ():
            context.remark(remark)


class _Output(CommandListener):
    """The output of a command while it runs, on its way to the trial's metrics and rows."""

    def __init__(
        self,
        context: Context,
        metrics: CommandMetrics,
        file: MetricsFile,
        failure: FailureCause,
        adapter: Adapter | None,
        nodes: Nodes,
    ) -> None:
        self.metrics, self.failure = metrics, failure
        self._context, self._file, self._adapter, self._nodes = context, file, adapter, nodes
        self._reports = 0

    def on_line(self, stream: str, line: str) -> None:
        """Read a line of output, or of the metrics file."""
        self.failure.read(stream, line)
        if self._adapter is not None and line.lstrip().startswith("{"):
            self._read_adapter(now=True)
            if self._adapter.has_reported(line):
                return
        for row in self.metrics.line(line):
            self._nodes.report(row)

    def on_open_line(self, text: str) -> None:
        """Read a line that has no end yet."""
        self.metrics.open_line(text)

    def on_look(self) -> bool:
        """Read what the hook and other nodes report; return whether this node has reported since the last call."""
        self._read_adapter()
        self._nodes.read()
        self._nodes.report_others()
        reported = self.metrics.reports > self._reports
        if reported:
            self._reports = self.metrics.reports
            self._context.observe("reported")
        return reported

    def should_stop(self, *, progress: bool) -> bool:
        """Return whether the trial should stop; new lines of the metrics file are progress, too."""
        lines = self._read_file()
        return self._context.should_stop(progress=progress or lines)

    def ask_to_stop(self) -> bool:
        """Ask the processes of all nodes to stop at one step; return whether they can."""
        if self._adapter is None:
            return False
        step = self._adapter.last_step(nodes=self._nodes.count)
        # The first node chooses the step for all of them.
        if step is not None and self._nodes.is_first:
            self._adapter.stop_at(step)
            self._nodes.stop_at(step)
        return step is not None

    def finish(self) -> None:
        """Read what the command wrote last, and report the rows that are complete now."""
        self._read_adapter(now=True)
        self._read_file(ended=True)
        for row in [*self._file.rows(self.metrics), *self.metrics.last_row()]:
            self._nodes.report(row)

    def _read_file(self, *, ended: bool = False) -> bool:
        lines = list(self._file.new(ended=ended))
        for line in lines:
            self.on_line("file", line)
        return bool(lines)

    def _read_adapter(self, *, now: bool = False) -> None:
        if self._adapter is None:
            return
        counts = self._adapter.look(now=now)
        self._nodes.send_counts(counts)
        # A process that took no step has nothing to report.
        self.metrics.reports += bool(counts) and self._adapter.has_steps
        for values in self._adapter.rows():
            for row in self.metrics.row(values):
                self._nodes.report(row)


def _figures(metrics: CommandMetrics, adapter: Adapter | None, global_batch_size: int | None) -> dict[str, Any]:
    """Return the trial's metrics: what the command reports precedes what the hook counts, except by a preset.

    All times come from one clock.
    """
    counted = adapter.figures(global_batch_size) if adapter is not None else {}
    if adapter is not None:
        metrics.samples_per_step, metrics.samples = adapter.samples_per_step(global_batch_size), counted.get("samples")
        metrics.is_timed_elsewhere = "step_s" in counted
    reported = metrics.figures()
    epochs, samples_per_epoch = metrics.work().get("epochs"), metrics.samples_per_epoch
    if counted.get("rate_source") == "assumed" and epochs and samples_per_epoch:
        # What the config declares precedes what the trial's batch means.
        samples = samples_per_epoch * epochs
        counted |= {"samples": samples, "rate_source": "declared"}
        if counted.get("step_s"):
            counted["samples_per_s"] = samples / counted["steps"] / counted["step_s"]
    if metrics.is_preset and "step_s" in counted:
        return metrics.in_tokens(reported | counted)
    if set(SPEEDS) & set(reported):  # one clock for all columns
        counted = {name: value for name, value in counted.items() if name in (*LENGTHS, "rates", "loss", "n_params")}
        if "samples_per_s" in reported:
            counted["rate_source"] = metrics.rate_source
    return metrics.in_tokens(counted | reported)


def _of_logs(settings: CommandSettings, context: Context, folder: Path, figures: Mapping[str, Any]) -> dict[str, float]:
    """Return losses and accuracies that only logs in the working folder have; report their rows if there are none."""
    lacking = [name for name in settings.metrics if is_higher_better(name) is not None and name not in figures]
    if not lacking or {"val_loss", "val_accuracy"} & {*figures, *context.metrics}:
        return {}
    from_logs: dict[str, float] = {}
    for log in logs_in(folder):
        metrics = CommandMetrics(settings)
        rows = [row for values in rows_of(log) for row in metrics.row(values)]
        of_log = metrics.figures()
        figures_of_log = {name: of_log[name] for name in lacking if name in of_log}
        if not figures_of_log:
            continue
        from_logs |= figures_of_log
        context.remark(f"{', '.join(figures_of_log)}: from {log.relative_to(folder.parent)}")
        for row in rows if not context.rows else ():
            context.report(row)
    return from_logs


def _work(metrics: CommandMetrics, adapter: Adapter | None, settings: CommandSettings) -> dict[str, Any]:
    """Return the epochs that the command trained, where they are from, and whether it chooses its length itself."""
    work = metrics.work()
    counted = adapter.epochs if adapter is not None else None
    if counted is not None and "epochs" not in work:
        work = {"epochs": counted, "work_source": "counted"}
    # A command that chooses its length is only compared with the other cells.
    receives_length = may_receive(settings, (*LENGTHS, "tokens", *(f"budget.{name}" for name in (*LENGTHS, "tokens"))))
    return work if receives_length else work | {"own_length": True}


def _workers(context: Context, adapter: Adapter | None, cores: Sequence[float]) -> tuple[float | None, str]:
    """Return how many processes or GPUs trained, and why if too few; None if unknown, or if one is enough.

    Without the hook's counts, the processes that use the CPU are counted: more than their share of cores is as good.
    """
    gpus = context.layout.devices
    if gpus <= 1:
        return None, ""
    replicas = context.batch.data_parallel_size
    threads = context.threads * context.world_size
    counted, why = adapter.workers(gpus, threads, replicas=replicas) if adapter is not None else (None, "")
    if counted is not None or context.device != "cpu" or not cores:
        return counted, why
    if len(cores) >= gpus or sum(cores) > THREADED * max(1, threads // gpus):
        return gpus, ""
    return len(cores), f"{len(cores)} of {gpus} processes used the CPU while the command trained"


def _remark(metrics: CommandMetrics, figures: Mapping[str, Any], context: Context, *, knows_gpus: bool) -> None:
    """Remark what was not found in the output: a wrong pattern matches nothing, like a command that prints nothing."""
    for column in metrics.unread():
        context.remark(f"no line of the output matches trainable.metrics.{column}")
    for column, why in metrics.unclear.items():
        context.remark(f"trainable.metrics.{column}: a number was not read: {why}")
    # What is printed instead of a number, as `null`, may stand for nan.
    if metrics.unread_epoch is not None:
        context.remark(f"no metric of epoch {metrics.unread_epoch:g} was read")
    for column in ended_early(context.rows):
        context.remark(f"the last epochs have no {column}")
    if metrics.found_nothing and not set(SPEEDS) & set(figures):
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
        gpus = context.layout.devices
        remark = f"trainable.argv has no {{gpus}}: {gpus} were used only if the command takes all that it sees"
        if "step_s" in figures and "samples_per_s" not in figures:
            remark += ", so step_s gives no samples_per_s: name {gpus} there, or print samples_per_s"
        context.remark(remark)


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


def _values(settings: CommandSettings, config: Mapping[str, Any], context: Context, trial_dir: Path) -> dict[str, Any]:
    """Return the value of each of `NAMES`; None if it has none."""
    batch, lr = context.batch, context.lr
    lengths = {name: (config.get("budget") or {}).get(name) for name in LENGTHS}
    per_sample = settings.tokens_per_sample
    if (tokens := (config.get("budget") or {}).get("tokens")) is not None and per_sample:
        lengths["samples"] = round(tokens / per_sample)
    if lengths["samples"] is not None:
        # Rounded up, so that no batch size trains less than the budget.
        lengths["steps"] = math.ceil(lengths["samples"] / batch.global_batch_size)
    elif lengths["steps"] is not None:
        lengths["samples"] = lengths["steps"] * batch.global_batch_size
    # On a node without the source folder, Ray has shipped the code to the current one.
    source = Path(settings.source_dir or ".").absolute()
    return {
        **place_of(context, context.layout),
        "gpus": context.layout.devices,
        "dp": batch.data_parallel_size,
        "tp": context.layout.tensor,
        "cp": context.layout.context,
        "pp": context.layout.pipeline,
        "device_batch_size": batch.device_batch_size,
        "global_batch_size": batch.global_batch_size,
        "grad_accum_steps": batch.grad_accum_steps,
        "lr": lr.value,
        "lr_rule": lr.rule,
        "warmup_from": lr.warmup_from,
        "warmup_epochs": lr.warmup_epochs,
        "reference_batch_size": lr.reference_batch_size or batch.global_batch_size,
        "seed": context.seed,
        "threads": context.threads,
        "device": context.device.partition(":")[0],
        "trial_id": context.trial_id,
        "trial_dir": str(trial_dir),
        "source_dir": str(source if source.is_dir() else Path.cwd()),
        "python": settings.interpreter or sys.executable,
        **lengths,
        "tokens_per_batch": batch.global_batch_size * per_sample if per_sample else None,
        "tokens": lengths["samples"] * per_sample if lengths["samples"] and per_sample else None,
    }


def _command(settings: CommandSettings, values: Mapping[str, Any], context: Context, trial_dir: Path) -> Command:
    source = Path(values["source_dir"])
    words = []
    for word in filled(settings.words, values):
        # A word, or the value of an option, that names a file in the source folder gets its full path.
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        is_file = value and os.path.isfile(source / value)
        words.append(f"{option}{equals}{source / value}" if is_file else word)
    return Command(
        words=words,
        environment=_environment(settings, values, context, trial_dir),
        cwd=trial_dir / WORK if settings.cwd == "trial" else source,
        stdout=file_of(trial_dir, "stdout.log", context.rank),
        stderr=file_of(trial_dir, "stderr.log", context.rank),
        timeout_s=settings.timeout_s,
        grace_s=settings.grace_s,
    )


def _environment(
    settings: CommandSettings, values: Mapping[str, Any], context: Context, trial_dir: Path
) -> dict[str, str]:
    # The command starts its own ranks, and must not take itself for a rank of another launcher.
    is_kept = _OF_ALLOCATIONS.search(" ".join(settings.words)) is not None
    inherited = {name: value for name, value in os.environ.items() if is_kept or not _OF_A_RANK.fullmatch(name)}
    given = {
        "PYTHONPATH": _path(str(values["source_dir"]), os.environ.get("PYTHONPATH")),
        "PYTHONUNBUFFERED": "1",  # otherwise metrics arrive only when a buffer is full
        "OMP_NUM_THREADS": str(max(1, context.threads // values["gpus_per_node"])),
        **launcher_variables(values),
    }
    # Without the second one, several processes of accelerate and of Hugging Face's Trainer train apart.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"} if context.device == "cpu" else {}
    variables = {f"SWEEP_{name.upper()}": text_of(values[name]) for name in _PASSED_ON if values.get(name) is not None}
    own = {name: fill(str(value), values) for name, value in settings.env.items()}
    if settings.interpreter:  # its launchers, such as torchrun, are beside it
        given["PATH"] = _path(str(Path(settings.interpreter).parent), os.environ.get("PATH"))
    else:  # launchers are found beside this Python, too, whose environment may not be activated
        given["PATH"] = _path(os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
    environment = {**inherited, **given, **hidden, **variables, **own}
    if settings.adapter == "off":
        return environment
    return environment | {
        "SWEEP_HOOK": str(file_of(trial_dir, FOLDER, context.rank)),
        "PYTHONPATH": _path(str(HOOK), environment["PYTHONPATH"]),
    }


def _path(first: str, others: str | None) -> str:
    return os.pathsep.join(filter(None, [first, others]))
