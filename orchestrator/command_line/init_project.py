"""`mode=init`: a small working project of one's own, to be changed: config, code and test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.mistakes import MistakesError, unknown

FOLDER = Path(__file__).parents[1] / "templates"
"""A folder for each kind; its files carry `.txt` behind their names, since they are no code of this project."""

_RENAMED = {"gitignore": ".gitignore"}


def kinds() -> list[str]:
    """What can be made."""
    return sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())


def write_project(config: Mapping[str, Any]) -> int:
    """Write the project that `config["init"]` asks for, and say what to do next; the exit status.

    MistakesError for an unknown kind, or for a folder that has something in it.
    """
    asked = config["init"]
    mistakes = list(_mistakes(asked))
    if mistakes:
        raise MistakesError(mistakes)
    target = Path(asked["dir"]).expanduser()
    for source in sorted(path for path in (FOLDER / asked["kind"]).rglob("*.txt")):
        name = source.relative_to(FOLDER / asked["kind"]).with_suffix("")
        file = target / name.with_name(_RENAMED.get(name.name, name.name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.read_text())
        print(file)
    print(f"\nnext: cd {target} && python -m orchestrator -cd conf sweep=mine mode=plan    (README.md tells the rest)")
    return 0


def _mistakes(asked: Mapping[str, Any]) -> list[str]:
    found = []
    if asked["kind"] not in kinds():
        found.append(unknown("init.kind", asked["kind"], kinds()))
    if not asked["dir"]:
        found.append("init.dir is not set: mode=init init.dir=my-sweep")
    elif (target := Path(asked["dir"]).expanduser()).exists() and (not target.is_dir() or any(target.iterdir())):
        found.append(f"init.dir={asked['dir']} exists and is not an empty folder")
    return found
