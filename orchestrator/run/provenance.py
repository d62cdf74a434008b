"""The provenance of a sweep: who ran it, by which command, with which versions, and on which hardware.

A continued sweep needs the same hardware, and other programs must not use it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orchestrator.config.commands import shell_command
from orchestrator.config.request import Request
from orchestrator.schedule.cluster import Node
from orchestrator.store.history import changes_between
from orchestrator.store.results_folder import free_beside
from orchestrator.telemetry.foreign_load import load_now
from orchestrator.telemetry.timing_gate import FOREIGN_CPU
from sweeps.errors import ConfigError
from sweeps.trial import TrialSpec

PACKAGES = ("sweep-orchestrator", "ray", "hydra-core", "torch")

_GIT_S = 5.0


def origin(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the driver's provenance as JSON values; `arguments` are the command line without the program's name.

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
    """Return the versions to quote in a bug report, on one line."""
    provenance = origin(())
    parts = {**provenance["packages"], "Python": provenance["python"], "commit": provenance.get("orchestrator_commit")}
    return ", ".join(f"{name} {number}" for name, number in parts.items() if number)


def commit(folder: Path) -> str:
    """Return the commit of a folder's checkout, marked if files have changed since; empty outside a checkout."""
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{revision} with changes" if changed else revision


def _git(folder: Path, *arguments: str) -> str:
    """Return git's output; empty if there is no git, no checkout, or no answer in time."""
    # Git would otherwise write to its index, while the user may be committing.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str | None:
    """Return the package's version; None if it is not installed but, say, on the path as a checkout."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


Hardware = Mapping[str, str]

_CPU_INFO = Path("/proc/cpuinfo")


def hardware_of(trials: Iterable[TrialSpec], nodes: Sequence[Node], *, here: bool) -> Hardware:
    """Return the models of the hardware for these trials, `gpu` and `cpu`, as far as the nodes report them.

    A CPU model is known before a trial reports it only for this machine (`here`).
    """
    devices = {trial.device for trial in trials}
    gpus = sorted({node.gpu_type for node in nodes if node.gpus and node.gpu_type})
    models = {"gpu": " + ".join(gpus) if "cuda" in devices else ""}
    if "cpu" in devices and here:
        model = re.search(r"model name\s*:\s*(.+)", _CPU_INFO.read_text()) if _CPU_INFO.exists() else None
        models["cpu"] = model[1].strip() if model else platform.processor()
    return {kind: model for kind, model in models.items() if model}


def check_hardware(request: Request, before: Hardware, now: Hardware) -> None:
    """Raise ConfigError if the sweep's last trials ran on other hardware, unless `allow_changed` permits that."""
    # A model that only one of the two knows is no change.
    kinds = before.keys() & now.keys()
    changes = changes_between({kind: before[kind] for kind in kinds}, {kind: now[kind] for kind in kinds})
    if changes and not request.settings.allow_changed:
        heading = f"{request.results_dir} holds results from other hardware:"
        raise ConfigError([heading, *changes, f"{way_on(request)}: the tables keep devices apart"])


def way_on(request: Request) -> str:
    """Return what to write if the results in the sweep's folder are others: a name that is free, or a permission."""
    beside = f"sweep.name={free_beside(request.results_dir).name}"
    # A new folder has nothing to settle.
    beside += " mode=run" if request.settings.mode == "settle" else ""
    return f"set {beside}, or continue here with allow_changed=true"


def load_warning(to_run: Sequence[TrialSpec], consequence: str = "timings will be discarded") -> str:
    """Return a warning if other programs on this machine would disturb the timings of these trials; else empty."""
    share, busiest = (0.0, "") if all(trial.timing == "shared" for trial in to_run) else load_now()
    if share <= FOREIGN_CPU:
        return ""
    most = f", most of it {busiest}" if busiest else ""
    return f"other programs use {share:.0%} CPU{most}: {consequence}; close them"
