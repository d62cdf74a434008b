"""The `trainable` section of the config, as `trainables.command.training` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainables.command.template import words
from trainables.number import is_number

PLACES = ("trial", "source")


@dataclass(frozen=True, kw_only=True)
class CommandSettings:
    """What to run, and how to read what it says. The comments of `conf/trainable/command.yaml` tell more."""

    argv: str | Sequence[str]
    source_dir: str | None = None
    cwd: str = "trial"
    keep_work: bool = False
    env: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    grace_s: float = 5.0
    ok_exit_codes: Sequence[int] = (0,)
    oom_patterns: Sequence[str] = ()
    diverged_patterns: Sequence[str] = ()
    metrics_file: str | None = None
    samples_per_epoch: int | None = None
    target_accuracy: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    epoch_pattern: str | None = None
    step_pattern: str | None = None

    @staticmethod
    def of(config: Mapping[str, Any]) -> CommandSettings:
        """The settings among the section's keys; the others are the orchestrator's."""
        return CommandSettings(
            **{each.name: config[each.name] for each in fields(CommandSettings) if each.name in config}
        )

    @property
    def words(self) -> list[str]:
        """The command line's words, their braces not yet filled in."""
        return words(self.argv)

    def mistakes(self) -> Iterator[str]:
        """A line for every value that is none; `metrics` and the braces are judged elsewhere."""
        if self.argv == "???":
            yield (
                "trainable.argv is not set: "
                "\"trainable.argv='torchrun --nproc_per_node={gpus} train.py --batch-size {device_batch_size}'\""
            )
        elif not self.argv or not isinstance(self.argv, str | list | tuple):
            yield f"trainable.argv must be a command line, or a list of its words, not {self.argv!r}"
        if self.cwd not in PLACES:
            yield f"trainable.cwd={self.cwd!r} is not one of {', '.join(PLACES)}"
        for key in ("timeout_s", "samples_per_epoch", "target_accuracy"):
            value = getattr(self, key)
            if value is not None and not _positive(value):
                yield f"trainable.{key} must be a number above 0, or null, not {value!r}"
        if not _positive(self.grace_s):
            yield f"trainable.grace_s must be a number above 0, not {self.grace_s!r}"
        if not isinstance(self.env, Mapping):
            yield f"trainable.env must be {{NAME: value}}, not {self.env!r}"
        if not isinstance(self.metrics, Mapping):
            yield f"trainable.metrics must be {{column: how to read it}}, not {self.metrics!r}"


def _positive(value: Any) -> bool:
    return is_number(value) and value > 0
