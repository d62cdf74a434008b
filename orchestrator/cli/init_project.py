"""`mode=init`: writes a small working project to start from, with config, code and a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.errors import ConfigError, unknown

FOLDER = Path(__file__).parents[1] / "templates"
"""One folder per kind; its files end in `.txt` because they are not part of this project's code."""

_RENAMED = {"gitignore": ".gitignore"}


def kinds() -> list[str]:
    """Return the kinds of project that can be written."""
    return sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())


def write_project(config: Mapping[str, Any]) -> int:
    """Write the project that `config["init"]` asks for, print what to do next, and return the exit status.

    Raises ConfigError for an unknown kind, or a folder that is not empty or cannot be written.
    """
    asked = config["init"]
    errors = list(_errors(asked))
    if errors:
        raise ConfigError(errors)
    target = Path(asked["dir"]).expanduser()
    try:
        written = list(_written(FOLDER / asked["kind"], target))
    except OSError as error:
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # else what was just written would block the next try
        raise ConfigError([f"init.dir={asked['dir']} cannot be written: {error.strerror}"]) from error
    for file in written:
        print(file)
    print(f"\nnext: cd {target} && python -m orchestrator -cd conf sweep=mine mode=plan    (README.md has the rest)")
    return 0


def _written(template: Path, target: Path) -> Iterator[Path]:
    for source in sorted(template.rglob("*.txt")):
        name = source.relative_to(template).with_suffix("")
        file = target / name.with_name(_RENAMED.get(name.name, name.name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.read_text())
        yield file


def _errors(asked: Mapping[str, Any]) -> list[str]:
    found = []
    if asked["kind"] not in kinds():
        found.append(unknown("init.kind", asked["kind"], kinds()))
    if not asked["dir"]:
        found.append("init.dir is not set: mode=init init.dir=my-sweep")
    elif (target := Path(asked["dir"]).expanduser()).exists() and (not target.is_dir() or any(target.iterdir())):
        found.append(f"init.dir={asked['dir']} exists and is not an empty folder")
    return found
