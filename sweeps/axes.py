"""The axes of a sweep and the grid of their combinations, with zipped axes and excluded combinations.

Also: what counts as a number in a config (booleans do not), and nested configs as dotted keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from sweeps.errors import UnknownChoice, nearest


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a number; it may be NaN or infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number; 1.0 is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_not_finite(value: object) -> bool:
    """Return whether the value is NaN or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


Axes = Mapping[str, Sequence[Any]]
Point = dict[str, Any]  # one combination, {axis: value}, in the order of the axes


def points(axes: Axes, zipped: Sequence[Sequence[str]] = (), exclude: Sequence[Mapping[str, Any]] = ()) -> list[Point]:
    """Return every combination of the axes, the last varying fastest. Zipped axes advance together.

    An `exclude` entry drops the points that match all of its axes; its values may be lists of values.
    Expects axes that have passed `axes_errors`.
    """
    grid = itertools.product(*_columns(axes, zipped))
    combined = ({axis: value for part in parts for axis, value in part.items()} for parts in grid)
    in_order = ({axis: point[axis] for axis in axes} for point in combined)
    return [point for point in in_order if not any(matches(point, entry) for entry in exclude)]


def grid_size(axes: Axes, zipped: Sequence[Sequence[str]] = ()) -> int:
    """Return the number of combinations, including those that `exclude` drops."""
    return math.prod(len(column) for column in _columns(axes, zipped))


def axes_errors(axes: Axes, zipped: Sequence[Sequence[str]], exclude: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each error in these axes as a grid."""
    together = [axis for group in zipped for axis in group]
    for axis, values in axes.items():
        if not values:
            yield f"sweep.axes.{axis} has no values"
        for value in [] if axis in together else _repeated(values):
            yield f"sweep.axes.{axis} has {value!r} more than once"
        for value in filter(is_not_finite, values):
            yield f"sweep.axes.{axis} has {value!r}, which is not a finite number"
    named = itertools.chain(
        (("sweep.zip", axis) for axis in together),
        (("sweep.exclude", axis) for entry in exclude for axis in entry),
    )
    for where, axis in named:
        if axis not in axes:
            yield f"{where} names {axis!r}, which is not an axis{nearest(axis, axes)}; axes: {', '.join(axes)}"
    for axis in _repeated(together):
        yield f"sweep.zip has {axis!r} more than once"
    for group in zipped:
        lengths = {axis: len(axes[axis]) for axis in group if axis in axes}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{axis} has {length}" for axis, length in lengths.items())
            yield f"sweep.zip: axes that advance together need the same number of values, but {text}"
        elif len(lengths) == len(group):
            for joint in _repeated(list(zip(*(axes[axis] for axis in lengths), strict=True))):
                text = ", ".join(f"{axis}={value!r}" for axis, value in zip(lengths, joint, strict=True))
                yield f"sweep.zip has {text} more than once"
    unmatched = [
        (index, axis, value)
        for index, entry in enumerate(exclude)
        for axis, given in entry.items()
        for value in _as_list(given)
        if axis in axes and value not in axes[axis]
    ]
    if unmatched:
        left_out = {index for index, _, _ in unmatched}
        kept = [entry for index, entry in enumerate(exclude) if index not in left_out]
        texts = [
            ", ".join(f"{axis}: {'null' if value is None else value}" for axis, value in entry.items())
            for entry in kept
        ]
        instead = "'sweep.exclude=[" + ", ".join(f"{{{text}}}" for text in texts) + "]'"
        for _, axis, value in unmatched:
            problem = f"sweep.exclude has {axis}={value!r}, which is not a value of the axis: {list(axes[axis])}"
            yield f"{problem}; {instead} leaves the entry out"


def valid_part(axes: Axes, zipped: Sequence[Sequence[str]]) -> tuple[Axes, Sequence[Sequence[str]]]:
    """Return what can still be checked of axes with errors: finite values, once, and as many of those in a group."""
    finite = {axis: [value for value in values if not is_not_finite(value)] for axis, values in axes.items()}
    groups: list[list[str]] = []
    for group in zipped:
        seen = set(itertools.chain(*groups))
        groups.append([axis for axis in dict.fromkeys(group) if finite.get(axis) and axis not in seen])
    shortest = {axis: min(len(finite[other]) for other in group) for group in groups for axis in group}
    valid = {
        axis: values[: shortest[axis]] if axis in shortest else distinct(values)
        for axis, values in finite.items()
        if values
    }
    return valid, [group for group in groups if group]


def distinct(values: Sequence[Any]) -> list[Any]:
    """Return the values without repeats, in order; they need not be hashable."""
    return list(values) if _differ(values) else [v for index, v in enumerate(values) if v not in values[:index]]


def _columns(axes: Axes, zipped: Sequence[Sequence[str]]) -> Iterator[list[Point]]:
    """Yield the factors of the product: the values of an axis, or the joint values of a zipped group."""
    # A zipped group takes the place of its first axis in the order.
    group_of = {axis: tuple(group) for group in zipped for axis in group}
    seen: set[str] = set()
    for axis in axes:
        if axis in seen:
            continue
        group = group_of.get(axis, (axis,))
        seen.update(group)
        yield [dict(zip(group, values, strict=True)) for values in zip(*(axes[name] for name in group), strict=True)]


def matches(point: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Return whether a point has all these axis values; a list of values matches any of them."""
    return all(axis in point and point[axis] in _as_list(value) for axis, value in entry.items())


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _differ(values: Sequence[Any]) -> bool:
    """Return whether all values are known to differ."""
    # Comparing pairs would take minutes for long lists.
    try:
        return len(set(values)) == len(values)
    except TypeError:  # lists and mappings cannot be hashed
        return False


def _repeated(values: Sequence[Any]) -> list[Any]:
    if _differ(values):
        return []
    return [value for index, value in enumerate(values) if value in values[:index] and value not in values[index + 1 :]]


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted key (`budget.epochs`); an empty section counts as a value."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def baseline_errors(baseline: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if the baseline, whose axes exist, is not a cell of the grid."""
    # By `repr`, because values of axes over config keys may be lists, which cannot be hashed.
    there = {axis: {repr(point[axis]): point[axis] for point in points if axis in point} for axis in baseline}
    absent = [axis for axis, value in baseline.items() if value not in there[axis].values()]
    for axis in filter(there.get, absent):
        yield f"sweep.baseline is not a cell: {UnknownChoice(axis, baseline[axis], map(str, there[axis].values()))}"
    if not absent and not any(all(point[axis] == value for axis, value in baseline.items()) for point in points):
        values = ", ".join(f"{axis}={value}" for axis, value in baseline.items())
        yield f"sweep.baseline is not a cell: each of {values} occurs, but never together"
