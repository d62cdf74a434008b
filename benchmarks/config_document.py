"""The documents that follow from the declaration of the keys: `conf/config.yaml` and `conf/schema.json` (for editors).

`python -m benchmarks.config_document` writes both, in a clone of the project.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import yaml

from orchestrator.config import settings
from orchestrator.config.search_path import config_dir
from orchestrator.config.settings import Settings, StandardAxes
from orchestrator.config.value_types import FLAG, KeyKind, Number, OneOf

WIDTH = 120
COMMENTS = 30
"""The column in which comments begin, or further right after a long value."""
BEGIN, END = "# ---- What runs ", "# ---- Hydra's own settings "
"""The headings between which the keys are."""


def config_yaml(before: str) -> str:
    """Return the text of `conf/config.yaml`; its beginning, and Hydra's own settings at its end, stay as they are."""
    head, tail = before[: before.index(BEGIN)], before[before.index(END) :]
    lines = [*_lines(Settings, ""), ""]
    return head + "\n".join(lines[1:]) + "\n" + tail


def _lines(keys: type[Any], indent: str) -> Iterator[str]:
    comments = _comments()[keys.__name__]
    for entry in fields(keys):
        heading, inner = entry.metadata["heading"], entry.metadata.get("section")
        if heading:
            yield ""
            yield f"# ---- {heading} ".ljust(WIDTH, "-")
            yield ""
        inner = StandardAxes if entry.name == "axes" else inner
        default = None if inner else entry.default_factory()  # type: ignore[operator]
        items = default if isinstance(default, list) and default else []
        value = "" if inner or items else f" {_written(default)}"
        yield from _commented(f"{indent}{entry.name.rstrip('_')}:{value}", comments.get(entry.name, ""))
        yield from (f"{indent}  - {item}" for item in items)
        if inner:
            yield from _lines(inner, f"{indent}  ")


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) else str(yaml.safe_dump(value, default_flow_style=True)).splitlines()[0]


def _commented(entry: str, comment: str) -> Iterator[str]:
    """Yield the lines of an entry with its comment beside it."""
    column = max(COMMENTS, len(entry) + 1)
    parts = [part for line in comment.splitlines() for part in textwrap.wrap(line, WIDTH - column - 2)]
    for number, part in enumerate(parts or [""]):
        yield f"{'' if number else entry:{column}}# {part}" if part else entry


def _comments() -> Mapping[str, Mapping[str, str]]:
    """Return {class: {field: comment}} from the strings under the fields."""
    comments: dict[str, dict[str, str]] = {}
    for declared in ast.parse(inspect.getsource(settings)).body:
        if isinstance(declared, ast.ClassDef):
            own = comments.setdefault(declared.name, {})
            for entry, text in zip(declared.body, declared.body[1:], strict=False):
                is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and is_text:
                    own[entry.target.id] = _joined(inspect.cleandoc(text.value.value))  # type: ignore[attr-defined]
    return comments


def _joined(comment: str) -> str:
    """Join the lines of a paragraph; a line that ends a paragraph is followed by an empty one."""
    return "\n".join(" ".join(paragraph.splitlines()) for paragraph in comment.split("\n\n"))


def json_schema() -> dict[str, Any]:
    """Return a JSON schema of a config file: editors complete and check keys with it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema_of(Settings)}


def _schema_of(keys: type[Any]) -> dict[str, Any]:
    comments = _comments()[keys.__name__]
    properties: dict[str, Any] = {}
    for entry in fields(keys):
        inner = entry.metadata.get("section")
        about = {"description": comments[entry.name]} if entry.name in comments else {}
        properties[entry.name.rstrip("_")] = about | (_schema_of(inner) if inner else _of_kind(entry.metadata["kind"]))
    # A config file may have sections of the trainable's own.
    return {"type": "object", "properties": properties, "additionalProperties": keys is Settings}


def _of_kind(kind: KeyKind) -> dict[str, Any]:
    allowed: list[dict[str, Any]] = [{"const": None}] if kind.null else []
    allowed += [{"enum": list(kind.words)}] if kind.words else []
    if isinstance(kind, Number):
        bounds = {"exclusiveMinimum": kind.above, "minimum": kind.at_least, "exclusiveMaximum": kind.below}
        limits = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
        allowed.append({"type": "integer" if kind.whole else "number"} | limits)
    elif kind is FLAG:
        allowed.append({"type": "boolean"})
    elif not isinstance(kind, OneOf):  # a form that only the project itself can check
        return {}
    # An axis or another key may give the value: ${optimizer.lr}.
    return {"anyOf": [*allowed, {"type": "string", "pattern": r"\$\{.*\}"}]}


def main() -> None:
    """Write both documents."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    config = config_dir() / "config.yaml"
    config.write_text(config_yaml(config.read_text(encoding="utf-8")), encoding="utf-8")
    schema = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    (config_dir() / "schema.json").write_text(schema, encoding="utf-8")


if __name__ == "__main__":
    main()
