"""The driver's provenance: who ran a sweep, with which versions, and by which command."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orchestrator.config.overrides import shell_command

PACKAGES = ("sweep-orchestrator", "ray", "hydra-core", "torch")

_GIT_S = 5.0


def origin(arguments: Sequence[str]) -> dict[str, Any]:
    """JSON values; `arguments` is the command line without the program's name, empty if there is none.

    Callers must pass the arguments through the sweep's `Secrets` before writing them anywhere.
    `commit` is that of the user's checkout, `orchestrator_commit` that of this code; each is absent outside a checkout.
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
    """The versions to quote in a bug report, on one line."""
    provenance = origin(())
    parts = {**provenance["packages"], "Python": provenance["python"], "commit": provenance.get("orchestrator_commit")}
    return ", ".join(f"{name} {number}" for name, number in parts.items() if number)


def commit(folder: Path) -> str:
    """The commit of a folder's checkout, marked if files have changed since; empty outside a checkout."""
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{revision} with changes" if changed else revision


def _git(folder: Path, *arguments: str) -> str:
    """Git's output; empty if there is no git, no checkout, or no answer in time."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str | None:
    """The package's version; None if it is not installed but, say, on the path as a checkout."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
