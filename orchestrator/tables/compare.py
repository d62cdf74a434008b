"""mode=compare: two results side by side, such as those of two machines or two versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.cells import Differences, by_cell, further_axes
from orchestrator.analysis.frames import frames
from orchestrator.analysis.validity import is_invalid, only_sound
from orchestrator.config.request import Request
from orchestrator.statistics.intervals import Interval, Moments, logs, welch
from orchestrator.store.history import difference, latest
from orchestrator.store.journal import replay
from orchestrator.store.layout import Layout, results_below
from orchestrator.text import figures
from orchestrator.text.figures import plain
from orchestrator.text.rows import Row, axis, markdown
from sweeps.errors import ConfigError
from sweeps.status import Status

_ALIKE = ("gpus", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier")
_SIDES = ("this", "other")
_MOST_QUESTIONS = 12

Frames = tuple[pd.DataFrame, pd.DataFrame]


def compared(request: Request) -> str:
    """The Markdown that mode=compare prints. Raises ConfigError if one of the two has no results."""
    if request.compare_with is None:
        raise ConfigError(["mode=compare needs compare.with=results/OTHER, the folder of another sweep's results"])
    folder = Path(request.compare_with).expanduser()
    if inside := results_below(folder):
        raise ConfigError([f"compare.with={folder} holds several results; choose {' or '.join(inside)}"])
    this, other = (frames(Layout(path), request) for path in (request.results_dir, folder))
    return comparison_of(this, other, (request.results_dir, folder))


def comparison_of(this: Frames, other: Frames, folders: tuple[Path, Path]) -> str:
    """The comparison of the results in these two folders, with what the two sweeps were asked differently."""
    mine, theirs = (latest(replay(Layout(folder).journal).records) or {} for folder in folders)
    names = (str(folders[0]), str(folders[1]))
    return comparison_markdown(this, other, names=names, questions=difference(theirs, mine))


def comparison_markdown(this: Frames, other: Frames, *, names: tuple[str, str], questions: Sequence[str] = ()) -> str:
    """What ran where, then a row for each cell that both have, changed ones first, then what only one has.

    `questions`: in what the two were asked differently, a line each; their cells differ by that, too.
    """
    both = _matched(this[1], other[1])
    shared = both[both["_merge"] == "both"].reset_index(drop=True)
    accuracy = _accuracy_of_both(this[0], other[0])
    changes = _Changes(
        speed=_speed(shared, this[0], other[0]),
        accuracy=_accuracy(shared, this[0], other[0], accuracy),
        column=accuracy,
    )
    changed = changes.changed
    counts = {key: int((~np.isnan(getattr(changes, key).lo)).sum()) for key in changed}
    differing = _differing(shared, this[1])
    table = pd.DataFrame([_row(row, changes.texts(i), differing) for i, row in enumerate(shared.to_dict("records"))])
    order = np.argsort(-(changed["speed"].astype(int) + changed["accuracy"]), kind="stable")
    count = figures.counted(len(shared), "cell is", "cells are") or "No cell is"
    about = (
        f"{count} in both. Changed (the 95% interval leaves out no change): throughput in"
        f" {changed['speed'].sum()} of {counts['speed']}, {changes.word} in {changed['accuracy'].sum()} of"
        f" {counts['accuracy']};"
        " where nothing had changed, about one in 20 would seem to. Throughputs are compared by Welch on logarithms,"
        " accuracies paired by seed where the seeds are the same."
    )
    about += _not_told_apart(this[1], other[1], names[0]) + _not_told_apart(other[1], this[1], names[1])
    if _doubtful(shared).any():
        about += " † The timing is not valid on one side or both: compared, and not judged."
    lines = ["# Comparison", "", *_about(names, this[0], other[0]), ""]
    if questions:
        more = [f"… and {len(questions) - _MOST_QUESTIONS} more"] if len(questions) > _MOST_QUESTIONS else []
        listed = [f"- {plain(each)}" for each in [*questions[:_MOST_QUESTIONS], *more]]
        lines += ["Their configurations differ (other → this):", "", *listed, ""]
    lines += [about, ""]
    lines += [markdown(table.iloc[order]), ""] if len(table) else []
    for side, where in (("left_only", names[0]), ("right_only", names[1])):
        alone = both[both["_merge"] == side]
        lines += [f"Only in {plain(where)}: {figures.counted(len(alone), 'cell', 'cells')}.", ""] if len(alone) else []
    return "\n".join(lines)


def _matched(this: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Cells by what was asked, not by their identity: that holds the code, which may differ.

    Without those that differ only in an axis of one side alone: `_not_told_apart` tells of them.
    """
    axes = [name for name in further_axes(this) if name in other.columns]
    key = [*_ALIKE, *axes]
    kept = [*key, "cell_id", "status", "timing_valid"]
    sides = [frame.loc[~frame.duplicated(key, keep=False), kept] for frame in (this, other)]
    return sides[0].merge(sides[1], on=key, how="outer", suffixes=("_this", "_other"), indicator=True, sort=False)


def _not_told_apart(own: pd.DataFrame, others: pd.DataFrame, where: str) -> str:
    """Axes that only one side has: cells that differ in nothing else have no counterpart."""
    axes = [name for name in further_axes(own) if name not in others.columns]
    alone = [axis(name) for name in axes if own[name].nunique(dropna=False) > 1]
    text = plain(f"{', '.join(alone)} in {where}")
    return f" Not compared: cells that differ only in {text}, which is not an axis of the other." if alone else ""


def _speed(shared: pd.DataFrame, this: pd.DataFrame, other: pd.DataFrame) -> Interval:
    sides = [
        Moments.of(logs(by_cell(shared[f"cell_id_{side}"], _ok(trials), "samples_per_s")))
        for trials, side in zip((this, other), _SIDES, strict=True)
    ]
    found = welch(*sides).map(np.exp)
    doubtful = _doubtful(shared).to_numpy()
    lo, hi = (np.where(doubtful, np.nan, end) for end in (found.lo, found.hi))
    return Interval(point=found.point, lo=lo, hi=hi)


def _doubtful(shared: pd.DataFrame) -> pd.Series[bool]:
    """Whether a timing of each cell is not valid: its throughput is shown, and nothing is concluded from it."""
    this, other = (is_invalid(shared[f"timing_valid_{side}"]) for side in _SIDES)
    return this | other


def _accuracy_of_both(this: pd.DataFrame, other: pd.DataFrame) -> str:
    """The column: accuracy on the test set, or on the validation split if either side has no other."""
    return "accuracy" if all(trials["accuracy"].notna().any() for trials in (this, other)) else "val_accuracy"


def _accuracy(shared: pd.DataFrame, this: pd.DataFrame, other: pd.DataFrame, column: str) -> Interval:
    ok = [trials.loc[trials["status"] == Status.OK.value, ["cell_id", "seed", column]] for trials in (this, other)]
    marked = [frame.assign(cell_id=side + frame["cell_id"]) for frame, side in zip(ok, _SIDES, strict=True)]
    own, others = (side + shared[f"cell_id_{side}"] for side in _SIDES)
    index = pd.Index(own)
    return Differences.of(pd.concat(marked), column, index, pd.Series(others.to_numpy(), index=index)).interval()


def _ok(trials: pd.DataFrame) -> pd.DataFrame:
    return only_sound(trials)[trials["status"] == Status.OK.value]


def _leaves(interval: Interval, no_change: float) -> Any:
    return (interval.lo > no_change) | (interval.hi < no_change)


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """For the cells that both have: ratios of throughputs and differences of accuracies, this to the other."""

    speed: Interval
    accuracy: Interval
    column: str
    """Which accuracy."""

    @property
    def word(self) -> str:
        """Of the accuracy."""
        return "accuracy" if self.column == "accuracy" else "validation accuracy"

    @property
    def changed(self) -> Mapping[str, Any]:
        """For each figure, the cells whose interval excludes no change."""
        return {"speed": _leaves(self.speed, 1.0), "accuracy": _leaves(self.accuracy, 0.0)}

    def texts(self, place: int) -> Mapping[str, str]:
        """The columns of one cell."""
        return {
            "throughput, this / other": figures.with_interval(*_at(self.speed, place), figures.times, "×"),
            f"{self.word}, this − other": figures.with_interval(
                *_at(self.accuracy, place), lambda value: f"{value:+.3f}"
            ),
            "changed": ", ".join(
                self.word if key == "accuracy" else key for key, flags in self.changed.items() if flags[place]
            ),
        }


def _at(interval: Interval, row: int) -> tuple[float, float, float]:
    return float(interval.point[row]), float(interval.lo[row]), float(interval.hi[row])


def _differing(shared: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """The axes to tell cells by."""
    axes = [column for column in cells.columns if column in shared and column not in ("cell_id", "status")]
    return [column for column in axes if column in _ALIKE[:4] or cells[column].nunique(dropna=False) > 1]


def _row(row: Row, changes: Mapping[str, str], differing: Sequence[str]) -> dict[str, Any]:
    statuses = (row["status_this"], row["status_other"])
    speed = changes["throughput, this / other"]
    doubt = " †" if speed and False in (row["timing_valid_this"], row["timing_valid_other"]) else ""
    return {
        **{axis(column): _asked(column, row[column]) for column in differing},
        **changes,
        "throughput, this / other": f"{speed}{doubt}",
        "status": statuses[0] if statuses[0] == statuses[1] else f"{statuses[0]}; other: {statuses[1]}",
    }


def _asked(column: str, value: Any) -> Any:
    """Counts as integers again: cells that only one side has turn them into floats."""
    return f"{value:g}" if column in _ALIKE[:3] else figures.asked(value)


def _about(names: Sequence[str], this: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """What ran where, as far as it differs or matters."""
    columns = ["device_model", *(c for c in this.columns if c.startswith("provenance.") and c in other.columns)]
    lines = [
        f"- {label}: {plain(where)} ({_values(trials, 'device_model') or 'device not known'}, {_many(trials)})"
        for label, where, trials in zip(_SIDES, names, (this, other), strict=True)
    ]
    for column in columns[1:]:
        one, two = _values(this, column), _values(other, column)
        if one != two:
            name = plain(column.removeprefix("provenance."))
            lines.append(f"- {name}: {one or '(not known)'}; other: {two or '(not known)'}")
    return lines


def _many(trials: pd.DataFrame) -> str:
    return figures.counted(len(trials), "trial", "trials")


def _values(trials: pd.DataFrame, column: str) -> str:
    return plain(", ".join(sorted({figures.fact(value) for value in trials[column].dropna()})))
