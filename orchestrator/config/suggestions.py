"""Suggestions for what a user has typed, by rules of which the first with an answer counts.

A rule takes what was typed and what is known of the config, and returns what to do instead; empty if it does not apply.
`instead_of_key` lists the rules for keys. Several look a key up in the tables of `synonyms.py`: by `Typed.words`, which
are its whole name or the last part with each reading of the value (`amp=true`, `gpus=n`), then without one (`amp`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.config.commands import shell_word
from orchestrator.config.overrides import key_of
from orchestrator.config.schema import SCHEMA, options_with
from orchestrator.config.synonyms import (
    BLANK,
    SAY_NOTHING,
    UNKNOWN,
    Replacement,
    Surroundings,
    Synonyms,
    Typed,
    copyable,
    given,
    plain,
    stem,
    synonym_of,
)
from orchestrator.config.value_notations import is_money, seconds_in, values_in
from orchestrator.config.value_types import Number, OneOf
from orchestrator.store.results_folder import JOURNAL
from sweeps.errors import UnknownChoice, close_to
from sweeps.gpus import gpu_named
from sweeps.metric import usual_name
from sweeps.rerun_selection import is_label, label_axes

SCRIPTS = (".py", ".sh")
FILES_OF_CONFIGS = (".yaml", ".yml")
COMMAND = "to run a script of yours: -- python train.py --lr {lr}"
MOST_LISTED = 8  # keys of a section, or choices of a group

_KEEPS = ("only", "select", "filter", "include", "just", "cell", "cells")
_LEAVES_OUT = ("exclude", "excludes", "except", "without", "skip", "drop", "remove", "leave_out")
_CHOICES_AS_KEYS = ("strategy", "report.objective", "launch.target")
_MOST_OFFERED = 3
_LIKELY = ("budget.epochs", "sweep.budget.gpu_hours", "sweep.budget.cost")


def first(answers: Iterable[str]) -> str:
    """Return the first answer that is not empty; empty if there is none."""
    return next(filter(None, answers), "")


def instead_of_key(typed: Typed, config: Surroundings = UNKNOWN) -> str:
    """Return what to do instead of KEY=VALUE, where the key does not exist; empty if nothing is known."""
    rules = (  # the likeliest first; each with what people write
        _in_other_letters,  # Budget.Epochs=3
        _metric_of_command,  # trainable.metrics.val_acc='acc: ([0-9.]+)'
        _cells_kept,  # only=2x32, filter={gpus: 2}
        _baseline,  # baseline=1x32
        _cells_left_out,  # exclude=sqrt
        _sweep_file,  # config=mine.yaml
        _several_settings,  # resources_per_trial={cpu: 2, gpu: 1}
        _whole_key_in_tables,  # metric.goal=min; cost.gpu_hour=2.5 is also known as cost_gpu_hour
        _end_of_a_key,  # wandb.project=mine
        _gpus_of_forecast,  # mode=forecast gpus=8, gpu=H100
        _name_in_tables,  # model.lr=0.1, num_train_epochs=3
        _mode_as_flag,  # dry_run=true
        _choice_as_key,  # fsdp=true, deepspeed=ds.json
        _unit_in_name,  # max_hours=3
        _synonym_of_group,  # network=mpl
    )
    return first(rule(typed, config) for rule in rules)


def instead_of_choice(typed: Typed) -> str:
    """Return what to do instead of KEY=VALUE, where the key exists and this is none of its choices; else empty."""
    words = [f"{name}={reading}" for name in (typed.key, typed.last) for reading in typed.readings]
    return _in_tables(typed, UNKNOWN, words) or _write_choice(typed.key, typed.value)


def suggested_in(line: str) -> list[str]:
    """Return the overrides that a line says to write, the first ones of several; none if it says other things."""
    words: list[str] = []
    with suppress(ValueError):  # a sentence with quotes, and no command
        words = shlex.split(re.sub(r" \([^()]*\)$", "", line.partition("write ")[2].partition(" or ")[0]))
    return words if all("=" in word for word in words) else []


def with_known_choices(overrides: Sequence[str]) -> list[str]:
    """Return overrides with what unknown choices stand for, such as `mode=launch launch.target=slurm` for `mode=slurm`.

    An unknown mode that stands for nothing becomes `mode=plan`, which runs no trial.
    """
    known: list[str] = []
    for override in overrides:
        key, value = key_of(override), override.partition("=")[2]
        kind = SCHEMA.get(key)
        is_unknown = isinstance(kind, OneOf) and re.fullmatch(r"\w+", value) and value not in (*kind.words, "null")
        meant = suggested_in(instead_of_choice(Typed(key, value))) if is_unknown else []
        known += meant or (["mode=plan"] if is_unknown and key == "mode" else [override])
    return known


def instead_of_word(word: str, config: Surroundings = UNKNOWN) -> str:
    """Return what to do instead of a word without `=`: a mode, a flag, or a key without its value; empty if unknown."""
    return _mode(plain(word)) or instead_of_key(Typed(plain(word)), config)


def explained(line: str) -> str:
    """Return an error line; for an unknown choice that people write from habit, with what to do instead."""
    if not isinstance(line, UnknownChoice):
        return line
    value = str(line.value).lower() if isinstance(line.value, bool) else str(line.value)
    instead = instead_of_choice(Typed(line.key, value))
    return f"unknown {line.key} {line.value!r}: {instead}" if instead else line


def instead_of_section(section: str, value: str) -> str:
    """Return what to do instead of a value in place of a section: its keys that take it, if they are few.

    Such as `budget.seconds=7200` for `budget=2h`, and `tracker.wandb.enabled=true` for `tracker=wandb`.
    """
    if f"{section}.{value}.enabled" in SCHEMA:
        return f"write {section}.{value}.enabled=true"
    if instead := instead_of_choice(Typed(section, value)):
        return instead
    # A budget of the whole sweep is as likely to be meant as one of each trial.
    kinds = {key: kind for key, kind in SCHEMA.items() if key.rpartition(".")[0] in (section, f"sweep.{section}")}
    values = {key: kind.number_in(value) for key, kind in kinds.items() if isinstance(kind, Number)}
    if is_money(value):
        values = {key: number for key, number in values.items() if key.endswith("cost")}
    elif seconds_in(value):
        values = {key: number for key, number in values.items() if key.rpartition(".")[2] in ("seconds", "wall_s")}
    values |= {key: value for key, kind in kinds.items() if value in kind.words}
    values |= {key: synonym for key in kinds if (synonym := synonym_of(key, value))}
    values = {key: word for key, word in values.items() if word}
    if len(values) > _MOST_OFFERED:  # a plain number
        values = {key: word for key, word in values.items() if key in _LIKELY}
    offered = [f"{key}={word}{Replacement(key).remark}" for key, word in values.items()]
    return f"write {' or '.join(offered)}" if offered else _mode(plain(value))  # `cluster=slurm`


def no_choice(group: str, value: str, options: Sequence[str]) -> str:
    """Return that a group has no such choice, with those that may be meant."""
    if instead := instead_of_choice(Typed(group, value)):
        return f"there is no {group} {value!r}: {instead}"
    key = "scale" if group.startswith("sweep/") else group
    if close := close_to(value, options):
        return f"there is no {key} {value!r} (did you mean {' or '.join(f'{key}={option}' for option in close)}?)"
    shown = [option for option in options if not option.startswith("published/")]
    return f"there is no {key} {value!r}; valid: {', '.join(shown)}{_own_code(group, value)}"


def left_out(text: str, axes: Mapping[str, Any], axis: str = "") -> str:
    """Return the line that leaves out values of an axis: `sqrt`, `lr_rule=sqrt` or `{lr_rule: sqrt}`; else empty."""
    if is_label(text):
        text = ",".join(f"{name}:{value}" for name, value in _cell_of(text, axes).items())
    values = re.sub(r"""['"\[\] ]""", "", text).strip("{}")
    names = re.findall(r"([\w.]+):", values)
    if len(names) > 1 and {*names} <= {*axes}:  # one combination: `{gpus: 2, lr_rule: sqrt}`
        if wrong := _no_cell(dict(re.findall(r"([\w.]+):([^,]+)", values)), axes):
            return wrong
        return f"write 'sweep.exclude=[{{{values.replace(':', ': ').replace(',', ', ')}}}]'"
    if named := re.fullmatch(r"([\w.]+)[:=](.+)", values):
        axis, values = named[1], named[2]
    having = [name for name, listed in _listed(axes).items() if {*values.split(",")} <= {*listed}]
    excluded = f"[{values}]" if "," in values else values
    lines = [f"'sweep.exclude=[{{{name}: {excluded}}}]'" for name in having if axis in ("", name)]
    return f"write {' or '.join(lines)}" if lines else ""


def as_baseline(text: str, axes: Mapping[str, Any]) -> str:
    """Return the line that makes the cell with this label the baseline, or why no cell has it; empty if it is none."""
    cell = _cell_of(text, axes)
    values = ", ".join(f"{axis}: {value}" for axis, value in cell.items())
    return _no_cell(cell, axes) or (f"write 'sweep.baseline={{{values}}}'" if cell else "")


def _cell_of(label: str, axes: Mapping[str, Any]) -> dict[str, str]:
    """Return the values in a cell's label by the sweep's axes, of which one may be the global batch."""
    cell = label_axes(label)
    gpus, batch = cell.get("gpus", ""), cell.get("device_batch_size", "")
    if axes.get("global_batch_size") is None or not (gpus.isdigit() and batch.isdigit()):
        return cell
    whole = {"gpus": gpus, "global_batch_size": str(int(gpus) * int(batch))}
    return whole | {axis: value for axis, value in cell.items() if axis not in ("gpus", "device_batch_size")}


def _no_cell(cell: Mapping[str, str], axes: Mapping[str, Any]) -> str:
    """Return the values of the axis on which no cell has this value; empty if there may be such a cell."""
    listed = _listed(axes)
    wrong = (UnknownChoice(axis, value, listed[axis]) for axis, value in cell.items() if axis in listed)
    return first(line for line in wrong if line.value not in listed[line.key])


def elsewhere(key: str, value: str, names: Collection[str]) -> str:
    """Return which choices of a group have a key that the chosen one, with the keys in `names`, lacks; else empty."""
    group = key.partition(".")[0]
    if not (options := options_with(key)):
        return ""
    if group == "schedule":  # any schedule fits any training
        return f"write schedule={options[0]} {key}={value}{Replacement(key).remark}"
    beside = [dotted for dotted in names if dotted.startswith(f"{group}.") and dotted != f"{group}.name"]
    own = [dotted.partition(".")[2] for dotted in beside]
    has = f", which has {', '.join(own)}" if 0 < len(own) <= MOST_LISTED else ""
    return f"{key} is a setting of {group}={', '.join(options)}, not of the chosen {group}{has}"


def own_file(file: str) -> str:
    """Return how to run a sweep file of the user's."""
    path = Path(file)
    if path.parent.name == "sweep":
        return f"write -cd {path.parent.parent} sweep={path.stem}"
    return (
        f"sweep files are in a folder `sweep`: mkdir -p my/sweep && cp {file} my/sweep; write -cd my sweep={path.stem}"
    )


def _own_code(group: str, value: str) -> str:
    """Return a hint if the value looks like code or a file of the user's in place of a choice; else empty."""
    module, name = re.split("[.:]", value)[0], value.partition("/")[2] or "NAME"
    for of_group, form, hint in _OWN_CODE:
        if re.fullmatch(of_group, group) and re.fullmatch(form, value):
            return f"; {hint.format(group=group, value=value, module=module, name=name) or own_file(value)}"
    return ""


_OWN_CODE = (
    ("trainable", r".+\.(py|sh)", COMMAND.replace("{lr}", "{{lr}}")),
    (
        "trainable",
        r"[\w.]+:[\w.]*",
        "to use code of yours: trainable=function trainable._target_={value} 'trusted_modules=[{module}]'",
    ),
    (".*", r"[\w.]+:[\w.]*", "to use code of yours: {group}.name={value} 'trusted_modules=[{module}]'"),
    ("data", ".+", "for your own images in a folder for each class: data=imagefolder data.path=FOLDER"),
    ("model", r"\w+\.py", "for a function of yours in it: model.name={module}:FUNCTION 'trusted_modules=[{module}]'"),
    ("model", "timm.*", "or write model.name=timm:create_model +model.model_name={name} 'trusted_modules=[timm]'"),
    ("model", ".*/.*", "for a downloaded model of Hugging Face: model=hf model.path=FOLDER"),
    ("sweep", r".+\.ya?ml", ""),
    (
        "sweep",
        "published/.*",
        "the published experiments are in a clone of the repository, not in the installed package",
    ),
    ("sweep", ".+", "to use your own FOLDER/sweep/{value}.yaml, add -cd FOLDER"),
)
"""Hints by forms of a group and of the value in place of a choice; the first counts. Empty: see `own_file`."""


def _mode(name: str) -> str:
    """Return what to do instead of the name of a mode, or a synonym of one."""
    return Synonyms.read().action(f"mode={name}", Typed("mode", name)) or _write_choice("mode", name)


def _write_choice(key: str, word: str) -> str:
    """Return the line that sets a key to a choice, or to the one that the word is a synonym of; else empty."""
    kind = SCHEMA.get(key)
    choice = word if kind and word in kind.words else synonym_of(key, word)
    # A folder of results alone names no sweep to forecast.
    if (key, choice) == ("mode", "forecast") and word != choice and not given("sweep") and _has_run():
        choice = "report"
    return f"write {key}={choice}{Replacement(f'{key}={choice}').remark}" if choice else ""


def _listed(axes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the values of the axes as texts, without axes that are one word."""
    return {name: list(map(str, values)) for name, values in axes.items() if isinstance(values, list)}


def _in_tables(typed: Typed, config: Surroundings, words: Iterable[str]) -> str:
    """Return what to do instead by the first of these words with a fitting entry in the tables; else empty."""
    return first(_of_word(typed, config, word) for word in words)


def _of_word(typed: Typed, config: Surroundings, word: str) -> str:
    tables = Synonyms.read()
    if action := tables.action(word, typed):
        return action
    replacements = [replacement for replacement in tables.replacements.get(word, ()) if replacement.text != typed.key]
    there = [replacement for replacement in replacements if replacement.exists(config)]
    in_section = [one for one in there if typed.section and one.text.startswith(f"{typed.section}.")]
    if replacements and not there:
        return elsewhere(replacements[0].settable, typed.value, config.names)
    offered = (replacement.override(typed) for replacement in in_section or there)
    lines = [line for line in offered if config.fits(line)]
    # A line without a value says only which key it is.
    complete = [line for line in lines if not BLANK.search(line)]
    mode = given("mode")
    if mode == "launch" or "mode=launch" in tables.action(f"mode={mode}", Typed("mode", mode)):
        # The limits of a job come first.
        complete.sort(key=lambda line: "launch." not in line)
    return f"write {' or '.join(complete or lines)}" if lines else ""


def _in_other_letters(typed: Typed, config: Surroundings) -> str:
    key = typed.key.lower().replace("-", "_")
    return f"write {Replacement(key).override(typed)}" if key != typed.key and key in config.names else ""


def _metric_of_command(typed: Typed, config: Surroundings) -> str:
    if typed.section != "trainable.metrics" or typed.section not in config.names:
        return ""
    columns = [name.removeprefix("trainable.metrics.") for name in config.names if name.startswith(typed.section)]
    column = usual_name(typed.last)
    if column not in columns and close_to(typed.last, columns):
        return ""  # a misspelling
    key = f"{typed.section}.{column}" if column in columns else f"+{typed.key}"
    line = shell_word(f"{key}={typed.value}")
    return f"write {line}"


def _cells_kept(typed: Typed, config: Surroundings) -> str:
    if typed.last not in _KEEPS:
        return ""
    values = dict(re.findall(r"([\w.]+): *([^,{}]+)", typed.value)) or _cell_of(typed.value, config.axes)
    values = values or {name: typed.value for name, listed in _listed(config.axes).items() if typed.value in listed}
    lines = [copyable(f"sweep.axes.{axis}", value) for axis, value in values.items()]
    return f"write {' '.join(lines)}" if lines else ""


def _baseline(typed: Typed, config: Surroundings) -> str:
    return as_baseline(typed.value, config.axes) if typed.last == "baseline" else ""


def _cells_left_out(typed: Typed, config: Surroundings) -> str:
    return left_out(typed.value, config.axes) if typed.last in _LEAVES_OUT else ""


def _sweep_file(typed: Typed, config: Surroundings) -> str:
    return own_file(typed.value) if typed.value.endswith(FILES_OF_CONFIGS) and not typed.section else ""


def _several_settings(typed: Typed, config: Surroundings) -> str:
    settings = re.fullmatch(r"\{(\s*[\w.]+\s*:.*)\}", typed.value)
    if not settings:
        return ""
    items = [item.partition(":") for item in re.split(r",(?=\s*[\w.]+\s*:)", settings[1])]
    given = {name.strip(): item.strip() for name, _, item in items}
    meant = [SCHEMA.get(replacement.text) for replacement in Synonyms.read().replacements.get(typed.name, ())]
    # These are the limits of one setting, or one value.
    if {"min", "max"} <= {*given} or any(kind and kind.admits(given) for kind in meant):
        return ""
    lines = (instead_of_key(Typed(f"{typed.key}.{name}", item), config) for name, item in given.items())
    return "; ".join(filter(None, lines))


def _whole_key_in_tables(typed: Typed, config: Surroundings) -> str:
    core = typed.core
    return _in_tables(core, config, core.words(core.key, core.key.replace(".", "_"))) if core.section else ""


def _end_of_a_key(typed: Typed, config: Surroundings) -> str:
    core = typed.core
    within = [name for name in config.names if core.section and name.endswith(f".{core.key}")]
    return f"write {Replacement(within[0]).override(core)}" if within else ""


def _name_in_tables(typed: Typed, config: Surroundings) -> str:
    core = typed.core
    return _in_tables(core, config, core.words(core.name, f"~{stem(core.name)}"))


def _gpus_of_forecast(typed: Typed, config: Surroundings) -> str:
    words = typed.core.words(typed.core.name)
    names = {one.text for word in words for one in Synonyms.read().replacements.get(word, ())}
    if given("mode") != "forecast" or not names & {"sweep.axes.gpus", "cluster.gpu_type", "resources.device"}:
        return ""
    if gpu_named(typed.value) is not None:
        return f"write forecast.device={typed.value} (from the shapes of its tensors)"
    # Before a trial has run, there is nothing to extrapolate from.
    counts = values_in(typed.value.strip("[]"))
    return f"write 'forecast.gpus=[{counts}]'" if counts[:1].isdigit() and _has_run() else ""


def _has_run() -> bool:
    """Return whether the folder that the request names has results."""
    folders = (given("results_dir") or "results", given("sweep.name") or given("sweep"))
    return any(os.path.isfile(os.path.join(*folders[:parts], JOURNAL)) for parts in (1, 2))


def _mode_as_flag(typed: Typed, config: Surroundings) -> str:
    return _mode(typed.core.name) if "true" in typed.readings else ""


def _choice_as_key(typed: Typed, config: Surroundings) -> str:
    return first(_write_choice(owner, typed.core.name) for owner in _CHOICES_AS_KEYS)


def _unit_in_name(typed: Typed, config: Surroundings) -> str:
    core = typed.core
    rest, _, unit = core.name.rpartition("_")
    if not re.fullmatch(r"[\d.]+", core.value) or not unit.isalpha() or seconds_in(f"{core.value}{unit}") is None:
        return ""
    name = rest if rest.replace("_", "") and stem(rest) not in SAY_NOTHING else "time"
    return _in_tables(Typed(core.key, f"{core.value}{unit[0]}"), config, (name, f"~{stem(name)}"))


def _synonym_of_group(typed: Typed, config: Surroundings) -> str:
    names = [replacement.text for replacement in Synonyms.read().replacements.get(plain(typed.key), ())]
    group = next((name for name in names if not set(name) & set(".=") and name not in SCHEMA), "")
    # Several choices are an axis.
    options = () if typed.value.startswith("[") else config.options(group)
    return no_choice(group, typed.value, options) if options else ""
