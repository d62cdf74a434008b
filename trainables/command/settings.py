"""The `trainable` section of a command: its settings, and the braces of its command line.

`train.py --lr {lr}` receives the trial's rate; `{{` and `}}` stand for braces.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sweeps.axes import is_number, is_whole
from sweeps.errors import UnknownChoice
from sweeps.metric import column_of
from sweeps.trial import BUDGET_UNITS
from trainables.command.presets import PRESETS

LENGTHS = tuple(unit for unit in BUDGET_UNITS if unit != "tokens")  # these a command may receive from any budget

NAMES = (
    *("gpus", "devices", "device_batch_size", "global_batch_size", "grad_accum_steps", "lr", "lr_rule", "warmup_from"),
    *("warmup_epochs", "reference_batch_size", "seed", "threads", "device", "trial_id", "trial_dir"),
    *("nodes", "node_rank", "gpus_per_node", "master_addr", "master_port"),
    *("source_dir", "python", *LENGTHS, "tokens", "tokens_per_batch", "dp", "tp", "cp", "pp"),
)
"""Names for braces, besides the dotted keys of the config (`{model.depth}`)."""

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_QUOTED_OR_ESCAPED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\(?:\r\n|.)""", re.DOTALL)
_ESCAPED = re.compile(r"\\(?:\r\n|.)", re.DOTALL)
_WITHOUT_POINT = re.compile(r"(?<![\w.])(\d+)e(?=[+-]\d)")


class TemplateError(ValueError):
    """A command line with an open quote, a single brace, or a name without a value."""


def words(argv: str | Sequence[Any]) -> list[str]:
    """Split a command line as a shell would; a list is taken as it is. Raises TemplateError."""
    if not isinstance(argv, str):
        return [str(word) for word in argv]
    try:
        return shlex.split(_QUOTED_OR_ESCAPED.sub(_without_line_ends, argv))
    except ValueError as error:
        raise TemplateError(f"{argv!r} is not a command line: {error}") from error


def _without_line_ends(match: re.Match[str]) -> str:
    """Remove backslashes with the line ends that they hide; a shell keeps them within single quotes only."""
    text = match[0]
    if text.startswith('"'):
        return _ESCAPED.sub(_without_line_ends, text)
    return "" if text in ("\\\n", "\\\r\n") else text


def filled(templates: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Replace the names in these words. A word of one placeholder without text is left out: a flag that is off."""
    words = [fill(template, values) for template in templates]
    return [
        word for template, word in zip(templates, words, strict=True) if word or not _PLACEHOLDER.fullmatch(template)
    ]


def text_of(value: Any) -> str:
    """Return a value as text; YAML takes `5e-05` for a string and `5.0e-05` for a number."""
    text = str(value)
    return text if isinstance(value, str) else _WITHOUT_POINT.sub(r"\1.0e", text)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Replace the names in braces. Raises TemplateError for a name without a value, or a single brace."""

    def replaced(match: re.Match[str]) -> str:
        text, name = match[0], match[1]
        if text in ("{{", "}}"):
            return text[0]
        if name is None:
            raise TemplateError(f"{template!r} has a single {text!r}; a brace itself is written twice: {text * 2}")
        name, node = name.strip(), values
        for part in (name,) if name in values else name.split("."):
            if not isinstance(node, Mapping) or part not in node:
                last = name.rpartition(".")[2]  # `{trial.seed}`
                close = [known for known in NAMES if f"_{known}".endswith(f"_{last}") or last.endswith(f"_{known}")]
                meant = {"learning_rate": ["lr"]}.get(last) or close or difflib.get_close_matches(last, NAMES, 2, 0.75)
                write = f"write {' or '.join(f'{{{word}}}' for word in meant)}" if meant else ", ".join(NAMES)
                raise TemplateError(f"{{{name}}} is neither a config key nor a name for braces: {write}")
            node = node[part]
        if node is None:
            hint = f": set budget.{name}=N, and the budget's other lengths to null" if name in LENGTHS else ""
            raise TemplateError(f"{template!r}: {name} has no value{hint}")
        return text_of(node)

    return _BRACES.sub(replaced, template)


_CHOICES = {"cwd": ("trial", "source"), "adapter": ("auto", "off")}


@dataclass(frozen=True, kw_only=True)
class CommandSettings:
    """The command to run, and how to read its output; `conf/trainable/command.yaml` explains each key."""

    argv: str | Sequence[str] = "???"
    source_dir: str | None = None
    cwd: str = "trial"
    keep_work: bool = False
    env: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    grace_s: float = 4.0
    ok_exit_codes: Sequence[int] = (0,)
    oom_patterns: Sequence[str] = ()
    diverged_patterns: Sequence[str] = ()
    metrics_file: str | None = None
    python: str | None = None
    samples_per_epoch: int | None = None
    tokens_per_sample: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    epoch_pattern: str | None = None
    step_pattern: str | None = None
    adapter: str = "auto"

    @staticmethod
    def of(config: Mapping[str, Any]) -> CommandSettings:
        """Read the section; its other keys are the orchestrator's. The name of a preset becomes its metrics."""
        given = {known.name: config[known.name] for known in fields(CommandSettings) if known.name in config}
        metrics = given.get("metrics")
        if isinstance(metrics, str) and metrics in PRESETS:
            set_by_user = {name: value for name, value in given.items() if name != "metrics" and value is not None}
            given |= vars(PRESETS[metrics]) | set_by_user
        elif isinstance(metrics, Mapping):
            # `val_acc` is the column `val_accuracy`.
            columns = {name: how for name, how in metrics.items() if column_of(name) == name}
            given["metrics"] = columns | {column_of(name): how for name, how in metrics.items() if how is not None}
        return CommandSettings(**given)

    @property
    def interpreter(self) -> str | None:
        """The path of the command's own Python; None if it is the one that runs the sweep."""
        return os.path.expanduser(self.python) if self.python else None

    @property
    def is_preset(self) -> bool:
        """Return whether `metrics` was the name of a preset."""
        return any(self.metrics is preset.metrics for preset in PRESETS.values())

    @property
    def words(self) -> list[str]:
        """The words of the command line, with their braces. Raises TemplateError."""
        return words(self.argv)

    def errors(self) -> Iterator[str]:
        """Yield a line for each invalid value; `metrics` and braces are checked elsewhere."""
        if self.argv == "???":
            yield (
                "trainable.argv is not set: "
                "\"trainable.argv='torchrun --nproc_per_node={gpus} train.py --batch-size {device_batch_size}'\""
            )
        elif not self.argv or not isinstance(self.argv, str | list | tuple):
            yield f"trainable.argv must be a command line, or a list of its words, not {self.argv!r}"
        for key, words in _CHOICES.items():
            if getattr(self, key) not in words:
                yield UnknownChoice(f"trainable.{key}", getattr(self, key), words)
        for key, null in {
            "timeout_s": True,
            "samples_per_epoch": True,
            "tokens_per_sample": True,
            "grace_s": False,
        }.items():
            value = getattr(self, key)
            if not (value is None and null) and not (is_number(value) and value > 0):
                yield f"trainable.{key} must be a number above 0{', or null' * null}, not {value!r}"
        for key in ("oom_patterns", "diverged_patterns"):
            value = getattr(self, key)
            if not isinstance(value, list | tuple) or not all(isinstance(pattern, str) for pattern in value):
                yield f"trainable.{key} must be a list of regular expressions, not {value!r}"
        for key in ("epoch_pattern", "step_pattern", "metrics_file", "python"):
            if not isinstance(value := getattr(self, key), str | None):
                yield f"trainable.{key} must be text, or null, not {value!r}"
        if not isinstance(self.ok_exit_codes, list | tuple) or not all(map(is_whole, self.ok_exit_codes)):
            yield f"trainable.ok_exit_codes must be a list of numbers, not {self.ok_exit_codes!r}"
        if not isinstance(self.env, Mapping):
            yield f"trainable.env must be {{NAME: value}}, not {self.env!r}"
        if not isinstance(self.metrics, Mapping):
            presets = ", ".join(PRESETS)
            yield f"trainable.metrics must be {{column: how to read it}}, or one of {presets}; not {self.metrics!r}"
