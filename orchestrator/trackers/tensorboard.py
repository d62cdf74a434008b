"""TensorBoard tracker: one event file per trial, written without torch or TensorFlow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from orchestrator.trackers.tracking import Run

_LONGEST_NAME = 120  # the most characters of a trial's name in the name of its folder, where its id follows


class TensorBoard:
    """Logs curves as scalars, config and tags as hyperparameters, and the trial's figures as their metrics."""

    def __init__(self, *, sweep: str, results_dir: Path, dir: str | None = None) -> None:
        self._folder = Path(dir).expanduser() / sweep if dir else results_dir / "tensorboard"
        self._writers: dict[str, EventFileWriter] = {}
        self._last_step: dict[str, int] = {}

    def begin(self, trial_id: str, run: Run) -> None:
        """Create a new folder for each attempt: TensorBoard draws the curves of one folder as one curve."""
        name = f"{run.name.replace('/', '_')[:_LONGEST_NAME]}-{trial_id}"
        attempts = itertools.chain([name], (f"{name}-{attempt}" for attempt in itertools.count(2)))
        folder = next(folder for folder in map(self._folder.joinpath, attempts) if not folder.exists())
        writer = self._writers[trial_id] = EventFileWriter(str(folder))
        self._last_step[trial_id] = 0
        shown = {**run.params, **run.tags}
        parameters = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in shown.items()}
        self._add(writer, summary_v2.hparams_pb(parameters, trial_id=trial_id))

    def log(self, trial_id: str, row: Mapping[str, float], step: int) -> None:
        """Log scalars under their names."""
        self._last_step[trial_id] = step
        self._add(self._writers[trial_id], _scalars(row), step)

    def end(self, trial_id: str, figures: Mapping[str, float], status: str, note: str) -> None:
        """Log the trial's figures under `trial/`, and whether it was ok."""
        writer = self._writers.pop(trial_id)
        scalars = _scalars({"trial/ok": float(status == "ok"), **{f"trial/{name}": v for name, v in figures.items()}})
        self._add(writer, scalars, self._last_step.pop(trial_id))
        writer.close()

    def close(self) -> None:
        """Close the files of unfinished trials."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _add(self, writer: EventFileWriter, summary: Any, step: int = 0) -> None:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _scalars(row: Mapping[str, float]) -> Summary:
    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in row.items()])
