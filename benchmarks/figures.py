"""The output of a benchmark: its figures on the screen and in a file, with the machine and the software versions."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return `device`, `host`, `versions` and `load_average`, which make the figures interpretable."""
    return {
        "device": _gpu() if device.startswith("cuda") else "cpu",
        "host": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **_versions("torch", "ray")},
        "load_average": os.getloadavg()[0],
    }


def _versions(*names: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def tell(figures: Mapping[str, Any], out: Path | None, *, long: str = "") -> None:
    """Print the figures as JSON, without those under `long`, and write all of them to the file, if there is one."""
    print(json.dumps({name: figure for name, figure in figures.items() if name != long}, indent=2))
    if out:
        out.write_text(json.dumps(figures, indent=2) + "\n")


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name()
