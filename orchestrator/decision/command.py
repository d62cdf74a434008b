"""Builds the command that runs given cells of a sweep with given seeds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.override_text import FROM_PROGRAM, shell_command
from sweeps.axes import distinct

_OTHER = ("sweep.axes", "sweep.exclude=", "rerun=", "mode=", "claims.", "predict.", "compare.", "plan.")
"""Overrides that such a command drops: it sets its own axes, runs trials, and reruns none."""

_ZIP = "sweep.zip="

_WORD = re.compile(r"[A-Za-z_][\w.-]*")


def command(overrides: Sequence[str], narrowed: Sequence[str]) -> str:
    """The shell command: the user's own overrides plus the narrowed axes. Finished trials do not run again.

    A `run_sweep` call instead, if a program gave what no command line can express.
    """
    if any(override.endswith(FROM_PROGRAM) for override in overrides):
        return f"run_sweep(…, {', '.join(map(repr, narrowed))})"
    zipped = any(override.startswith(_ZIP) for override in narrowed)
    others = (*_OTHER, _ZIP) if zipped else _OTHER
    kept = [override for override in overrides if not override.lstrip("+~").startswith(others)]
    return shell_command([*kept, *narrowed])


def narrowed_to(
    cells: Sequence[Mapping[str, Any]], seeds: Sequence[int], *, excludes: bool = False, zips: bool = False
) -> list[str]:
    """Overrides that narrow the sweep's axes to those of the cells and to these seeds.

    The cells have the same axes; if their values form no grid, the axes are zipped. `seeds` are all that the cells
    should have. `excludes`, `zips`: the sweep excludes combinations or zips axes; its own settings for these may not
    fit the narrowed axes.
    """
    axes = {axis: [cell[axis] for cell in cells] for axis in cells[0]}
    differing = [axis for axis, values in axes.items() if len(distinct(values)) > 1]
    grid = math.prod(len(distinct(axes[axis])) for axis in differing) == len(cells)
    values = {axis: distinct(given) if grid or axis not in differing else given for axis, given in axes.items()}
    given = [f"sweep.axes.{_key(axis)}=[{','.join(map(_value, each))}]" for axis, each in values.items()]
    given.append(f"sweep.axes.seed={_seeds(seeds)}")
    if zips or not grid:
        given.append("sweep.zip=[]" if grid else f"sweep.zip=[[{','.join(map(_key, differing))}]]")
    if excludes:
        given.append("sweep.exclude=[]")
    return given


def with_more(seeds: Sequence[int], more: int) -> list[int]:
    """The seeds plus the given number of further ones, the smallest that are free."""
    free = (seed for seed in range(len(seeds) + more) if seed not in set(seeds))
    return sorted([*seeds, *(next(free) for _ in range(more))])


def _seeds(seeds: Sequence[int]) -> str:
    """The seeds in Hydra's grammar, long lists as a quoted range."""
    if len(seeds) > 5 and list(seeds) == list(range(len(seeds))):
        return f"'range(0,{len(seeds)})'"
    return f"[{','.join(map(str, seeds))}]"


def _key(axis: str) -> str:
    return f'"{axis}"' if "." in axis or "/" in axis else axis


def _value(value: Any) -> str:
    """A value in Hydra's grammar, where plain words need no quotes."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _nested(value)


def _nested(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_nested(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_nested, value))}]"
    return json.dumps(value)
