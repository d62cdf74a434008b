"""The commands that users are told: a request as a person would type it, and the same one for more seeds of a cell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.errors import HydraException

from orchestrator.config.hydra_private import parsed_overrides
from orchestrator.config.overrides import FREELY_NAMED, FROM_PROGRAM, alternatives, key_of, literal, with_command
from sweeps.errors import ConfigError

_DOTTED_AXIS = re.compile(r"\+\+sweep\.axes=\{([\w./@-]+):(.*)\}", re.DOTALL)
_FOLDER = re.compile(r"hydra\.searchpath=\[(['\"]?)file://([^,\]'\"]+)\1\]")


def program() -> str:
    """Return the words that start this program here: those of `uv run` if uv started it."""
    return f"{'uv run ' if 'UV_RUN_RECURSION_DEPTH' in os.environ else ''}python -m orchestrator"


def shell_command(overrides: Sequence[str]) -> str:
    """Return the equivalent shell command, without the `KEY=null` that setting an alternative implies."""
    set_keys = {key for key, _, value in (override.partition("=") for override in overrides) if value != "null"}
    implied = {f"{other}=null" for key in set_keys for other in alternatives(key)}
    typed, last = _with_command_last([override for override in overrides if override not in implied])
    words = [program()]
    for override in typed:
        folder = _FOLDER.fullmatch(override)  # a single folder of the user's configs
        if not folder:
            words.append(shell_word(_as_typed(override, overrides)))
        elif f"--config-dir={folder[2]}" not in typed:
            words += ["-cd", shell_word(folder[2])]
    return " ".join([*words, *last])


_BARE_WORD = re.compile(r"(?:[\w@%+=:,./-]|\{[a-z]\w*(?:\.\w+)*\})+")
"""A word that no shell changes: one name in braces is not expanded."""


def _with_command_last(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides without the command, and the words of the command from `--` on; none if it has no list."""
    of_command = [override for override in overrides if key_of(override) in ("trainable", "trainable.argv")]
    argv = of_command[-1] if of_command else ""
    if not argv.startswith("trainable.argv=["):
        return list(overrides), []
    try:
        listed: Any = parsed_overrides([argv])[0].value()
        words = [str(word).replace("\\${", "${") for word in listed]
    except HydraException:
        return list(overrides), []
    own = [override for override in overrides if override not in of_command]
    # The name of the sweep is left out if the command gives it.
    for rest in ([override for override in own if key_of(override) != "sweep.name"], own):
        try:
            is_same = {*with_command([*rest, "--", *words])} == {*own, "trainable=command", argv}
        except ConfigError:
            continue
        if is_same:
            return rest, ["--", *(word if _BARE_WORD.fullmatch(word) else shlex.quote(word) for word in words)]
    return list(overrides), []


def _as_typed(override: str, overrides: Sequence[str]) -> str:
    """Return one of the overrides as a person would write it; `rewritten` is the way back."""
    if axis := _DOTTED_AXIS.fullmatch(override):
        key = f'"{axis[1]}"' if "." in axis[1] else axis[1]
        return f"sweep.axes.{key}={axis[2]}"
    if override.startswith("++") and FREELY_NAMED.match(override[2:]):
        return override[2:]
    group, _, choice = override.partition("=")
    if f"sweep={group.removeprefix('sweep/')}" in overrides and group.startswith("sweep/"):
        return f"scale={choice}"
    return override


def shell_word(argument: str) -> str:
    """Quote an argument for a shell, in double quotes if Hydra needs quotes inside: "a='b'"."""
    return f'"{argument}"' if "'" in argument and not set(argument) & set('"$`\\!') else shlex.quote(argument)


_OTHER = ("sweep.axes", "sweep.exclude=", "rerun=", "mode=", "claims.", "forecast.gpus=", "compare.", "format=")
"""Overrides that a command for more seeds drops: it sets the axes, runs trials, and reruns none."""


def command(overrides: Sequence[str], extra: Sequence[str], dropped: Sequence[str] = _OTHER) -> str:
    """Return the shell command with the user's overrides, except those that begin with `dropped`, and extra ones."""
    # A program gave a section that no command line can express.
    if any(override.endswith(FROM_PROGRAM) for override in overrides):
        return f"run_sweep({', '.join(['…', *map(repr, extra)])})"
    beginnings = (*dropped, *["sweep.zip=" for override in extra if override.startswith("sweep.zip=")])
    kept = [override for override in overrides if not f"{key_of(override)}=".startswith(beginnings)]
    return shell_command([*kept, *extra])


def settle_command(overrides: Sequence[str]) -> str:
    """Return the command that runs further seeds until the verdict is clear."""
    return command(overrides, ["mode=settle"], dropped=("mode=", "rerun="))


def narrowed_to(
    cell: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    excludes: bool = False,
    zips: bool = False,
    has_baseline: bool = False,
) -> list[str]:
    """Return overrides that narrow the sweep to a cell and these seeds; its other keys on cells may not fit then."""
    quoted = {axis: f'"{axis}"' if "." in axis or "/" in axis else axis for axis in cell}
    # A frame with missing values holds whole numbers as floats.
    whole = {
        axis: int(value) if isinstance(value, float) and value.is_integer() else value for axis, value in cell.items()
    }
    given = [f"sweep.axes.{quoted[axis]}=[{literal(value)}]" for axis, value in whole.items()]
    is_range = len(seeds) > 5 and list(seeds) == list(range(len(seeds)))
    text = f"'range(0,{len(seeds)})'" if is_range else f"[{','.join(map(str, seeds))}]"  # Hydra's grammar
    given.append(f"sweep.axes.seed={text}")
    if zips:
        given.append("sweep.zip=[]")
    if excludes:
        given.append("sweep.exclude=[]")
    if has_baseline:
        given.append("sweep.baseline=null")
    return given
