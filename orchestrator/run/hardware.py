"""The hardware of a sweep: whether a continued sweep still has the same, and whether other programs use it."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator.config.request import Request
from orchestrator.schedule.cluster import Node
from orchestrator.store.history import difference
from orchestrator.telemetry.foreign_load import load_now
from orchestrator.telemetry.timing_gate import FOREIGN_CPU
from sweeps.errors import ConfigError
from sweeps.trial import TrialSpec

Hardware = Mapping[str, str]

_CPU_INFO = Path("/proc/cpuinfo")


def hardware_of(trials: Iterable[TrialSpec], nodes: Sequence[Node], *, here: bool) -> Hardware:
    """Return the models of the hardware for these trials, `gpu` and `cpu`, as far as the nodes report them.

    A CPU model is known before a trial reports it only for this machine (`here`).
    """
    devices = {trial.device for trial in trials}
    gpus = sorted({node.gpu_type for node in nodes if node.gpus and node.gpu_type})
    models = {"gpu": " + ".join(gpus) if "cuda" in devices else "", "cpu": _cpu() if "cpu" in devices and here else ""}
    return {kind: model for kind, model in models.items() if model}


def check_hardware(request: Request, before: Hardware, now: Hardware) -> None:
    """Raise ConfigError if the sweep's last trials ran on other hardware, unless `allow_changed` permits that."""
    # A model that only one of the two knows is no change.
    kinds = before.keys() & now.keys()
    changes = difference({kind: before[kind] for kind in kinds}, {kind: now[kind] for kind in kinds})
    if changes and not request.settings.allow_changed:
        heading = f"{request.results_dir} holds results from other hardware:"
        way_on = "choose another results_dir, or continue here with allow_changed=true: the tables keep devices apart"
        raise ConfigError([heading, *changes, way_on])


def _cpu() -> str:
    model = re.search(r"model name\s*:\s*(.+)", _CPU_INFO.read_text()) if _CPU_INFO.exists() else None
    return model[1].strip() if model else platform.processor()


def load_warning(to_run: Sequence[TrialSpec]) -> str:
    """Return a warning if other programs on this machine would disturb the timings of these trials; else empty."""
    if all(trial.timing == "shared" for trial in to_run) or not Path("/proc/stat").exists():
        return ""
    share, busiest = load_now()
    if share <= FOREIGN_CPU:
        return ""
    origin = f", most of it {busiest}" if busiest else ""
    return f"other programs use {share:.0%} CPU{origin}: timings will be discarded; close them"
