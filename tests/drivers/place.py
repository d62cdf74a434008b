"""A user's folder with code and configs, in which the orchestrator is started."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.drivers.forked import ROOT, Forked

TRAINING = '''
"""Appends a line to a file outside the results when it starts, and one when it is done: what really ran.

Where HOLD_AFTER says how many trials may run, those behind them wait until they are to stop.
"""
import os
import time

from trainables.context import DivergedError


def note(what, context):
    with open(os.environ["EXECUTIONS"], "a") as file:
        file.write(f"{what} {context.trial_id}\\n")


def train(config, context):
    note("began", context)
    with open(os.environ["EXECUTIONS"]) as file:
        held = file.read().count("began ") > int(os.environ.get("HOLD_AFTER", 1_000_000))
    while held and not context.should_stop():
        time.sleep(0.01)
    pause = config["trainable"]["pause_s"]
    for epoch in (1, 2):
        end = time.monotonic() + pause / 2
        while time.monotonic() < end:
            if context.should_stop():
                return
            time.sleep(min(0.01, pause))
        context.report({"epoch": epoch, "loss": 1 / epoch, "val_accuracy": 1 - 1 / (context.seed + 2)})
    if config["trainable"]["breaks"] == context.seed:
        raise RuntimeError("this seed breaks")
    if config["trainable"]["diverges"] == context.seed:
        raise DivergedError("loss is nan")
    speed = 100.0 * context.batch.global_batch_size ** 0.5
    context.summarize({"samples_per_s": speed, "accuracy": 0.9, "val_accuracy": 0.9, "epoch_s": 1.0, "train_s": 2.0})
    note("done", context)
'''

CONFIG = """
_target_: traced_training:train
lr: 0.1
reference_batch_size: 8
pause_s: 0
breaks: null
diverges: null
"""

SWEEP = """
# @package _global_
defaults:
  - override /trainable: traced
sweep:
  name: traced
  axes: {gpus: [1], device_batch_size: [8, 16], lr_rule: [none, linear], seed: [0, 1, 2]}
rerun_invalid: 0   # on a busy machine, a trial that is timed again would count as a further execution
trusted_modules: [traced_training]
"""

SMALL = ("sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0,1,2,3]", "workers=warm")
"""Four trials of one cell, by the same processes."""

Started = Forked | subprocess.Popen[str]


class Place:
    """A folder; `always` are arguments of every command."""

    def __init__(self, folder: Path, *always: str) -> None:
        self.folder = folder
        self.executions = folder / "executions.txt"
        self._always = always
        for name, text in (
            ("traced_training.py", TRAINING),
            ("my/trainable/traced.yaml", CONFIG),
            ("my/sweep/traced.yaml", SWEEP),
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, *arguments: str, **environment: str) -> Forked:
        """Start a driver; one that uses Ray needs a separate process (`start_afresh`)."""
        return Forked(self.command(arguments), self.folder, self.environment(environment))

    def start_afresh(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a driver as a shell does, with a process group for itself."""
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *self.command(arguments)],
            cwd=self.folder,
            env=self.environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=180)
        assert process.returncode is not None
        return process.returncode, out, err

    def command(self, arguments: tuple[str, ...]) -> list[str]:
        given = [*self._always, *arguments]
        backend = [] if any(word.startswith("backend=") for word in given) else ["backend=inprocess"]
        return [*backend, f"hydra.searchpath=[file://{self.folder}/my]", *given]

    def environment(self, further: dict[str, str]) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{ROOT}:{self.folder}", "EXECUTIONS": str(self.executions)} | further

    def ran(self, what: str = "began") -> list[str]:
        """Return trial ids in the order in which they began, or were done."""
        lines = self.executions.read_text().splitlines() if self.executions.exists() else []
        return [line.split()[1] for line in lines if line.startswith(what + " ")]

    @property
    def results(self) -> Path:
        return self.folder / "results" / "traced"

    def journal(self) -> list[dict[str, Any]]:
        """Return the records, from the journal's bytes and not through the product's reader."""
        path = self.results / "journal.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def finished(self) -> list[str]:
        """Return the trials with an acknowledged end."""
        return [record["value"]["trial_id"] for record in self.journal() if record["kind"] == "finished"]


class Prepared(Place):
    """More results of the same code and config, whose drivers start at once."""

    def __init__(self, code: Place, folder: Path) -> None:
        self.folder, self._code = folder, code
        self.executions = folder / "executions.txt"
        folder.mkdir()

    def start(self, *arguments: str, **environment: str) -> Forked:
        given, variables = self._code.command(arguments), self._code.environment(environment)
        return Forked(given, self._code.folder, variables | {"EXECUTIONS": str(self.executions)}, self.results)


def wait_for(
    condition: Callable[[], object], process: "Started | subprocess.Popen[str]", at_most_s: float = 300.0
) -> None:
    """Wait while the process lives."""
    until = time.monotonic() + at_most_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "waited for too long"
        time.sleep(0.02)
