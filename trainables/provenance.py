"""The hardware and software of this process."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def of_process(device: str) -> dict[str, Any]:
    """Return what produced a trial's figures; keys that would need torch are absent if it is not loaded."""
    about = _machine() | (_torch_build() | {"process": _process()} if "torch" in sys.modules else {})
    model = _gpu_model() if device.startswith("cuda") else about.get("cpu_model")
    return about | ({"device_model": model} if model else {})


@cache
def _machine() -> dict[str, Any]:
    try:
        torch_version = version("torch")
    except PackageNotFoundError:  # built from source
        torch_version = None
    about = {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch_version,
        "cpu_cores": os.cpu_count(),
        "cpu_model": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor(),
        "node_gpus": len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        "driver": _first_match("/proc/driver/nvidia/version", r"\s(\d+\.[\d.]+)\s"),
    }
    return {key: value for key, value in about.items() if value}


@cache
def _process() -> str:
    """Return an id of this process; its trials share memory layout, cores and compiled kernels.

    A command trains in other processes, and loads no torch here.
    """
    return f"{os.getpid()} of {datetime.now(UTC).isoformat(timespec='milliseconds')}"


@cache
def _torch_build() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {}
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def _gpu_model() -> str | None:
    if "torch" not in sys.modules:  # a command loads torch in its own processes
        files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        return next((model for file in files if (model := _first_match(str(file), r"Model:\s*(.+)"))), None)
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _first_match(path: str, pattern: str) -> str | None:
    file = Path(path)
    match = re.search(pattern, file.read_text()) if file.exists() else None
    return match.group(1).strip() if match else None
