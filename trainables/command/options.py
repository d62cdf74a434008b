"""Options of launchers and scripts that take the number of GPUs, the batch, the learning rate or the epochs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath

_OF_PLACEHOLDERS = {
    "gpus": re.compile(r"--(nproc[_-]per[_-]node|num[_-](processes|gpus)|n?gpus|devices)"),
    "device_batch_size": re.compile(
        r"--((per|local|device|gpu|micro|mini|train(ing)?)[_-]?)*(batch[_-]?size|batch|bs)|-b"
    ),
    "lr": re.compile(r"--((base|init(ial)?|peak)[_-])?(lr|learning[_-]?rate)"),
}
"""Options by the placeholder that their number stands for."""
_EPOCHS = re.compile(r"--((n|num|max|total|train(ing)?)[_-]?)*epochs?")

_MPI = ("-np", "{gpus}")
_LAUNCHERS = {
    "torchrun": ("--nproc_per_node={gpus}",),
    "accelerate": ("--num_processes={gpus}", "--main_process_port={master_port}"),
    **dict.fromkeys(("mpirun", "mpiexec", "horovodrun"), _MPI),
}
"""Programs that start a process for each GPU, with the words that tell them how many."""
_OF_DEEPSPEED = re.compile(r"--(num_gpus|num_nodes|include|exclude)")
"""Options of DeepSpeed's launcher that choose its GPUs."""

_GPUS = re.compile(r"[1-9]\d*|gpu|auto")  # 0 is an index
_NUMBER = re.compile(r"\.?\d[\d.eE+-]*")

_QUOTED = re.compile(r"""["'](--?[\w-]+)["']""")
_HUGGING_FACE = ("--per_device_train_batch_size", "--learning_rate", "--num_train_epochs")
"""Options of scripts that do not have them in their text."""


def varied(words: Sequence[str], *, has_epochs: bool) -> list[str]:
    """Return a command's words with placeholders for its numbers of GPUs, batch and rate; added where it has none.

    Added options are those that the script has in its text; an option for epochs only if the budget `has_epochs`.
    """
    varied: list[str] = []
    launcher = PurePath(words[0]).name if words else ""
    for before, word in zip(["", *words], words, strict=False):
        option, equals, _ = word.partition("=")
        asked, kept = (option, f"{option}=") if equals else (before, "")
        named = [name for name, pattern in _OF_PLACEHOLDERS.items() if pattern.fullmatch(asked)]
        # The launcher's options end before its program.
        of_launcher = not any(is_launcher(one) or one.endswith(".py") for one in varied[1:])
        if _LAUNCHERS.get(launcher) == _MPI and asked in ("-n", "-np") and of_launcher:
            named = ["gpus"]
        number = _GPUS if named == ["gpus"] else _NUMBER
        is_number = number.fullmatch(word.removeprefix(kept)) is not None
        varied.append(f"{kept}{{{named[0]}}}" if named and is_number else word)
    varied = with_gpus(varied) if launcher in _LAUNCHERS or launcher == "deepspeed" else varied
    own = _options_in(words)
    for name, usual in {"device_batch_size": "--bs", "lr": "--lr"}.items():
        options = [option for option in own if _OF_PLACEHOLDERS[name].fullmatch(option)]
        if f"{{{name}}}" not in " ".join(varied):
            varied += [[*options, usual][0], f"{{{name}}}"]
    options = [option for option in own if _EPOCHS.fullmatch(option)]
    # A number that the user gives stays.
    is_given = any(_EPOCHS.fullmatch(word.partition("=")[0]) for word in words) or "{epochs}" in " ".join(words)
    return [*varied, options[0], "{epochs}"] if has_epochs and options and not is_given else varied


def rates_in(words: Sequence[str]) -> list[str]:
    """Return the numbers of a command's options for rate and batch, as overrides: the rate is tuned at the batch."""
    settings = {"lr": "trainable.lr", "device_batch_size": "trainable.reference_batch_size"}
    rates: dict[str, str] = {}
    for before, word in zip(["", *words], words, strict=False):
        option, equals, number = word.partition("=")
        asked, value = (option, number) if equals else (before, word)
        for name, setting in settings.items():
            if _OF_PLACEHOLDERS[name].fullmatch(asked) and _NUMBER.fullmatch(value):
                rates[name] = f"{setting}={value}"
    return [rates[name] for name in settings if name in rates]


def is_launcher(word: str) -> bool:
    """Return whether a word starts trainings: Python, or a program that does so for each GPU."""
    name = PurePath(word).name
    return name in (*_LAUNCHERS, "deepspeed") or re.fullmatch(r"python[\d.]*", name) is not None


def with_gpus(words: Sequence[str]) -> list[str]:
    """Return a command's words with the number of GPUs for its launcher, which is torchrun if it has none.

    DeepSpeed's launcher takes GPUs from 0 on, which other trials may use.
    """
    program, *rest = words
    name = PurePath(program).name
    if name == "deepspeed":
        script = next((place for place, word in enumerate(rest) if word.endswith(".py")), len(rest))
        pairs = zip(["", *rest], rest, strict=False)
        chooses = [any(map(_OF_DEEPSPEED.fullmatch, (before, word.partition("=")[0]))) for before, word in pairs]
        kept = [word for place, word in enumerate(rest) if place >= script or not chooses[place]]
        return ["torchrun", *_LAUNCHERS["torchrun"], *kept]
    if "{gpus" in " ".join(words):
        return list(words)
    if name in _LAUNCHERS:
        subcommand = rest[:1] if name == "accelerate" else []
        return [program, *subcommand, *_LAUNCHERS[name], *rest[len(subcommand) :]]
    is_replaced = name.startswith(("python", "{python}"))
    return ["torchrun", *_LAUNCHERS["torchrun"], *(rest if is_replaced else words)]


def _options_in(words: Sequence[str]) -> list[str]:
    """Return the options that a command's scripts have in their text, in its order; the scripts are not run."""
    texts: list[str] = []
    # Unlike pathlib's, this function takes a text that no file can have as its name.
    for script in (word for word in words if word.endswith(".py") and os.path.isfile(word)):
        with suppress(OSError):  # without permission; the trial's own error says so
            texts.append(Path(script).read_text(errors="replace"))
    own = [option for text in texts for option in _QUOTED.findall(text)]
    return own + [option for option in _HUGGING_FACE if any("HfArgumentParser" in text for text in texts)]
