"""What is wrong with a command's config, found before anything starts; imports nothing that computes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainables.availability import not_here, runs_here
from trainables.command.metrics import declared
from trainables.command.settings import LENGTHS, NAMES, CommandSettings, TemplateError, fill


def errors(config: Mapping[str, Any]) -> Iterator[str]:
    """A line for everything that is wrong with `config["trainable"]`; the other sections are what braces may name."""
    settings = CommandSettings.of(config["trainable"])
    wrong = list(settings.errors())
    yield from wrong
    if not wrong:
        yield from _braces(settings, config)
        yield from _files(settings)
        yield from _unreachable_axes(settings, config)
        if runs_here(config):
            yield from _program(settings)
        yield from _patterns("oom_patterns", settings.oom_patterns)
        yield from _patterns("diverged_patterns", settings.diverged_patterns)
        for key in ("epoch_pattern", "step_pattern"):
            yield from _patterns(key, filter(None, [getattr(settings, key)]))
        yield from declared(settings.metrics)


def remarks(config: Mapping[str, Any]) -> Iterator[str]:
    """A line for what may be a mistake: a length that is not passed to the command, a program that is not here yet."""
    settings = CommandSettings.of(config["trainable"])
    for name, length in (config.get("budget") or {}).items():
        same = _SAME_LENGTH.get(name, (name,))
        if length is not None and not may_hear(settings, (*same, f"budget.{name}")):
            yield (
                f"trainable.argv has no {{{name}}}, so budget.{name}={length:g} does not reach the command, "
                f"which trains as long as it does by itself: name it there, or read SWEEP_{name.upper()}"
            )
    yield from _unused(settings, config)
    yield from _one_gpu(settings, config)
    yield from _warm_up(settings, config)
    if not runs_here(config):
        yield from not_here(config, _program(settings))


OF_GPUS = ("gpus", "global_batch_size")
"""Either tells a command how many GPUs it has, or how much they compute together."""
_SAME_LENGTH = dict.fromkeys(("samples", "steps"), ("samples", "steps"))
"""Lengths of which either form will do."""
_HEEDED = ("gpus", "strategy", "resources", "uneven_batch", "budget")
"""Axes, or their sections, that change what a command is given to compute with, or of which more is said elsewhere."""
_WARMED_UP = ("linear", "lars", "lamb")
"""Learning-rate rules that begin with a warm-up."""
_READ = (*(each.name for each in fields(CommandSettings)), "lr", "reference_batch_size", "optimizer")


def _unused(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    """Axes with several values that never reach the command, neither in braces nor through its environment."""
    template = " ".join([*settings.words, *map(str, settings.env.values()), settings.metrics_file or ""])
    for axis, values in ((config.get("sweep") or {}).get("axes") or {}).items():
        section, _, key = axis.partition(".")
        reads = section in _HEEDED or axis in _TELL or (section == "trainable" and key.partition(".")[0] in _READ)
        if reads or not _several(values) or f"{{{axis}" in template or (axis in NAMES and may_hear(settings, (axis,))):
            continue
        alike = "train alike, but for chance of the command's own" if axis == "seed" else "train alike"
        way_on = f"name it there, or read SWEEP_{axis.upper()}" if axis in NAMES else "name it there"
        yield f"trainable.argv has no {{{axis}}}, so all values of sweep.axes.{axis} {alike}: {way_on}"


def _one_gpu(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    """A command that does not hear of its GPUs may use one of several: rates by the whole batch would mislead."""
    counts = ((config.get("sweep") or {}).get("axes") or {}).get("gpus")
    if isinstance(counts, list) and max(counts, default=0) > 1 and not may_hear(settings, OF_GPUS):
        yield (
            "trainable.argv has no {gpus}: a single-GPU script still uses one GPU, unless it takes all GPUs that "
            "it sees or reads SWEEP_GPUS. Start one process per GPU (torchrun --nproc_per_node={gpus} …), or set "
            "sweep.axes.gpus=[1]"
        )


def _warm_up(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    """A rule whose warm-up does not reach the command: its rows would be taken for those of the published rule."""
    asked = ((config.get("sweep") or {}).get("axes") or {}).get("lr_rule") or ()
    rules = [rule for rule in _WARMED_UP if rule in asked]
    if rules and config.get("warmup_epochs") and not may_hear(settings, ("warmup_from", "warmup_epochs")):
        yield (
            f"trainable.argv has no {{warmup_epochs}}, so lr_rule={rules[0]} runs without its warm-up: pass "
            "{warmup_from} and {warmup_epochs}, or set warmup_epochs=0"
        )


def _several(values: Any) -> bool:
    return len(values) > 1 if isinstance(values, list) else isinstance(values, str) and "," in values


def _braces(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    budget = config.get("budget") or {}
    unset = [name for name in LENGTHS if all(budget.get(each) is None for each in _SAME_LENGTH.get(name, (name,)))]
    values = {**config, **dict.fromkeys(NAMES, "0"), **dict.fromkeys(unset)}
    try:
        templates = {"argv": settings.words}
    except TemplateError as error:
        yield f"trainable.argv: {error}"
        return
    templates["env"] = [str(value) for value in settings.env.values()]
    templates["metrics_file"] = [settings.metrics_file] if settings.metrics_file else []
    for key, words in templates.items():
        for word in words:
            try:
                fill(word, values)
            except TemplateError as error:
                yield f"trainable.{key}: {error}"


def _files(settings: CommandSettings) -> Iterator[str]:
    """A script that is not there is the first thing that goes wrong."""
    folder = _source_dir(settings)
    try:
        words = settings.words
    except TemplateError:
        return
    for word in words:
        plain = "{" not in word and not word.startswith("-") and not any(map(str.isspace, word))
        if plain and word.endswith(".py") and not (folder / word).is_file():
            yield f"trainable.argv names {word}, and there is no such file in {folder}"


_TELL: Mapping[str, tuple[str, ...]] = {
    "device_batch_size": ("device_batch_size", "global_batch_size"),
    "global_batch_size": ("global_batch_size", "device_batch_size"),
    "lr_rule": ("lr", "lr_rule", "warmup_from"),
    "lr_multiplier": ("lr",),
    "trainable.lr": ("lr", "warmup_from", "trainable.lr"),
}
"""Axes that change nothing for a command that receives none of these. (Without a seed it has its own chance.)"""


def _unreachable_axes(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    """Axes with several values that never reach the command: their trials would be alike, and look like a finding."""
    axes = (config.get("sweep") or {}).get("axes") or {}
    for axis, names in _TELL.items():
        if _several(axes.get(axis)) and not may_hear(settings, names):
            yield (
                f"trainable.argv has no {{{names[0]}}}, so all values of sweep.axes.{axis} would train alike: "
                f"name it there, read SWEEP_{names[0].upper()}, or give the axis one value"
            )


def may_hear(settings: CommandSettings, names: Iterable[str]) -> bool:
    """Whether the command receives one of these, or may read it by itself: a module's source is not looked for."""
    try:
        words = [*settings.words, *map(str, settings.env.values()), settings.metrics_file or ""]
    except TemplateError:
        return True
    template = " ".join(words)
    if "-m" in words or "SWEEP_" in template or _reads_environment(settings):
        return True
    return any(f"{{{name}}}" in template for name in names)


def _reads_environment(settings: CommandSettings) -> bool:
    """Whether a script that the command names, or one beside it, mentions the variables that tell it the same."""
    folder = _source_dir(settings)
    scripts = [folder / word for word in settings.words if word and "{" not in word and os.path.isfile(folder / word)]
    beside = [file for script in scripts for end in ("*.py", "*.sh") for file in script.parent.glob(end)]
    return any("SWEEP_" in file.read_text(errors="replace") for file in {*scripts, *beside})


def _program(settings: CommandSettings) -> Iterator[str]:
    """The program itself, looked for as it will be: a file of the source folder, or a name on the PATH."""
    try:
        program = next(iter(settings.words), "")
    except TemplateError:
        return
    if "{" in program or "PATH" in settings.env:
        return
    file = _source_dir(settings) / program
    if file.is_file():
        if not os.access(file, os.X_OK):
            yield f"trainable.argv: {file} is not executable: name what runs it ('bash {program}'), or chmod +x it"
    elif not shutil.which(program):
        yield f"trainable.argv: there is no program {program!r}, neither in {file.parent} nor on the PATH"


def _source_dir(settings: CommandSettings) -> Path:
    return Path(settings.source_dir or ".").expanduser().absolute()


def _patterns(key: str, patterns: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"trainable.{key}: {pattern!r} is not a regular expression: {error}"
