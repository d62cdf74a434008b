"""The sections of the composed config, and values that follow directly from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OWN_SECTIONS = (
    *("mode", "backend", "workers", "results_dir", "local_results_dir", "rerun", "allow_changed", "verbose", "sweep"),
    *("strategy", "retries", "equal_failures", "hang_s", "time_limit_s", "trusted_modules", "rerun_invalid"),
    *("grad_accum_steps", "uneven_batch", "warmup_epochs", "resources", "cluster", "telemetry", "report", "plan"),
    *("predict", "compare", "claims", "tracker", "objective", "tune", "init", "launch", "hydra"),
)
"""Config sections that the orchestrator reads; all others belong to the trainable."""

IDENTIFYING = ("strategy", "grad_accum_steps", "uneven_batch", "warmup_epochs", "resources")
"""Those that can change a trial's result: part of its identity as written, `auto` as `auto`."""

AUTO_GPUS = "auto"
"""The value of the axis `gpus` that stands for 1, 2, 4 … up to all GPUs."""


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """The value under a dotted key; None if part of the path is missing."""
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def gpu_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPU types that a gang requires; empty for any."""
    asked = config["cluster"]["gpu_type"]
    return tuple(asked) if isinstance(asked, list) else (asked,) if asked else ()


def device(config: Mapping[str, Any]) -> str:
    """The device that trials run on: cuda, cpu or auto; asking for a GPU type implies cuda."""
    asked: str = config["resources"]["device"]
    return "cuda" if asked == "auto" and gpu_types(config) else asked
