"""A command line with braces to be filled in: `train.py --lr {lr}`; `{{` and `}}` stand for braces themselves."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

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
