"""The `trainable` section of the config, as `trainables.command.training` reads it.

A command line with braces to be filled in: `train.py --lr {lr}`; `{{` and `}}` stand for braces themselves.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainables.registry import is_number

LENGTHS = ("epochs", "samples", "steps", "seconds")
"""Of the budget, which sets one of them."""

NAMES = (
    *("gpus", "device_batch_size", "global_batch_size", "grad_accum_steps", "lr", "lr_rule", "warmup_from"),
    *("warmup_epochs", "reference_batch_size", "seed", "port", "threads", "device", "trial_id", "trial_dir"),
    *("source_dir", "python", *LENGTHS),
)
"""What can stand in braces, besides the config's keys by their dotted names (`{model.depth}`)."""

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class TemplateError(ValueError):
    """Braces that cannot be filled in."""


def words(argv: str | Sequence[Any]) -> list[str]:
    """The words of a command line, as a shell would split it; a list is taken as it is.

    Splitting comes before filling in: a value with a space in it stays one word. TemplateError for an open quote.
    """
    if not isinstance(argv, str):
        return [str(word) for word in argv]
    try:
        return shlex.split(argv)
    except ValueError as error:
        raise TemplateError(f"{argv!r} is not a command line: {error}") from error


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with its names replaced. TemplateError names one that has no value, or a brace left alone."""

    def replaced(found: re.Match[str]) -> str:
        text, name = found[0], found[1]
        if text in ("{{", "}}"):
            return text[0]
        if name is None:
            raise TemplateError(f"{template!r} has a single {text!r}; a brace itself is written twice: {text * 2}")
        value = look_up(name.strip(), values)
        if value is None:
            raise TemplateError(f"{template!r}: {name.strip()} has no value{_where_set(name.strip())}")
        return str(value)

    return _BRACES.sub(replaced, template)


def look_up(name: str, values: Mapping[str, Any]) -> Any:
    """The value of a name or dotted name; TemplateError if there is none."""
    node: Any = values
    for part in (name,) if name in values else name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise TemplateError(f"{{{name}}} is neither a config key nor one of {', '.join(NAMES)}{_meant(name)}")
        node = node[part]
    return node


def _where_set(name: str) -> str:
    return f": set budget.{name}=N, and the budget's other lengths to null" if name in LENGTHS else ""


def _meant(name: str) -> str:
    """` (did you mean {device_batch_size}?)`, or nothing where no name is close."""
    close = [each for each in NAMES if each.endswith(f"_{name}") or name.endswith(f"_{each}")]
    meant = {"learning_rate": ["lr"]}.get(name) or close or difflib.get_close_matches(name, NAMES, n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(f'{{{each}}}' for each in meant)}?)" if meant else ""


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

    def errors(self) -> Iterator[str]:
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
