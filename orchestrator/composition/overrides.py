"""Rewrites overrides that Hydra's grammar cannot express before Hydra reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.override_text import alternatives
from sweeps.sweep import STANDARD_AXES

_AXIS = re.compile(r"""^\+{0,2}sweep\.axes\.(?P<quote>["']?)(?P<key>[\w./@-]+)(?P=quote)=(?P<value>.*)$""", re.DOTALL)

_ID = re.compile(r"""(?<=[=\[,\s])\d[\da-f]*(?=[\],\s]|$)""")

_FREELY_NAMED = re.compile(r"(trainable\.env|cluster\.labels)(\.|=\s*\{)")


def rewritten(arguments: Sequence[str]) -> list[str]:
    """The arguments in Hydra's own grammar.

    `sweep.axes."optimizer.lr"=[.1,.2]`, quoted or not, is an axis under a dotted name, which Hydra can only say as a
    dictionary; `trainable.env.NAME=…` and `cluster.labels={NAME: …}` may add any name; setting one of several
    alternatives sets the others to null unless they are given. `scale=small` chooses from the sweep's own group:
    `sweep/published/conv2d=small`. The ids in `rerun=[12e4,3fa2]` are text, even if they look like numbers.
    """
    sweep = next((argument.removeprefix("sweep=") for argument in arguments if argument.startswith("sweep=")), "")
    plain = [_adding(_scale(_ids(_axis(argument)), sweep)) for argument in arguments]
    given = {argument.lstrip("+").partition("=")[0] for argument in plain}
    result: list[str] = []
    for argument in plain:
        # Next to the override that implies them, because Hydra's parser wants all overrides in one place.
        nulls = [key for key in alternatives(argument.lstrip("+").partition("=")[0]) if key not in given]
        result += [argument, *(f"{key}=null" for key in nulls)]
        given.update(nulls)
    return result


def with_alternatives(values: Mapping[str, Any]) -> dict[str, Any]:
    """{dotted key: value} with the alternatives of set keys added as None."""
    return {**{key: None for given in values for key in alternatives(given)}, **values}


def _axis(argument: str) -> str:
    found = _AXIS.match(argument)
    if not found:
        return argument
    key, value = found["key"], found["value"]
    return f"sweep.axes.{key}={value}" if key in STANDARD_AXES else f"++sweep.axes={{{key}:{value}}}"


def _ids(argument: str) -> str:
    """Quote the ids, but not the numbers in `{axis: value}`."""
    if not argument.lstrip("+").startswith("rerun="):
        return argument
    parts = re.split(r"(\{[^{}]*\})", argument)
    return "".join(part if part.startswith("{") else _ID.sub(r"'\g<0>'", part) for part in parts)


def _scale(argument: str, sweep: str) -> str:
    return f"sweep/{sweep}={argument.removeprefix('scale=')}" if sweep and argument.startswith("scale=") else argument


def _adding(argument: str) -> str:
    """Allow any new name: requiring a `+` for environment variables and labels would only trip users up."""
    return f"++{argument}" if _FREELY_NAMED.match(argument) else argument
