"""mode=compare: two results side by side, for example those of two machines or two versions of the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.by_seed import Differences, by_seed
from orchestrator.analysis.summary import further_axes
from orchestrator.analysis.trials import frames
from orchestrator.analysis.validity import is_invalid, with_valid_timings
from orchestrator.config.request import VAL_ACCURACY, Metric, Request
from orchestrator.statistics.intervals import FEWEST_SHARED, Interval, Moments, apart_from_shared, logs, welch
from orchestrator.store.history import changes_between
from orchestrator.store.results import history_in
from orchestrator.store.results_folder import ResultsFolder, results_below
from orchestrator.text import numbers
from orchestrator.text.cell_labels import Row, axis, cell_label
from orchestrator.text.numbers import plain
from orchestrator.text.text_tables import markdown
from sweeps.errors import ConfigError
from sweeps.status import Status

_KEY = ("gpus", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier")
_SIDES = ("this", "other")
_MOST_DIFFERENCES = 12
"""The most differences of the configs that are listed."""

Frames = tuple[pd.DataFrame, pd.DataFrame]
"""Trials and cells."""


def compared(request: Request) -> str:
    """Return the Markdown that mode=compare prints. Raises ConfigError if one of the two folders has no results."""
    if request.settings.compare.with_ is None:
        raise ConfigError(["mode=compare needs compare.with=results/OTHER, the folder of another sweep's results"])
    folder = Path(request.settings.compare.with_).expanduser()
    beside = request.results_dir.parent / folder
    if not ResultsFolder(folder).journal.is_file() and ResultsFolder(beside).journal.is_file():
        folder = beside
    if inside := results_below(folder):
        raise ConfigError([f"compare.with={folder} holds several results; choose {' or '.join(inside)}"])
    this, other = (frames(ResultsFolder(path), request) for path in (request.results_dir, folder))
    records = history_in(ResultsFolder(request.results_dir)).ends.values()
    metric = request.with_metric_of(record.metrics for record in records).metric
    return comparison_of(this, other, (request.results_dir, folder), metric)


def comparison_of(this: Frames, other: Frames, folders: tuple[Path, Path], metric: Metric) -> str:
    """Return the comparison of the results in these two folders, with the differences of their configs."""
    mine, theirs = (history_in(ResultsFolder(folder)).fingerprint or {} for folder in folders)
    names = (str(folders[0]), str(folders[1]))
    return comparison_markdown(this, other, names=names, differences=changes_between(theirs, mine), metric=metric)


def comparison_markdown(
    this: Frames, other: Frames, *, names: tuple[str, str], differences: Sequence[str] = (), metric: Metric
) -> str:
    """Return the comparison: the sides, a row for each cell of both (changed cells first), and the cells of one side.

    `differences` has a line for each difference of the configs, which affect all cells. `metric` is the metric of
    choice; of accuracies, those on the test set are compared if both sides have them.
    """
    # Cells are matched by their axes, because ids also depend on the code, which may differ. Cells that differ only in
    # an axis of one side have no unique counterpart and are left out; see `_ambiguous`.
    key = [*_KEY, *(name for name in further_axes(this[1]) if name in other[1].columns)]
    columns = [*key, "cell_id", "status", "timing_valid"]
    mine, theirs = (cells.loc[~cells.duplicated(key, keep=False), columns] for _, cells in (this, other))
    both = mine.merge(theirs, on=key, how="outer", suffixes=("_this", "_other"), indicator=True, sort=False)
    shared = both[both["_merge"] == "both"].reset_index(drop=True)
    changes = _Changes.of(shared, this[0], other[0], metric)
    lines = ["# Comparison", "", *_sides(names, this[0], other[0]), ""]
    if differences:
        more = len(differences) - _MOST_DIFFERENCES
        listed = [*differences[:_MOST_DIFFERENCES], *([f"… and {more} more differences"] if more > 0 else [])]
        lines += ["Their configurations differ (other → this):", "", *(f"- {plain(line)}" for line in listed), ""]
    about = changes.about() + _ambiguous(this[1], other[1], names[0]) + _ambiguous(other[1], this[1], names[1])
    if _timing_invalid(shared).any():
        about += " † The timing is not valid on one side or both: the change is shown, but not judged."
    lines += [about, ""]
    if len(shared):
        axes = ["lr_multiplier", *(name for name in further_axes(this[1]) if name in shared)]
        differing = [name for name in axes if _varies(this[1], name)]
        rows = [changes.row(place, row, differing) for place, row in enumerate(shared.to_dict("records"))]
        lines += [markdown(pd.DataFrame(rows).iloc[changes.order()]), ""]
    for side, where in (("left_only", names[0]), ("right_only", names[1])):
        if alone := int((both["_merge"] == side).sum()):
            lines += [f"Only in {plain(where)}: {numbers.counted(alone, 'cell', 'cells')}.", ""]
    return "\n".join(lines)


def _ambiguous(own: pd.DataFrame, others: pd.DataFrame, where: str) -> str:
    """Return a sentence on the axes that only one side has."""
    alone = [axis(name) for name in further_axes(own) if name not in others.columns and _varies(own, name)]
    text = plain(f"{', '.join(alone)} in {where}")
    return f" Not compared: cells that differ only in {text}, which is not an axis of the other." if alone else ""


def _varies(cells: pd.DataFrame, column: str) -> bool:
    return bool(cells[column].nunique(dropna=False) > 1)


def _timing_invalid(shared: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether the timing of a side is not valid: then its throughput is shown, but not judged."""
    this, other = (is_invalid(shared[f"timing_valid_{side}"]) for side in _SIDES)
    return this | other


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """The changes of the cells of both sides, this to the other: ratios of throughputs, differences of accuracies."""

    speed: Interval
    """Without an interval if a timing is not valid."""
    common: Interval
    """The ratio that all cells share; NaN below FEWEST_SHARED valid cells."""
    apart: Interval
    """The ratio of each cell over the common one."""
    accuracy: Interval
    word: str
    """`accuracy` on the test set, or the label of the metric."""

    @staticmethod
    def of(shared: pd.DataFrame, this: pd.DataFrame, other: pd.DataFrame, metric: Metric) -> _Changes:
        """Compare throughputs by Welch on logarithms, and accuracies or the metric paired by seed."""
        tested = metric == VAL_ACCURACY and all(trials["accuracy"].notna().any() for trials in (this, other))
        column = "accuracy" if tested else metric.name
        rates, values = [], []
        # Speeds come from valid timings alone; disturbances do not change accuracies, so these come from all ok trials.
        for trials, side in zip((this, other), _SIDES, strict=True):
            ok = trials[trials["status"] == Status.OK.value]
            timed = with_valid_timings(trials).loc[ok.index]
            rates.append(Moments.of(logs(by_seed(shared[f"cell_id_{side}"], timed, "samples_per_s"))))
            measured = ok[column] if column != metric.name else metric.sign * metric.score(ok)
            values.append(pd.DataFrame({"cell_id": side + ok["cell_id"], "seed": ok["seed"], column: measured}))
        speed = welch(*rates).map(np.exp)
        # A cell without a valid timing is shown, but has no interval and takes no part in the shared factor.
        invalid = _timing_invalid(shared).to_numpy()
        lo, hi = (np.where(invalid, np.nan, end) for end in (speed.lo, speed.hi))
        valid = [replace(moments, mean=np.where(invalid, np.nan, moments.mean)) for moments in rates]
        common, apart = (interval.map(np.exp) for interval in apart_from_shared(*valid))
        # Both sides may use one id for a cell, so ids get the name of their side.
        own, others = (side + shared[f"cell_id_{side}"] for side in _SIDES)
        index = pd.Index(own)
        paired = Differences.of(pd.concat(values), column, index, pd.Series(others.to_numpy(), index=index))
        return _Changes(
            speed=Interval(point=speed.point, lo=lo, hi=hi),
            common=common,
            apart=apart,
            accuracy=paired.interval(),
            word="accuracy" if tested else metric.label,
        )

    @property
    def has_common(self) -> bool:
        """True if there are enough cells to tell what they share from a change of one of them."""
        return bool(np.isfinite(self.common.point))

    @property
    def changed(self) -> Mapping[str, Any]:
        """The cells whose interval excludes no change, for each quantity."""
        speed = self.apart if self.has_common else self.speed
        return {
            "speed": (speed.lo > 1.0) | (speed.hi < 1.0),
            self.word: (self.accuracy.lo > 0.0) | (self.accuracy.hi < 0.0),
        }

    def order(self) -> Any:
        """Return the places of the cells, those with the most changes first."""
        return np.argsort(-sum(flags.astype(int) for flags in self.changed.values()), kind="stable")

    def about(self) -> str:
        """Return the sentences above the table."""
        count = len(self.speed.point)
        faster, better = (f"{int(flags.sum())}" for flags in self.changed.values())
        known = [int((~np.isnan(interval.lo)).sum()) for interval in (self.speed, self.accuracy)]
        session = (
            f"With fewer than {FEWEST_SHARED} cells, a machine that was faster or slower as a whole cannot be told"
            " from a change of a cell."
        )
        if self.has_common:
            session = (
                f"All cells share a factor of {_with_ends(self.common)}: the state of the machine, or a change that"
                " affects every cell. A cell is marked if it differs from that by more than its seeds and the spread"
                " between cells explain."
            )
        return (
            f"{numbers.counted(count, 'cell is', 'cells are') or 'No cell is'} in both. Changed (the 95% interval"
            f" excludes no change): throughput in {faster} of {known[0]}, {self.word} in {better} of {known[1]}."
            " Without any change at most about one in 20 would be marked. Throughputs are compared by Welch on"
            f" logarithms, and the {self.word} is paired by seed if the seeds are the same. {session}"
        )

    def row(self, place: int, row: Row, differing: Sequence[str]) -> dict[str, Any]:
        """Return the table row of the cell at this place."""
        speed, apart, accuracy = (
            interval.map(lambda ends: ends[place]) for interval in (self.speed, self.apart, self.accuracy)
        )
        ratio = _with_ends(speed)
        invalid = ratio and False in (row["timing_valid_this"], row["timing_valid_other"])
        statuses = (row["status_this"], row["status_other"])
        return {
            "cell": cell_label(row, differing),
            "global batch": f"{row['global_batch_size']:g}",
            "throughput, this / other": f"{ratio} †" if invalid else ratio,
            **({"over the shared factor": _with_ends(apart)} if self.has_common else {}),
            f"{self.word}, this − other": _with_ends(accuracy, "{:+.3f}".format, ""),
            "changed": ", ".join(name for name, flags in self.changed.items() if flags[place]),
            "status": statuses[0] if statuses[0] == statuses[1] else f"{statuses[0]}; other: {statuses[1]}",
        }


def _with_ends(interval: Interval, form: numbers.Format = numbers.times, sign: str = "×") -> str:
    return numbers.with_interval(float(interval.point), float(interval.lo), float(interval.hi), form, sign)


def _sides(names: Sequence[str], this: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Return the folder, device and trials of each side, and the provenance in which the sides differ."""
    lines = []
    for label, where, trials in zip(_SIDES, names, (this, other), strict=True):
        device = _values(trials, "device_model") or "device not known"
        lines.append(f"- {label}: {plain(where)} ({device}, {numbers.counted(len(trials), 'trial', 'trials')})")
    for column in this.columns:
        if column.startswith("provenance.") and column in other.columns:
            one, two = _values(this, column), _values(other, column)
            if one != two:
                name = plain(column.removeprefix("provenance."))
                lines.append(f"- {name}: {one or '(not known)'}; other: {two or '(not known)'}")
    return lines


def _values(trials: pd.DataFrame, column: str) -> str:
    return plain(", ".join(sorted({numbers.fact(value) for value in trials[column].dropna()})))
