"""The words of a command line, and their placeholders: `train.py --lr {lr}` receives the trial's rate.

`{{` and `}}` stand for braces.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sweeps.trial import BUDGET_UNITS

LENGTHS = tuple(unit for unit in BUDGET_UNITS if unit != "tokens")  # these a command may receive from any budget

NAMES = (
    *("gpus", "devices", "device_batch_size", "global_batch_size", "grad_accum_steps", "lr", "lr_rule", "warmup_from"),
    *("warmup_epochs", "reference_batch_size", "seed", "threads", "device", "trial_id", "trial_dir"),
    *("nodes", "node_rank", "gpus_per_node", "master_addr", "master_port"),
    *("source_dir", "python", *LENGTHS, "tokens", "tokens_per_batch", "dp", "tp", "cp", "pp"),
)
"""The names of placeholders, besides the dotted keys of the config (`{model.depth}`)."""

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_QUOTED_OR_ESCAPED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\(?:\r\n|.)""", re.DOTALL)
_ESCAPED = re.compile(r"\\(?:\r\n|.)", re.DOTALL)
_WITHOUT_POINT = re.compile(r"(?<![\w.])(\d+)e(?=[+-]\d)")


def lengths_of(budget: Mapping[str, Any], batch_size: int, tokens_per_sample: int | None) -> dict[str, Any]:
    """Return the training's length in each unit, and `tokens_per_batch`; None where none follows from the budget."""
    lengths = {unit: budget.get(unit) for unit in BUDGET_UNITS}
    if tokens_per_sample and lengths["tokens"] is not None:
        lengths["samples"] = round(lengths["tokens"] / tokens_per_sample)
    if lengths["samples"] is not None:
        # Rounded up, so that no batch size trains less than the budget.
        lengths["steps"] = math.ceil(lengths["samples"] / batch_size)
    elif lengths["steps"] is not None:
        lengths["samples"] = lengths["steps"] * batch_size
    if tokens_per_sample and lengths["samples"] is not None:
        lengths["tokens"] = lengths["samples"] * tokens_per_sample
    return {**lengths, "tokens_per_batch": batch_size * tokens_per_sample if tokens_per_sample else None}


class TemplateError(ValueError):
    """A command line with an open quote, a single brace, or a name without a value."""


def words_of(argv: str | Sequence[Any]) -> list[str]:
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


def fill(template: str, values: Mapping[str, Any], axes: Collection[str] = ()) -> str:
    """Replace the names in braces. Raises TemplateError for a name without a value, or a single brace.

    Of several similar names, an error tells those of the sweep's `axes`, if any is among them.
    """

    def replaced(match: re.Match[str]) -> str:
        text, name = match[0], match[1]
        if text in ("{{", "}}"):
            return text[0]
        if name is None:
            raise TemplateError(f"{template!r} has a single {text!r}; a brace itself is written twice: {text * 2}")
        value = _value_of(name.strip(), values, axes)
        if value is None:
            hint = f": set budget.{name}=N, and the budget's other lengths to null" if name in BUDGET_UNITS else ""
            hint = ": set trainable.tokens_per_sample" if name == "tokens_per_batch" else hint
            raise TemplateError(f"{template!r}: {name} has no value{hint}")
        return text_of(value)

    return _BRACES.sub(replaced, template)


def _value_of(name: str, values: Mapping[str, Any], axes: Collection[str]) -> Any:
    """Return the value of a name, or of a dotted key. Raises TemplateError, with similar names, if there is none."""
    node: Any = values
    for part in (name,) if name in values else name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise TemplateError(f"{{{name}}} is neither a config key nor a name for braces: {_similar(name, axes)}")
        node = node[part]
    return node


_KNOWN_AS = {"learning_rate": "lr", "bs": "device_batch_size", "batch": "device_batch_size", "nproc": "gpus"}
"""Names that other programs have."""


def _similar(name: str, axes: Collection[str]) -> str:
    """Return what to write instead of an unknown name."""
    meant = _meant(name, axes)
    return f"write {' or '.join(f'{{{word}}}' for word in meant)}" if meant else ", ".join(NAMES)


def _meant(name: str, axes: Collection[str]) -> list[str]:
    """Return the names that an unknown one may stand for; of several only those of the axes, if any is among them."""
    last = name.rpartition(".")[2]  # `{trial.seed}`
    if last in _KNOWN_AS:
        return [_KNOWN_AS[last]]
    close = [known for known in NAMES if f"_{known}".endswith(f"_{last}") or last.endswith(f"_{known}")]
    close = close or difflib.get_close_matches(last, NAMES, 2, 0.75)
    return [known for known in close if known in axes] or close


def with_known_names(word: str) -> str:
    """Return a word of a command with the placeholders that unknown ones stand for."""

    def known(match: re.Match[str]) -> str:
        name = match[0][1:-1]
        meant = [] if name in NAMES or "." in name else _meant(name, ("device_batch_size",))
        return f"{{{meant[0]}}}" if meant else match[0]

    return _PLACEHOLDER.sub(known, word)
