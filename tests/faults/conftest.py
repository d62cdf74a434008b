"""A sweep in a folder of its own, to be killed, and what must hold of it whenever nothing runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.orphans import Process, descendants, everybody

ROOT = Path(__file__).parents[2]

TRAINING = '''
"""Appends a line to a file outside the results when it starts, and one when it is done: what really ran."""
import os
import time


def note(what, context):
    with open(os.environ["EXECUTIONS"], "a") as file:
        file.write(f"{what} {context.trial_id}\\n")


def train(config, context):
    note("began", context)
    pause = config["trainable"]["pause_s"]
    for epoch in range(1, 4):
        end = time.monotonic() + pause / 3
        while time.monotonic() < end:
            if context.should_stop():
                return
            time.sleep(min(0.01, pause))
        context.report({"epoch": epoch, "loss": 1 / epoch, "val_accuracy": 1 - 1 / (context.seed + 2)})
    if config["trainable"]["breaks"] == context.seed:
        raise RuntimeError("this seed breaks")
    speed = 100.0 * context.batch.global_batch_size
    context.summarize({"samples_per_s": speed, "accuracy": 0.9, "epoch_s": 1.0, "train_s": 2.0})
    note("done", context)
'''

CONFIG = """
_target_: traced_training:train
lr: 0.1
reference_batch_size: 8
pause_s: 0
breaks: null
"""

SWEEP = """
# @package _global_
defaults:
  - override /trainable: traced
sweep:
  name: s
  axes: {gpus: [1], device_batch_size: [8], seed: [0, 1, 2, 3]}
trusted_modules: [traced_training]
"""


class Place:
    """A user's folder, in which the orchestrator is started and ended in every way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executions = folder / "executions.txt"
        for name, text in (
            ("traced_training.py", TRAINING),
            ("my/trainable/traced.yaml", CONFIG),
            ("my/sweep/s.yaml", SWEEP),
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        backend = () if any(each.startswith("backend=") for each in arguments) else ("backend=inprocess",)
        search = f"hydra.searchpath=[file://{self.folder}/my]"
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "sweep=s", search, *backend, *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{self.folder}", "EXECUTIONS": str(self.executions)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=180)
        return process.returncode, out, err

    def ran(self, what: str = "began") -> list[str]:
        """Trial ids in the order in which they began, or were done."""
        lines = self.executions.read_text().splitlines() if self.executions.exists() else []
        return [line.split()[1] for line in lines if line.startswith(what + " ")]

    @property
    def results(self) -> Path:
        return self.folder / "results" / "s"

    def finished(self) -> list[str]:
        """Trials with an acknowledged end, from the journal's bytes and not through the product's own reader."""
        path = self.results / "journal.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        records: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [each["value"]["trial_id"] for each in records if each["kind"] == "finished"]


class Company:
    """The processes of a driver: none is left some seconds after its end."""

    def __init__(self, driver: "subprocess.Popen[str]") -> None:
        self._driver = next((each for each in everybody() if each.pid == driver.pid), None)
        self._seen: set[Process] = set()

    def look(self) -> None:
        if self._driver:
            self._seen |= descendants({self._driver, *self._seen}) - {self._driver}

    def gone_after_s(self, at_most_s: float = 10.0) -> float:
        began = time.monotonic()
        while self._seen & set(everybody()):
            assert time.monotonic() - began < at_most_s, self._seen & set(everybody())
            time.sleep(0.02)
        return time.monotonic() - began


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)
