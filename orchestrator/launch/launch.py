"""mode=launch: writes a file that starts a cluster and runs the sweep there, from the same config."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sweeps.axes import is_whole
from sweeps.errors import ConfigError, unknown

TARGETS = ("slurm", "kuberay", "ray_up", "ssh")
NO_SETUP = "# launch.setup=['source /shared/venv/bin/activate'] puts commands here"
PORT = 6379
"""The port of the cluster's head on a machine that no other user shares."""
_NOT_FORWARDED = ("mode=", "launch.", "cluster.address=")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The machines of a cluster and the sweep to start on them."""

    name: str
    """The sweep's name."""
    overrides: Sequence[str]
    """The user's overrides, without those of this launch."""
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_gb_per_node: float | None
    gpu_type: str | None
    time_limit: str | None
    partition: str | None
    setup: Sequence[str]
    """Shell commands that each node runs first, for example to activate an environment."""
    workdir: str | None
    image: str | None
    claim: str | None
    """The persistent volume claim that holds the results."""
    provider: str
    region: str | None
    project: str | None
    instance: str | None
    hosts: Sequence[str]

    def command(self, *further: str, wait_s: int) -> str:
        """Return the shell command that runs or continues the sweep. `further` overrides must be quoted already.

        It waits `wait_s` seconds for nodes, unless the user's overrides set `cluster.wait_s`.
        """
        own = any(override.lstrip("+").startswith("cluster.wait_s=") for override in self.overrides)
        waits = () if own else (f"cluster.wait_s={wait_s}",)
        return " ".join(["python -m orchestrator", *map(shlex.quote, self.overrides), *further, *waits])


def text_of(config: Mapping[str, Any], name: str, arguments: Sequence[str]) -> str:
    """Return the file for `launch.target`. Raises ConfigError with everything that is missing for it."""
    target, section = config["launch"]["target"], config["launch"]
    errors = [*_errors(target, section)]
    others = [label for label in config["cluster"]["labels"] if label not in _BY_RAY]
    if others and target in ("slurm", "ssh"):
        errors.append(
            f"launch.target={target} starts nodes without labels, but cluster.labels needs {', '.join(others)}"
        )
    if errors:
        raise ConfigError(errors)
    kept = [each for each in arguments if not each.lstrip("+").startswith(_NOT_FORWARDED)]
    types = config["cluster"]["gpu_type"]
    given = {key: value for key, value in section.items() if key != "target"}
    launch = Launch(name=name, overrides=kept, gpu_type=types if isinstance(types, str) else None, **given)
    write: Callable[[Launch], str] = import_module(f"{__package__}.{target}").text
    return write(launch)


_BY_RAY = ("ray.io/accelerator-type", "ray.io/node-id")
"""Labels that Ray gives to all nodes."""

_NEEDED: Mapping[str, Sequence[str]] = {
    "kuberay": ("image", "claim"),
    "ray_up": ("region", "instance", "workdir"),
    "ssh": ("hosts", "workdir"),
}


def _errors(target: Any, section: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value of the section that is missing or wrong."""
    if target not in TARGETS:
        unset = f"launch.target is not set; valid: {', '.join(TARGETS)}"
        yield unset if target is None else unknown("launch.target", target, TARGETS)
        return
    for key in _NEEDED.get(target, ()):
        if not section[key]:
            yield f"launch.target={target} needs launch.{key}"
    for key, least in (("nodes", 1), ("gpus_per_node", 0), ("cpus_per_node", 1)):
        if not is_whole(section[key]) or section[key] < least:
            yield f"launch.{key} must be a whole number of at least {least}, not {section[key]!r}"
    for key in ("setup", "hosts"):
        if not isinstance(section[key], list) or not all(isinstance(each, str) for each in section[key]):
            yield f"launch.{key} must be a list of texts, not {section[key]!r}"
    if target == "ray_up" and section["provider"] not in ("aws", "gcp"):
        yield unknown("launch.provider", section["provider"], ("aws", "gcp"))
    if target == "ray_up" and section["provider"] == "gcp" and not section["project"]:
        yield "launch.provider=gcp needs launch.project"
