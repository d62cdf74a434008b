"""Checks of a command's config before anything starts; imports no package that computes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sweeps.axes import is_number
from sweeps.errors import close_to, nearest
from sweeps.metric import column_of, named_metric
from sweeps.trial import BUDGET_UNITS
from trainables.availability import not_here, runs_here
from trainables.command.metric_declarations import declared
from trainables.command.options import with_gpus
from trainables.command.placeholders import NAMES, TemplateError, fill, lengths_of
from trainables.command.settings import CommandSettings

ANY_OF_GPUS = ("gpus", "gpus_per_node", "global_batch_size")
"""Each of these names gives a command the number of its GPUs, or the work of all of them together."""

_HANDLED_ELSEWHERE = ("gpus", "strategy", "resources", "uneven_batch", "budget")
"""Axes, or their sections, that change the command's resources, or for which other checks exist."""

_LAUNCHERS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
"""Programs that start the Python that they belong to, with the modules that do the same."""

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish")
_SIGN_OF_A_SHELL = re.compile(r"\$[A-Za-z_({]|`|^(?:\|\|?|&&?|;)$|;$|^(?:\d|&)?[<>]|^~(?:/|$)")
"""Variables, pipes, redirections and the home folder, where a shell would replace them."""

_OTHER_BRACES = re.compile(
    r"\$\{(?P<a>\w+)\}|(?<!\S)(?:\$(?P<b>\w+)|%(?P<c>\w+)%|\{\{(?P<d>\w+)\}\}|<(?P<e>\w+)>)(?!\S)"
)
"""Names as a shell, cmd, Jinja or a manual writes them. Within a word, all but `${name}` may be meant as they are."""

_WITH_WARM_UP = ("linear", "lars", "lamb")  # learning-rate rules with a warm-up

_READ = (*(known.name for known in fields(CommandSettings)), "lr", "reference_batch_size", "optimizer")
"""Keys of the section `trainable` that are read without the command's help."""

_RECEIVED_AS: Mapping[str, tuple[str, ...]] = {
    "device_batch_size": ("device_batch_size", "global_batch_size"),
    "global_batch_size": ("global_batch_size", "device_batch_size"),
    "lr_rule": ("lr", "lr_rule", "warmup_from"),
    "lr_multiplier": ("lr",),
    "trainable.lr": ("lr", "warmup_from", "trainable.lr"),
    "nodes": ("gpus_per_node", "node_rank", "nodes"),
    "tensor_parallel": ("tp", "tensor_parallel", "dp"),
    "context_parallel": ("cp", "context_parallel", "dp"),
    "pipeline_parallel": ("pp", "pipeline_parallel", "dp"),
}
"""Axes that change nothing for a command that receives none of these names. A seed is not among them: without one, runs
differ by chance."""


def errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each error in `config["trainable"]`; braces may name the other sections."""
    settings = CommandSettings.of(config["trainable"])
    wrong = list(settings.errors())
    yield from wrong
    if wrong:
        return
    try:
        words = settings.words
    except TemplateError as error:
        yield f"trainable.argv: {error}"
    else:
        yield from _argv_errors(settings, words, config)
    yield from _pattern_errors(settings)
    yield from declared(settings.metrics)
    metric = named_metric(config)
    # A framework may report any metric, but hardly one that differs from another by a letter.
    if column_of(metric) not in settings.metrics and (close := nearest(metric, settings.metrics)):
        yield f"report.metric={metric}: the command's output is read for no such metric{close}"


def remarks(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for what may be an error in a valid config: a length that does not arrive, a missing program."""
    settings = CommandSettings.of(config["trainable"])
    stops = "stops only Hugging Face's Trainer, Lightning and Keras" if settings.adapter != "off" else "has no effect"
    lengths = _lengths(settings, config)
    same = [name for name in BUDGET_UNITS if lengths[name] is not None]
    for name, length in (config.get("budget") or {}).items():
        effect = stops if name != "seconds" else "has no effect"
        if length is not None and not may_receive(settings, (*same, f"budget.{name}")):
            yield f"trainable.argv has no {{{name}}}: budget.{name}={length:g} {effect}"
    yield from _unused_axes(settings, config)
    axes = _axes(config)
    gpus = axes.get("gpus")
    if isinstance(gpus, list) and max(gpus, default=0) > 1 and not may_receive(settings, ANY_OF_GPUS):
        started = " ".join(with_gpus(settings.words)).partition("{gpus}")[0]
        yield (
            "trainable.argv has no {gpus}: if the script uses one GPU only, write sweep.axes.gpus=[1], or"
            f" -- {started}{{gpus}} …"
        )
    rules = [rule for rule in _WITH_WARM_UP if rule in (axes.get("lr_rule") or ())]
    if rules and config.get("warmup_epochs") and not may_receive(settings, ("warmup_from", "warmup_epochs")):
        yield (
            f"trainable.argv has no {{warmup_epochs}}: lr_rule={rules[0]} has no warm-up; write warmup_epochs=0,"
            " or pass it and {warmup_from}"
        )
    if not runs_here(config):
        yield from not_here(config, [*_missing_program(settings), *_missing_python(settings)])
    signs = [word for word in settings.words if _SIGN_OF_A_SHELL.search(word)]
    # A shell gets such signs as they are, and interprets them itself.
    if signs and not any(Path(word).name in _SHELLS for word in settings.words):
        yield (
            f"no shell runs trainable.argv, so the command gets {' '.join(signs[:5])} as "
            f"{'it is' if len(signs) == 1 else 'they are'}: use bash -c '…' if a shell is to interpret it, or "
            "${oc.env:HOME} for a variable"
        )


def may_receive(settings: CommandSettings, names: Iterable[str]) -> bool:
    """Return whether the command receives any of these names, or may read them: a module's source is not searched."""
    template = _template(settings)
    # What a module or a shell does with its environment cannot be seen from here.
    if "-m" in settings.words or "SWEEP_" in template:
        return True
    # The scripts are read last, because there may be many.
    if any(f"{{{name}}}" in template for name in names):
        return True
    folder = _source_dir(settings)
    scripts = [folder / word for word in settings.words if word and "{" not in word and os.path.isfile(folder / word)]
    beside = [file for script in scripts for end in ("*.py", "*.sh") for file in script.parent.glob(end)]
    return any("SWEEP_" in file.read_text(errors="replace") for file in {*scripts, *beside})


def _template(settings: CommandSettings) -> str:
    """Return all text whose braces are filled."""
    return " ".join([*settings.words, *map(str, settings.env.values()), settings.metrics_file or ""])


def _unused_axes(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each axis with several values that never reaches the command."""
    template = _template(settings)
    for axis, values in _axes(config).items():
        section, _, key = axis.partition(".")
        is_read = section in _HANDLED_ELSEWHERE or (section == "trainable" and key.partition(".")[0] in _READ)
        is_received = f"{{{axis}" in template or (axis in NAMES and may_receive(settings, (axis,)))
        if is_read or is_received or axis in _RECEIVED_AS or not _has_several(values):
            continue
        alike = "train alike, but for chance" if axis == "seed" else "train alike"
        yield f"trainable.argv has no {{{axis}}}: all values of sweep.axes.{axis} {alike}"


def _argv_errors(settings: CommandSettings, words: Sequence[str], config: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors of the command's words: braces, files that are missing, and axes that it would not receive."""
    braces = list(_brace_errors(settings, config))
    yield from braces
    runs_shell = any(Path(word).name in _SHELLS for word in words)
    for match in _OTHER_BRACES.finditer(" ".join(words)):
        name, text = match[match.lastgroup or ""], match[0]
        if name in NAMES and not (runs_shell and text[1] != "{"):  # a shell may have a variable of this name
            yield f"trainable.argv: the command would not get a value in place of {text}: write {{{name}}}"
    # A script that is missing would fail in every trial.
    folder = _source_dir(settings)
    for word in (word for word in words if word.endswith(".py") and not word.startswith("-")):
        if "{" not in word and not any(map(str.isspace, word)) and not (folder / word).is_file():
            beside = [file.name for file in (folder / word).parent.glob("*.py")]
            close = [f": write {Path(word).with_name(name)}" for name in close_to(Path(word).name, beside)]
            yield f"trainable.argv names {word}, and there is no such file in {folder}{close[0] if close else ''}"
    for axis, names in _RECEIVED_AS.items():  # trials that differ only in such an axis would look like a finding
        is_misnamed = any(f"write {{{name}}}" in line for name in names for line in braces)
        if _has_several(_axes(config).get(axis)) and not may_receive(settings, names) and not is_misnamed:
            yield (
                f"trainable.argv has no {{{names[0]}}}, so all values of sweep.axes.{axis} would train alike: "
                f"name it there, read SWEEP_{names[0].upper()}, or give the axis one value"
            )
    if (config.get("nodes") or 1) > 1 and not may_receive(settings, _RECEIVED_AS["nodes"]):
        yield (
            f"nodes={config['nodes']} runs the command once on each node, and each would train by itself:"
            " trainable.argv has no {gpus_per_node}"
        )
    if runs_here(config):
        yield from _missing_program(settings)
        yield from _missing_python(settings)


def _pattern_errors(settings: CommandSettings) -> Iterator[str]:
    """Yield a line for each pattern that is not a regular expression."""
    for key in ("oom_patterns", "diverged_patterns", "epoch_pattern", "step_pattern"):
        given = getattr(settings, key) or ()
        for pattern in [given] if isinstance(given, str) else given:
            try:
                re.compile(pattern)
            except re.error as error:
                yield f"trainable.{key}: {pattern!r} is not a regular expression: {error}"


def _brace_errors(settings: CommandSettings, config: Mapping[str, Any]) -> Iterator[str]:
    # Any value will do: only the names are checked.
    values = {**config, **dict.fromkeys(NAMES, "0"), **_lengths(settings, config)}
    templates = {
        "argv": settings.words,
        "env": [str(value) for value in settings.env.values()],
        "metrics_file": [settings.metrics_file or ""],
    }
    for key, word in ((key, word) for key, words in templates.items() for word in words):
        try:
            fill(word, values, [axis for axis, given in _axes(config).items() if given])
        except TemplateError as error:
            yield f"trainable.{key}: {error}"


def _lengths(settings: CommandSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lengths of a training whose batch is 1; None for those that have no value at any batch."""
    budget = {unit: amount for unit, amount in (config.get("budget") or {}).items() if is_number(amount)}
    return lengths_of(budget, 1, settings.tokens_per_sample)


def _missing_program(settings: CommandSettings) -> Iterator[str]:
    """Yield a line if the program is neither an executable file of the source folder nor a name on the PATH."""
    program = next(iter(settings.words), "")
    if "{" in program or "PATH" in settings.env:
        return
    file = _source_dir(settings) / program
    if file.is_file():
        if not os.access(file, os.X_OK):
            yield f"trainable.argv: {file} is not executable: name what runs it ('bash {program}'), or chmod +x it"
        return
    beside = str(Path(settings.interpreter).parent) if settings.interpreter else None
    # The environment of the sweep may not be activated.
    places = os.pathsep.join(filter(None, [beside, os.environ.get("PATH"), str(Path(sys.executable).parent)]))
    if not shutil.which(program, path=places):
        elsewhere = f", nor in {beside}" if beside else ""
        if re.match(r"[A-Z_]\w*=", program):
            problem = f"{program} is a variable and no program: write it before the command of the sweep"
        else:
            problem = f"there is no program {program!r}, neither in {file.parent} nor on the PATH{elsewhere}"
        yield f"trainable.argv: {problem}"
    elif beside and program in _LAUNCHERS and not shutil.which(program, path=beside):
        yield (
            f"trainable.argv: {program} is not in {beside}, so the one on the PATH would start another Python: install"
            f" it there, or begin with {{python}} -m {_LAUNCHERS[program]}"
        )


def _missing_python(settings: CommandSettings) -> Iterator[str]:
    """Yield a line if `trainable.python` is no program."""
    python = settings.interpreter
    if python and "{" not in python and not shutil.which(python):
        yield f"trainable.python: there is no program {python}"


def _source_dir(settings: CommandSettings) -> Path:
    return Path(settings.source_dir or ".").expanduser().absolute()


def _axes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return (config.get("sweep") or {}).get("axes") or {}


def _has_several(values: Any) -> bool:
    return len(values) > 1 if isinstance(values, list) else isinstance(values, str) and "," in values
