"""Who took up a sweep, with what, and how it was asked for: provenance of the driver, as the trials have their own."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orchestrator.config.override_text import shell_command

PACKAGES = ("sweep-orchestrator", "ray", "hydra-core", "torch")

_GIT_S = 5.0


def origin(arguments: Sequence[str]) -> dict[str, Any]:
    """As JSON values; `arguments` is the command line without the program's name, or empty where there is none.

    Whoever writes it down passes the arguments through the sweep's `Secrets` first.
    `commit` is the user's own checkout's, `orchestrator_commit` that of this code; each is absent outside of one.
    """
    packages = {name: _version(name) for name in PACKAGES}
    commits = {"commit": commit(Path.cwd()), "orchestrator_commit": commit(Path(__file__).parent)}
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": packages,
        "command": shell_command(arguments),
        "arguments": list(arguments),
    } | {name: value for name, value in commits.items() if value}


def versions() -> str:
    """What a report of a fault has to name, in a line."""
    found = origin(())
    parts = {**found["packages"], "Python": found["python"], "commit": found.get("orchestrator_commit")}
    return ", ".join(f"{name} {number}" for name, number in parts.items() if number)


def commit(folder: Path) -> str:
    """The commit that a folder's checkout is at, with a word if files were changed since; empty outside of one."""
    found = _git(folder, "rev-parse", "HEAD")
    if not found:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{found} with changes" if changed else found


def _git(folder: Path, *arguments: str) -> str:
    """What git says; empty where there is no git, no checkout, or no answer in time."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str | None:
    """None for a package that is used without being installed, as from a checkout on the path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
