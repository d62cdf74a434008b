"""The `trainable` section of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sweeps.axes import is_number, is_whole
from sweeps.errors import UnknownChoice
from sweeps.metric import column_of
from trainables.command.metric_presets import PRESETS
from trainables.command.placeholders import words_of

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
        return words_of(self.argv)

    def errors(self) -> Iterator[str]:
        """Yield a line for each invalid value; `metrics` and braces are checked elsewhere."""
        if self.argv == "???":
            yield (
                "trainable.argv is not set: "
                "\"trainable.argv='torchrun --nproc_per_node={gpus} train.py --batch-size {device_batch_size}'\""
            )
        elif not self.argv or not isinstance(self.argv, str | list | tuple):
            yield f"trainable.argv must be a command line, or a list of its words, not {self.argv!r}"
        for key, choices in _CHOICES.items():
            if getattr(self, key) not in choices:
                yield UnknownChoice(f"trainable.{key}", getattr(self, key), choices)
        for key in ("timeout_s", "samples_per_epoch", "tokens_per_sample", "grace_s"):
            value = getattr(self, key)
            or_null = "" if key == "grace_s" else ", or null"
            if not (value is None and or_null) and not (is_number(value) and value > 0):
                yield f"trainable.{key} must be a number above 0{or_null}, not {value!r}"
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
