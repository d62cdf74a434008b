"""The command that gives one cell of a sweep more seeds."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.override_text import FROM_PROGRAM

_OTHER = ("sweep.axes", "mode=", "claims.", "predict.", "compare.", "plan.")
"""Overrides that such a command does not repeat: the axes are its own, and it runs trials."""

_WORD = re.compile(r"[A-Za-z_][\w.-]*")


def command(overrides: Sequence[str], cell: Mapping[str, Any], seeds: Sequence[int]) -> str:
    """Of a shell: the user's own overrides, the axes narrowed to those of the cell, and these seeds.

    What has run does not run again, so that the seeds are all that the cell is to have. Of a program's own call, where
    that gave what no command line can.
    """
    kept = [override for override in overrides if not override.lstrip("+~").startswith(_OTHER)]
    axes = [f"sweep.axes.{_key(axis)}=[{_value(value)}]" for axis, value in cell.items()]
    axes.append(f"sweep.axes.seed={_seeds(seeds)}")
    if any(override.endswith(FROM_PROGRAM) for override in overrides):
        return f"run_sweep(…, {', '.join(map(repr, axes))})"
    asked = [*kept, *axes]
    return " ".join(["python -m orchestrator", *map(_quoted, asked)])


def _quoted(argument: str) -> str:
    """For a shell, readable where Hydra wants quotes of its own: "a='b'"."""
    return f'"{argument}"' if "'" in argument and not set(argument) & set('"$`\\!') else shlex.quote(argument)


def with_more(seeds: Sequence[int], more: int) -> list[int]:
    """The seeds and as many further ones, the smallest that are free."""
    free = (seed for seed in range(len(seeds) + more) if seed not in set(seeds))
    return sorted([*seeds, *(next(free) for _ in range(more))])


def _seeds(seeds: Sequence[int]) -> str:
    """A long list as Hydra's range, in quotes of Hydra's own."""
    if len(seeds) > 5 and list(seeds) == list(range(len(seeds))):
        return f"'range(0,{len(seeds)})'"
    return f"[{','.join(map(str, seeds))}]"


def _key(axis: str) -> str:
    return f'"{axis}"' if "." in axis or "/" in axis else axis


def _value(value: Any) -> str:
    """In Hydra's grammar, in which a plain word needs no quotes."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)
