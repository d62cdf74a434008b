"""The forecasts of a sweep: from its journal, and from rehearsals, which are kept in a file beside the journal.

Child processes rehearse, so that nothing here imports torch. All ranks of a trial rehearse together if this machine has
a device for each; on GPUs rank 0 rehearses alone otherwise, and its communication is estimated.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from orchestrator.config.settings import Settings
from orchestrator.plan.estimates import DISTURBED, REHEARSED, SHAPES, Forecast, Network
from orchestrator.plan.journal_forecasts import FEWER_GPUS, FROM_JOURNAL, Measured
from orchestrator.plan.rehearsals import Rehearsal, Rehearsals
from orchestrator.schedule.cluster import Node, ranks_that_fit
from orchestrator.store.files import read_regular, write_whole
from orchestrator.telemetry.cpu import this_machine
from orchestrator.telemetry.foreign_load import census_here, load_since
from orchestrator.telemetry.timing_gate import FOREIGN_CPU
from sweeps.errors import ConfigError
from sweeps.gpus import SHAPES_OF
from sweeps.identity import LOOPS
from sweeps.ports import free_port
from sweeps.printable import printable_line
from sweeps.status import Status
from sweeps.trial import ALONE, RankRequest, TrialSpec

REHEARSE = "trainables.supervised.rehearsal:rehearse"
REHEARSE_SHAPES = "trainables.supervised.shape_rehearsal:rehearse"
_MODULE = REHEARSE.partition(":")[0]


def machine(nodes: Iterable[Node]) -> str:
    """Return the kind of machine that rehearsals are valid for: its GPUs, else its number of cores."""
    # A head node without GPUs is part of many clusters, and no trial computes there.
    node = max(nodes, key=lambda node: (node.gpus, node.cpus), default=None)
    if node is None:
        return "unknown"
    return node.gpu_type or "GPU" if node.gpus else f"{node.cpus:g} cores"


def stored(file: Path, nodes: Iterable[Node]) -> Rehearsals:
    """Return the rehearsals of a file that were made on a machine like these nodes. Raises ConfigError."""
    try:
        content = json.loads(read_regular(file))
        if content["machine"] != machine(nodes):
            return Rehearsals()
        return Rehearsals(Rehearsal.read(rehearsal) for rehearsal in content["rehearsals"])
    except FileNotFoundError:
        return Rehearsals()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError([f"{file} cannot be read ({error}): delete it, and run mode=forecast again"]) from error


def shipped(nodes: Iterable[Node]) -> Rehearsals:
    """Return rehearsals of the shipped sweeps, scaled by the speed of this machine's cores; none for GPUs."""
    if any(node.gpus for node in nodes):
        return Rehearsals()
    content = json.loads((Path(__file__).parent / "shipped.json").read_bytes())
    # Only roughly right, and therefore its interval is wider: see `ELSEWHERE`.
    factor = pace_s() / content["pace_s"]
    return Rehearsals(Rehearsal.read(rehearsal).scaled(factor) for rehearsal in content["rehearsals"])


def pace_s() -> float:
    """Return the seconds of a fixed piece of work on one core: the best of a few, as other programs only slow it."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        sum(number * number for number in range(20_000))
        times.append(time.perf_counter() - started)
    return min(times)


def store(file: Path, rehearsals: Rehearsals, nodes: Iterable[Node]) -> None:
    """Write the rehearsals to a file, without failed ones, which are tried again."""
    # Out of memory is an answer that lasts; another failure may be repaired by then.
    kept = [asdict(rehearsal) for rehearsal in rehearsals if rehearsal.status in (Status.OK, Status.OOM)]
    content = {"machine": machine(nodes), "rehearsals": kept}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(content, indent=1).encode() + b"\n")


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """The forecasts of trials: from their cell in the journal, else from fewer GPUs there, else from rehearsals."""

    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    measured: Measured = field(default_factory=Measured)
    nodes: Sequence[Node] = ()
    settings: Settings = field(default_factory=Settings)
    _made: dict[str, Forecast | None] = field(default_factory=dict)
    """The forecasts by cell, because a schedule is simulated with many questions."""

    def forecast(self, trial: TrialSpec) -> Forecast | None:
        """Return the forecast of a trial; None if nothing is known."""
        if trial.cell_id not in self._made:
            forecast = self._forecast(trial)
            if forecast and forecast.samples_per_s and self.settings.report.target is not None:
                samples = self.measured.samples_to_target(trial)
                target_s = samples.over(forecast.samples_per_s) if samples else None
                forecast = replace(forecast, target_s=target_s)
            self._made[trial.cell_id] = forecast
        return self._made[trial.cell_id]

    def _forecast(self, trial: TrialSpec) -> Forecast | None:
        # What the cell itself has measured is better than anything derived.
        own = self.measured.of_cell(trial)
        if own and own.step_s:
            return own
        derived = self._derived(trial)
        if own is None or derived is None or derived.step_s is None:
            return own or derived
        # No timing of the cell is valid: only its memory is known better.
        return replace(derived, fits=own.fits, why="", peak_memory_gb=own.peak_memory_gb or derived.peak_memory_gb)

    def _derived(self, trial: TrialSpec) -> Forecast | None:
        """Return the forecast from rehearsals and from other cells."""
        network = self._network(trial)
        rehearsed = self.rehearsals.forecast(trial, network)
        extrapolated = self.measured.of_line(trial, network)
        # A rehearsal has seen this model at this size; an extrapolation without a step says only why it failed. What
        # cannot run has no speed.
        if extrapolated is None or (rehearsed and (extrapolated.step_s is None or rehearsed.step_s is None)):
            return rehearsed
        if rehearsed is None:
            return extrapolated
        # Speeds of real trials are better than rehearsed ones, but only a rehearsal tells the memory.
        of_memory = ("fits", "why", "peak_memory_gb", "parts_gb")
        return replace(extrapolated, **{name: getattr(rehearsed, name) for name in of_memory})

    def _network(self, trial: TrialSpec) -> Network:
        """Return the nodes that a trial takes, and the bandwidth between them."""
        gang, gpus_per_node = trial.gang, self.settings.cluster.gpus_per_node
        if gang.nodes:
            nodes = gang.nodes
        elif trial.device == "cuda" and gpus_per_node:
            nodes = math.ceil(gang.gpus / gpus_per_node)
        else:
            ranks_per_node = max((ranks_that_fit(gang, node) for node in self.nodes), default=0)
            nodes = math.ceil(gang.ranks / ranks_per_node) if ranks_per_node else 1
        return Network(node_count=nodes, bandwidth_gb_s=self.settings.forecast.bandwidth_gb_s)

    def why_not(self, trial: TrialSpec) -> str:
        """Return the figures that say that a trial does not fit; empty if it may run."""
        forecast = self.forecast(trial)
        if self.settings.forecast.try_anyway or forecast is None or forecast.fits != "no":
            return ""
        # Only a forecast of memory may be wrong.
        hint = "" if self.rehearsals.more_than_samples(trial) else " (forecast.try_anyway=true runs it)"
        return f"forecast: {forecast.why}{hint}"

    def is_for(self, here: Node) -> bool:
        """Return whether this machine has GPUs like the nodes'."""
        return here.gpus > 0 and machine([here]) == machine(self.nodes)

    def to_rehearse(self, trials: Sequence[TrialSpec], here: Node) -> list[TrialSpec]:
        """Return the trials whose figures come from rehearsals on this machine."""
        return [trial for trial in trials if self._is_rehearsed(trial, here)]

    def _is_rehearsed(self, trial: TrialSpec, here: Node) -> bool:
        if not can_rehearse(trial) or trial.cell_id in self.measured.cells:
            return False
        if self.settings.shapes_of:
            return trial.device == "cuda"
        # On CPUs ranks slow each other down: they rehearse together, on a core or more each.
        if trial.device == "cpu" and trial.gang.ranks > here.cpus:
            return False
        # The memory of a GPU is known from rehearsals only.
        if trial.device == "cuda" and self.is_for(here):
            return True
        forecast = self.forecast(trial)
        return forecast is None or forecast.step_s is None or forecast.source not in (FROM_JOURNAL, FEWER_GPUS)

    def is_incomplete(self, trials: Sequence[TrialSpec]) -> bool:
        """Return whether rehearsals of these trials have begun here, and some are missing or were disturbed."""
        has_begun = any(rehearsal.source in (REHEARSED, DISTURBED) for rehearsal in self.rehearsals)
        return has_begun and self.rehearsals.undisturbed.next(self.to_rehearse(trials, this_machine())) is not None

    def duration_s(self, trial: TrialSpec) -> float | None:
        """Return the seconds of a trial; None if unknown."""
        forecast = self.forecast(trial)
        return forecast.duration_s.value if forecast and forecast.duration_s else None


NO_FORECASTS = Forecasts()


def axes_in_names(trials: Iterable[TrialSpec]) -> list[str]:
    """Return the further axes in which the trials differ and that change their figures."""
    from orchestrator.text.cell_labels import differing_axes  # imports pandas, which mode=plan does not need

    return [axis for axis in differing_axes(trial.axes for trial in trials) if axis != "lr_multiplier"]


def name_of(trial: TrialSpec, axes: Sequence[str]) -> str:
    """Return the label of a trial's cell with these axes, without its rule, which hardly changes its figures."""
    from orchestrator.text.cell_labels import cell_label  # imports pandas, which mode=plan does not need

    columns = {column: value for column, value in {**trial.columns, **trial.axes}.items() if column != "lr_rule"}
    return printable_line(cell_label(columns, axes))


def can_rehearse(trial: TrialSpec) -> bool:
    """Return whether a trial can be rehearsed: the project's own loop, with one device for each rank."""
    return trial.trainable == LOOPS[0] and trial.gang.devices_per_rank == 1


def rehearsal_of(trial: TrialSpec, shapes_of: str | None = None) -> TrialSpec:
    """Return the rehearsal of a trial, on its devices or from its shapes for this GPU."""
    if shapes_of is None:
        return replace(trial, trainable=REHEARSE)
    config = {**trial.config, SHAPES_OF: shapes_of}
    return replace(trial, trainable=REHEARSE_SHAPES, device="cpu", config=config)


def rehearse_missing(
    trials: Sequence[TrialSpec], forecasts: Forecasts, file: Path, say: Callable[[str], None]
) -> list[str]:
    """Rehearse what the forecasts of these trials lack on this machine, and keep all rehearsals in the file.

    `say` is called with a line before each rehearsal. Return a line for each that failed. Raises ConfigError if this
    machine has no GPU like the nodes', or if a process ends; its output is then beside the file.
    """
    here, nodes, shapes_of = this_machine(), forecasts.nodes, forecasts.settings.shapes_of
    # Rehearsals that other programs disturbed are made again.
    rehearsals = stored(file, nodes).undisturbed
    lacking, axes = forecasts.to_rehearse(trials, here), axes_in_names(trials)
    if any(trial.device == "cuda" for trial in lacking) and not (shapes_of or forecasts.is_for(here)):
        there = f"this machine has {machine([here])}, and the trials run on {machine(nodes)} (or set forecast.device)"
        raise ConfigError([f"mode=forecast rehearses trials on a GPU like theirs: {there}"])
    # The processes serve all rehearsals: starting them and loading torch takes longer than most.
    processes: RehearsalProcesses | None = None
    failures: list[str] = []
    try:
        while trial := rehearsals.next(lacking):
            say(f"rehearsing {name_of(trial, axes)} …")
            file.parent.mkdir(parents=True, exist_ok=True)
            # Ranks slow each other down, by sharing cores or by communication: together they show how much.
            is_alone = shapes_of or (trial.device == "cuda" and trial.gang.ranks > here.gpus)
            ranks = 1 if is_alone else trial.gang.ranks
            if processes is None or processes.size < ranks:
                if processes:
                    processes.close()
                processes = RehearsalProcesses(ranks, file.with_suffix(".log"))
            before = census_here()
            answer = processes.rehearse(trial, ranks, shapes_of)
            source = SHAPES if shapes_of else DISTURBED if is_disturbed(answer, load_since(before)[0]) else REHEARSED
            rehearsals.add(Rehearsal.of(trial, answer, source))
            # After each one: rehearsals of a large sweep take minutes, and may be interrupted.
            store(file, rehearsals, nodes)
            if answer["status"] not in (Status.OK, Status.OOM):
                failures.append(f"{name_of(trial, axes)} could not be rehearsed: {answer['note']}")
            if answer["status"] != Status.OK and ranks > 1:
                processes.close()  # the other ranks still wait for the one that failed
                processes = None
    finally:
        if processes:
            processes.close()
    return failures


def is_disturbed(answer: Mapping[str, Any], foreign_cpu: float) -> bool:
    """Return whether other programs, which used this share of the cores' time, may have slowed a rehearsal down."""
    if answer["status"] == Status.OOM:  # of its memory nothing is disturbed
        return False
    step_s, device_s = (answer["figures"].get(name, 0.0) for name in ("step_s", "device_step_s"))
    # A busy host cannot make the work of a GPU longer, only the launches beside it. On CPUs the host does all the work.
    of_host = 1 - device_s / step_s if step_s and "device_gb" in answer["figures"] else 1.0
    return foreign_cpu * of_host > FOREIGN_CPU


class RehearsalProcesses:
    """Processes that rehearse trials, one for each rank."""

    def __init__(self, ranks: int, log: Path) -> None:
        self.size, self._log = ranks, log
        self._output = log.open("ab")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ends: list[Connection] = []  # this process's ends of the sockets to the others
        for rank in range(ranks):
            here, there = Pipe()
            with there:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", _MODULE, str(there.fileno())],
                        env={**os.environ, **_own_gpu(rank)},
                        pass_fds=[there.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=self._output,
                        stderr=self._output,
                    )
                )
            self._ends.append(here)

    def rehearse(self, trial: TrialSpec, ranks: int, shapes_of: str | None = None) -> Mapping[str, Any]:
        """Return the answer of rank 0, or of the first rank that fails; `shapes_of`: see `rehearsal_of`."""
        meeting = f"tcp://127.0.0.1:{free_port()}" if ranks > 1 else ALONE
        # Without a folder: a rehearsal leaves nothing behind, and continues from no checkpoint.
        request = RankRequest(trial=rehearsal_of(trial, shapes_of), rendezvous=meeting, gang_id=meeting)
        pool = ThreadPoolExecutor(ranks)
        # All ranks at once, because they meet in the first collective.
        answers = [pool.submit(self._answer, replace(request, rank=rank)) for rank in range(ranks)]
        done, waiting = wait(answers, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=False)
        failed = next((future.exception() for future in done if future.exception()), None)
        if isinstance(failed, RankFailedError):
            return failed.answer
        if failed:
            raise failed
        return answers[0].result()

    def _answer(self, request: RankRequest) -> Mapping[str, Any]:
        end = self._ends[request.rank]
        try:
            end.send(request)
            answer: Mapping[str, Any] = end.recv()
        except (EOFError, OSError) as error:
            status = self._processes[request.rank].wait()
            raise ConfigError([f"a rehearsal's process ended with status {status}: see {self._log}"]) from error
        if answer["status"] != Status.OK:
            raise RankFailedError(answer)
        return answer

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
        for end in self._ends:
            end.close()
        self._output.close()


def _own_gpu(rank: int) -> dict[str, str]:
    """Return the variable that leaves a process the GPU of its rank, among those that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # Without a restriction a number that no GPU has means none, as on machines without GPUs.
    gpus = [str(rank)] if visible is None else visible.split(",")[rank : rank + 1]
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}


class RankFailedError(Exception):
    """A rank's rehearsal ended without figures."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(answer["note"])
        self.answer = answer
