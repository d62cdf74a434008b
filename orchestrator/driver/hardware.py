"""The hardware that a sweep's trials run on, and whether a continued sweep still has the same."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator.config.request import Request
from orchestrator.journal.history import difference
from orchestrator.journal.line import Kind, Record
from orchestrator.scheduling.node import Node
from sweeps.mistakes import MistakesError
from sweeps.trial import TrialSpec

Hardware = Mapping[str, str]

_CPU_INFO = Path("/proc/cpuinfo")


def hardware_of(trials: Iterable[TrialSpec], nodes: Sequence[Node], *, here: bool) -> Hardware:
    """The models of the hardware for these trials, `gpu` and `cpu`, as far as the nodes report them.

    A CPU model is known before a trial reports it only for this machine (`here`).
    """
    devices = {trial.device for trial in trials}
    gpus = sorted({node.gpu_type for node in nodes if node.gpus and node.gpu_type})
    found = {"gpu": " + ".join(gpus) if "cuda" in devices else "", "cpu": _cpu() if "cpu" in devices and here else ""}
    return {kind: model for kind, model in found.items() if model}


def check_hardware(request: Request, records: Iterable[Record], now: Hardware) -> None:
    """Raise MistakesError if the sweep's last trials ran on other hardware, unless `allow_changed` permits that."""
    before = _latest(records)
    both = before.keys() & now.keys()
    changes = difference({kind: before[kind] for kind in both}, {kind: now[kind] for kind in both})
    if changes and not request.allow_changed:
        heading = f"{request.results_dir} holds results from other hardware:"
        way_on = "choose another results_dir, or continue here with allow_changed=true: the tables keep devices apart"
        raise MistakesError([heading, *changes, way_on])


def _latest(records: Iterable[Record]) -> Hardware:
    """The hardware of the most recent trials."""
    found: Hardware = {}
    for record in records:
        if record.kind == Kind.SWEEP and isinstance(hardware := record.value.get("hardware"), Mapping):
            found = {**found, **hardware}
    return found


def _cpu() -> str:
    named = re.search(r"model name\s*:\s*(.+)", _CPU_INFO.read_text()) if _CPU_INFO.exists() else None
    return named[1].strip() if named else platform.processor()
