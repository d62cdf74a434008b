"""The files of the hook in a command's processes (`hook/sitecustomize.py` starts it): counts, rows, the stop request.

Each process that could train has a file with its `Counts` so far, and one with rows of metrics.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainables.command.file_tail import FileTail
from trainables.command.hook.sweep_counts import Counts
from trainables.command.hook.sweep_files import STOP_FILE
from trainables.command.hook_counts import CountedTraining

HOOK = Path(__file__).parent / "hook"  # the folder that the command gets at the front of its PYTHONPATH
FOLDER = "hook"  # the folder of the files, within the trial's

LOOK_EVERY_S = 0.5
STOP_WITHIN_S = 1.0  # ranks look for the step at which to stop every 0.1 s, and write their counts every 0.5 s


class Adapter:
    """The files of one attempt at a trial."""

    def __init__(self, folder: Path, *, is_on: bool = True) -> None:
        """`is_on`: whether the command's processes load the hook."""
        self.folder, self._is_on = folder, is_on
        if self.folder.is_dir():
            shutil.rmtree(self.folder)  # of an earlier attempt
        if is_on:
            self.folder.mkdir(mode=0o700)
        self._rows: dict[str, FileTail] = {}  # the rows of each process
        self._texts: dict[str, str] = {}  # the last counts of each process, as they were read
        self._first: dict[str, Counts] = {}
        self._last: dict[str, Counts] = {}
        self._looked_s = -math.inf

    def look(self, *, now: bool = False) -> dict[str, str]:
        """Read the counts, at most every LOOK_EVERY_S unless `now`; return those that have changed, {process: text}."""
        if not now and time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return {}
        self._looked_s = time.monotonic()
        # Most processes write twice a second, and most looks come sooner.
        texts = {path.name: path.read_text() for path in self.folder.glob("*.json") if path.is_file()}
        changed = {process: text for process, text in texts.items() if text != self._texts.get(process)}
        for process, text in changed.items():
            self.take(process, text)
        return changed

    def take(self, process: str, text: str) -> None:
        """Take the counts of a process, which may be on another node."""
        counts = Counts.of_json(text)
        self._texts[process], self._last[process] = text, counts
        self._first.setdefault(process, counts)

    def training(self) -> CountedTraining:
        """Return the training by the counts so far."""
        return CountedTraining(first=dict(self._first), last=dict(self._last))

    @property
    def has_steps(self) -> bool:
        """Return whether any process took a step."""
        return any(counts.whole.steps for counts in self._last.values())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows written since the last call."""
        for path in self.folder.glob("*.jsonl"):
            lines = self._rows.setdefault(path.name, FileTail(path))
            yield from map(json.loads, lines.new())

    @property
    def framework(self) -> str:
        """`transformers` or `lightning`, if its callbacks report the metrics."""
        return max((counts.framework for counts in self._last.values()), default="")

    def has_reported(self, line: str) -> bool:
        """Return whether this line of output is one of Hugging Face's logs, which the callback has reported, too."""
        of_log = "learning_rate" in line or "eval_runtime" in line
        return self.framework == "transformers" and of_log and "train_runtime" not in line

    def is_absent(self, processes: Mapping[int, str]) -> bool:
        """Return whether one of these processes, given by name, is a Python that has not loaded the hook."""
        pythons = [pid for pid, name in processes.items() if name.startswith("python")]
        return self._is_on and any(not (self.folder / f"{pid}.started").exists() for pid in pythons)

    def last_step(self, *, nodes: int) -> int | None:
        """Return the step at which all ranks can stop; None if the command's framework cannot."""
        self.look(now=True)
        tallies = [counts.whole for counts in self.training().trained]
        if not self.framework or not tallies:
            return None
        pace_s = min(tally.step_s for tally in tallies) or STOP_WITHIN_S
        within_s = STOP_WITHIN_S if nodes == 1 else STOP_WITHIN_S + 2 * LOOK_EVERY_S
        return max(tally.steps for tally in tallies) + math.ceil(within_s / pace_s) + 2

    def stop_at(self, step: int) -> None:
        """Have the processes of this node stop at this step."""
        # A rank that reads half a number would stop at another step than the rest.
        part = self.folder / f"{STOP_FILE}.part"
        part.write_text(str(step))
        part.rename(self.folder / STOP_FILE)
