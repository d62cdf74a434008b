"""Answers to command lines that ask for what no setting does: each raises ConfigError with the line to type.

Such are a sweep to continue, the logs of a trial, the end of a sweep, its page, and a command without a sweep or `--`.
"""

from __future__ import annotations

import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pkgutil import resolve_name

from orchestrator.cli.recorded_arguments import continued, is_folder
from orchestrator.config.commands import program
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.hydra_private import flags_parser
from orchestrator.config.key_checks import value_errors
from orchestrator.config.overrides import key_of, rewritten, with_command, with_search_path
from orchestrator.config.schema import SCHEMA, value_at
from orchestrator.config.search_path import PRIMARY, with_primary
from orchestrator.config.suggestions import SCRIPTS, instead_of_word, suggested_in, with_known_choices
from sweeps.errors import ConfigError
from sweeps.rerun_selection import is_label

_ASKED = {
    "logs_of": ("logs", "log", "show", "trace", "describe", "inspect", "tail"),
    "stops_of": ("stop", "cancel", "kill", "scancel", "abort"),
    "pages_of": ("open", "browser", "view"),
}
"""Words that ask for single trials, the end of a sweep or its report, by the function that answers."""

_SUBMITS = re.compile(
    r"(sbatch(?!.* (-W|--wait)(?!\S))|flux (batch|submit)|bsub(?!.* -[KI])"
    r"|qsub(?!.* (-sync y|-W ?block=true)(?!\S)))(?!\S)"
)
"""A command that only submits a job, and does not wait for its end."""

_OURS = re.compile(rf"(mode=({'|'.join(SCHEMA['mode'].words)})|(results_dir|sweep(\.[\w.]+)?)=.*)")
"""An override of ours among the words of a command."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*=")
"""A variable before a command: a shell sets it, and the trials of this machine inherit it."""

_NAMES_A_SWEEP = re.compile(r"\+*sweep(=|\.axes\b.*(device|global)_batch_size)")


def check_words(overrides: Sequence[str]) -> None:
    """Raise ConfigError with the answer if overrides ask for a sweep to continue, a cell, logs, an end or a page."""
    if commands := list(continued(overrides)):
        raise ConfigError(commands)
    asked = {argument.removeprefix("mode=").removesuffix("=true") for argument in overrides}
    labels = {word for word in overrides if is_label(word) and not is_folder(word)}
    for answer, words in {"cells_of": labels, **_ASKED}.items():
        # By name, so that --help stays quick.
        if asked & {*words} and (lines := list(resolve_name(f"orchestrator.cli.status:{answer}")(overrides))):
            raise ConfigError(lines)


@dataclass(frozen=True, kw_only=True)
class _Typed:
    """A command line whose command needs another line: its parts, and why."""

    words: Sequence[str]
    """The command."""
    variables: Sequence[str]
    """What stands before it for a shell: `CUDA_VISIBLE_DEVICES=0`."""
    overrides: Sequence[str]
    has_sweep: bool
    is_submission: bool
    """Whether the command only submits a job."""
    reason: str


def check_command(own: Sequence[str], flags: Namespace, words: Sequence[str]) -> None:
    """Raise ConfigError with the line to type if a command is not behind `--`, has no sweep, or only submits a job.

    `own` are the words before `--`, and `flags` the same as parsed; `words` are those of the command.
    """
    typed = _taken_apart(own, flags, words)
    if typed is None:
        return
    # Imported here so that --help stays quick.
    from orchestrator.cli.sweep_checks import command_line

    with with_primary(flags.config_name or PRIMARY, flags.config_dir if flags.config_name else None), initialised():
        arguments, errors = _completed(typed, flags)
        line, _ = command_line(arguments)
        errors += [] if typed.is_submission else _errors_left(line)
    line = line.replace(program(), f"{program()} -m", 1) if flags.multirun else line
    raise ConfigError([*dict.fromkeys(errors), f"{typed.reason}: {' '.join([*typed.variables, line])}"])


def _taken_apart(own: Sequence[str], flags: Namespace, words: Sequence[str]) -> _Typed | None:
    """Return the parts of a command line that needs another one; None if it may do as it is."""
    overrides: list[str] = flags.overrides
    # The axes alone describe a sweep if they have a side of the batch; `-cn` may choose one.
    has_sweep = bool(flags.config_name) or any(map(_NAMES_A_SWEEP.match, own))
    reason = "choose what to compare before --, and pass it by the script's own options"
    may_do = has_sweep or "mode=init" in own or any(word[:1] == "-" for word in own)
    if not words and not {"mode=init", "init"} & {*own} and (words := _without_dashes(own, overrides)):
        # Options of the command are no overrides.
        start = next(place for place, override in enumerate(overrides) if override in words)
        behind = [word for word in overrides[start:] if word in own and word not in words]
        overrides = [*overrides[:start], *behind]
        may_do, reason = False, "a command stands behind --"
    if is_submission := _SUBMITS.match(" ".join(words)) is not None:
        may_do, reason = False, f"{words[0]} ends before the training begins: write the command of the training itself"
    variables = list(takewhile(_VARIABLE.match, words))
    ours = [word for word in words if _OURS.fullmatch(word)]
    command = [word for word in words[len(variables) :] if word not in ours]
    if may_do or not command:
        return None
    return _Typed(
        words=command,
        variables=variables,
        overrides=[*overrides, *ours],
        has_sweep=has_sweep or any(map(_NAMES_A_SWEEP.match, ours)),
        is_submission=is_submission,
        reason=reason,
    )


def _completed(typed: _Typed, flags: Namespace) -> tuple[Sequence[str], list[str]]:
    """Return the arguments of the line to type, and the errors of those that were typed."""
    from orchestrator.config.composition_errors import CompositionError

    errors: list[str] = []
    kept = [] if typed.has_sweep else ["sweep=batch_scaling"]
    kept += [word for word in with_search_path(typed.overrides, flags.config_dir) if key_of(word) != "mode"]
    if typed.is_submission:
        instead = instead_of_word(typed.words[0])
        kept += suggested_in(instead)
        errors += [] if suggested_in(instead) else [instead]
        words: Sequence[str] = ["torchrun", "--nproc_per_node={gpus}", "train.py"]
    else:
        modes = [word for word in typed.overrides if key_of(word) == "mode"]
        errors += [line for word in modes for line in value_errors({"mode": word.partition("=")[2]}, ["mode"])]
        kept += with_known_choices(modes)
        words = list(map(resolve_name("trainables.command.placeholders:with_known_names"), typed.words))
        own = resolve_name("trainables.command.options:rates_in")(typed.words)
        kept += [rate for rate in own if key_of(rate) not in map(key_of, kept)]
    if typed.is_submission or not any("{" in word for word in words):
        words = resolve_name("trainables.command.options:varied")(words, has_epochs=_has_epochs(kept))
    if "nodes" in map(key_of, kept):
        words = [word.replace("{gpus}", "{gpus_per_node}") for word in words]
    arguments = rewritten(with_command([*kept, "--", *words]))
    try:
        Composition(arguments)
    except CompositionError as error:
        errors += error.errors
        arguments = rewritten(error.corrected)
    if "mode=launch" in arguments and "launch.target" not in map(key_of, arguments):
        arguments = [*arguments, "launch.target=slurm"]  # as for sbatch
    return arguments, errors


def _errors_left(line: str) -> list[str]:
    """Return the errors that the line to type does not mend."""
    from orchestrator.cli.sweep_checks import checked, composed

    try:
        typed = flags_parser().parse_intermixed_args(with_command(shlex.split(line.removeprefix(program()))))
        checked(composed(rewritten(with_search_path(typed.overrides, typed.config_dir))))
    except ConfigError as error:
        return [message for message in error.errors if not message.startswith("write ")]
    return []


def _has_epochs(overrides: Sequence[str]) -> bool:
    """Return whether the sweep of these overrides, corrected if need be, has a budget of epochs."""
    from orchestrator.config.composition_errors import CompositionError

    corrected: Sequence[str] = ()
    # What no correction mends is told with the line.
    with suppress(ConfigError):
        try:
            return value_at(Composition(rewritten(overrides)).config, "budget.epochs") is not None
        except CompositionError as error:
            corrected = error.corrected
        return value_at(Composition(rewritten(corrected)).config, "budget.epochs") is not None
    return False


def _without_dashes(own: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the words of a command that no `--` precedes: `python train.py --lr 0.1`, `train.py`; empty if none is."""
    words = [word for word in own if "=" not in word and word in overrides and not is_folder(word)]
    scripts = [word for word in words if word.endswith(SCRIPTS)]
    # The value of a flag of ours, as in `-cd conf`, begins no command, nor does a mode: there is an `/sbin/init`.
    begins = [word for word in words if word not in SCHEMA["mode"].words and _begins_command(word)]
    if not scripts or "trainable.argv" in map(key_of, own):
        return []
    script = own.index(scripts[0])
    start = own.index(begins[0]) if begins and own.index(begins[0]) < script else script
    interpreter = [] if start < script else ["bash" if scripts[0].endswith(".sh") else "python"]
    return [*interpreter, *(word for word in own[start:] if "=" not in word or word.startswith("-"))]


def _begins_command(word: str) -> bool:
    # A launcher may be missing here, where jobs are only submitted.
    is_launcher: bool = resolve_name("trainables.command.options:is_launcher")(word)
    return is_launcher or shutil.which(word) is not None or _SUBMITS.match(word) is not None
