"""Parse `rerun` and select the trials that it names; `sweeps.status` decides which others run again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.axes import distinct, matches
from sweeps.errors import nearest
from sweeps.sweep import STANDARD_AXES
from sweeps.trial import TrialSpec

WORDS = ("none", "failed", "all")

_TIMINGS = ("disturbed", "invalid", "timings", "stragglers", "straggler")
"""Words for trials of which only the timing is wrong."""

_FORMS = "none, failed, all, or trials by the start of an id or by axes: [3fa2], {gpus: 2, seed: 0}"

_ID = re.compile(r"[0-9a-f]+")

_LABEL = re.compile(r"(?P<gpus>\d+)[x×](?P<device_batch_size>\d+)(?:[ -](?P<lr_rule>\w+)(?!\w*=))?")
"""The beginning of a cell's label: `2×32 sqrt`."""

_MOST_SHOWN = 4  # ids that a message lists


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """The trials to run again: a word, or a selection."""

    word: str = "none"  # one of WORDS
    named: Sequence[str | Mapping[str, Any]] = ()
    """Prefixes of trial or cell ids, and values of axes as in `sweep.exclude`."""

    @staticmethod
    def of(given: Any) -> Rerun:
        """Read from the config, ignoring what `form_errors` reports."""
        if isinstance(given, str) and given in WORDS:
            return Rerun(word=given)
        return Rerun(named=tuple(filter(_may_name, _listed(given))))

    def selected(self, trials: Sequence[TrialSpec]) -> frozenset[str]:
        """Return the ids of the named trials."""
        return frozenset(trial.trial_id for selector in self.named for trial in _selected(selector, trials))


NO_RERUN = Rerun()


def form_errors(given: Any) -> Iterator[str]:
    """Yield a line for each part of `rerun` that cannot name a trial of any sweep."""
    if given in ([], *WORDS):
        yield from [] if given else [f"rerun must be {_FORMS}; not {given!r}"]
        return
    if given in _TIMINGS:
        yield f"rerun={given}: only trainings run again, and mode=settle times disturbed trials: write mode=settle"
        return
    for entry in _listed(given):
        if isinstance(entry, str) and entry in WORDS:
            yield f"rerun: {entry} must stand alone, not in a list: rerun={entry}"
        elif not _may_name(entry):
            close = nearest(entry, WORDS) if isinstance(entry, str) else ""
            axes = ", ".join(f"{axis}: {value}" for axis, value in label_axes(str(entry)).items())
            # A value without a name, as in `2×32 sqrt, fsdp`, does not tell its axis: without it more trials would run.
            names_all = isinstance(entry, str) and all("=" in part for part in entry.split(", ")[1:])
            write = f": write 'rerun={{{axes}}}'" if axes and names_all else close
            yield f"rerun must be {_FORMS}; not {entry!r}{write}"


def is_label(text: str) -> bool:
    """Return whether the whole text is the beginning of a cell's label."""
    return _LABEL.fullmatch(text) is not None


def label_axes(text: str) -> dict[str, str]:
    """Return the values of the axes in a cell's label, `2×32 sqrt`, or in `gpus=2,seed=0`; empty if it is neither."""
    label = _LABEL.match(text)
    of_label = {axis: value for axis, value in label.groupdict().items() if value} if label else {}
    return of_label | dict(re.findall(r"""([\w.]+)=['"]?([\w.+-]+)""", text))


def rerun_errors(rerun: Rerun, trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Yield a line for each name that matches none of these trials, or several."""
    for selector in rerun.named:
        if isinstance(selector, str):
            yield from _id_errors(selector, trials)
            continue
        axes = dict.fromkeys(name for trial in trials for name in _values(trial))
        wrong = []
        for axis, given in selector.items():
            if axis not in axes:
                close = nearest(str(axis), axes)
                wrong.append(f"rerun names {axis!r}, which is not an axis{close}; axes: {', '.join(axes)}")
                continue
            # Values that no planned trial has are most likely typing errors.
            values = distinct([_values(trial)[axis] for trial in trials])
            there = ", ".join(map(str, values))
            for value in (value for value in _listed(given) if value not in values):
                wrong.append(f"rerun names {axis}={value!r}, which no planned trial has; there are: {there}")
        if not wrong and not _selected(selector, trials):
            together = ", ".join(f"{axis}={value}" for axis, value in selector.items())
            wrong = [f"rerun: each of {together} occurs, but no trial has them together"]
        yield from wrong


def _may_name(given: Any) -> bool:
    return bool(_ID.fullmatch(given) if isinstance(given, str) else isinstance(given, Mapping) and given)


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _selected(selector: str | Mapping[str, Any], trials: Sequence[TrialSpec]) -> list[TrialSpec]:
    if isinstance(selector, Mapping):
        return [trial for trial in trials if matches(_values(trial), selector)]
    return [trial for trial in trials if trial.trial_id.startswith(selector) or trial.cell_id.startswith(selector)]


def _values(trial: TrialSpec) -> dict[str, Any]:
    """Return the values that can select a trial: its axes, and values derived from them."""
    return {axis: value for axis, value in trial.columns.items() if axis in STANDARD_AXES} | dict(trial.axes)


def _id_errors(selector: str, trials: Sequence[TrialSpec]) -> Iterator[str]:
    selected = _selected(selector, trials)
    # A cell's id names all of its seeds on purpose; only different owners make a prefix ambiguous.
    owners = [trial.trial_id for trial in selected if trial.trial_id.startswith(selector)]
    owners += dict.fromkeys(trial.cell_id for trial in selected if trial.cell_id.startswith(selector))
    if not selected:
        begun = (owner[: len(selector)] for trial in trials for owner in (trial.trial_id, trial.cell_id))
        where = "tables/trials.csv has the ids of trials, summary.csv those of cells"
        similar = nearest(selector, begun)
        yield f"rerun: no planned trial or cell has an id that starts with {selector!r}{similar}; {where}"
    elif len(owners) > 1:
        some = ", ".join(owners[:_MOST_SHOWN]) + (", …" if len(owners) > _MOST_SHOWN else "")
        yield f"rerun: {len(owners)} ids of trials and cells start with {selector!r}: {some}; give more digits"
