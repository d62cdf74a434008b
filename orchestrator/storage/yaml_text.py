"""YAML of plain values, with libyaml if PyYAML was built with it, which is ten times as fast."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str | bytes) -> Any:
    """Parse the text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one


def dump(value: Any) -> str:
    """The value as text, keys in their order."""
    return str(yaml.dump(value, Dumper=_DUMPER, sort_keys=False))
