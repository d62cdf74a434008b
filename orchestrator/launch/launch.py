"""`mode=launch`: write a file that starts a cluster and runs the sweep there, from the same config."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from orchestrator.config.schema import SCHEMA
from sweeps.errors import ConfigError

NO_SETUP = "# launch.setup=['source /shared/venv/bin/activate'] puts commands here"
PORT = 6379
"""The port of the cluster's head on a machine that no other user shares."""
_HOST = re.compile(r"[\w.@:%\[\]][\w.@:%\[\]-]*")
"""A host, `user@host` or an address. ssh would take a name that starts with a dash as an option."""

_DNS_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""The name of a Kubernetes object (RFC 1123)."""
_LABEL = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)
"""The value of a Kubernetes label."""

_SLURM_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}|(?i:infinite|unlimited)")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds."""
_DURATION = re.compile(
    r"(?:(\d+) ?d(?:ays?)?)? ?(?:(\d+) ?h(?:ours?|r)?)? ?(?:(\d+) ?m(?:in(?:utes?)?)?)? ?(?:(\d+) ?s(?:ec)?)?", re.I
)

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

    @property
    def cluster_name(self) -> str:
        """The sweep's name in lower-case letters, digits and dashes, as clusters may be named (RFC 1123)."""
        return re.sub("[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40].rstrip("-") or "sweep"

    def command(self, *further: str, wait_s: int) -> str:
        """Return the shell command that runs or continues the sweep. `further` overrides must be quoted already.

        It waits `wait_s` seconds for nodes, unless the user's overrides set `cluster.wait_s`.
        """
        own = any(override.lstrip("+").startswith("cluster.wait_s=") for override in self.overrides)
        waits = () if own else (f"cluster.wait_s={wait_s}",)
        return " ".join(["python -m orchestrator", *map(shlex.quote, self.overrides), *further, *waits])


def slurm_time(text: str) -> str | None:
    """Return a duration (`2h`, `90m`, `1d12h`) or a time in Slurm's form as `sbatch` reads it; None for other text."""
    if _SLURM_TIME.fullmatch(text):
        return text
    found = _DURATION.fullmatch(text)
    if not text or not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    minutes += (hours + 24 * days) * 60 + -(-seconds // 60)  # Slurm has a resolution of one minute
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00" if minutes else None


def text_of(config: Mapping[str, Any], name: str, arguments: Sequence[str]) -> str:
    """Return the file for `launch.target`, given a checked config. Raises ConfigError with all keys that it lacks."""
    target, section = config["launch"]["target"], config["launch"]
    if target is None:
        raise ConfigError([f"launch.target is not set; valid: {', '.join(SCHEMA['launch.target'].words)}"])
    errors = [f"launch.target={target} needs launch.{key}" for key in _NEEDED.get(target, ()) if not section[key]]
    if target == "ray_up" and section["provider"] == "gcp" and not section["project"]:
        errors.append("launch.provider=gcp needs launch.project")
    errors += [
        f"launch.hosts has {host!r}, which is not a host's name"
        for host in section["hosts"]
        if not _HOST.fullmatch(host)
    ]
    if target == "slurm" and (limit := section["time_limit"]) is not None and slurm_time(str(limit)) is None:
        errors.append(f"launch.time_limit={limit!r} is no time: write 2h, 90m, 1d12h, or as Slurm does 1-12:00:00")
    types = config["cluster"]["gpu_type"]
    kept = [each for each in arguments if not each.lstrip("+").startswith(_NOT_FORWARDED)]
    texts = [(f"launch.{key}", value) for key, value in section.items()] + [("cluster.gpu_type", types)]
    if target == "ray_up":  # its comments have the command
        texts += [(f"the override {each.partition('=')[0]}", each) for each in kept]
    errors += [
        f"{key}={value!r} has more than one line" for key, value in texts if isinstance(value, str) and "\n" in value
    ]
    if target == "kuberay":
        names = (("launch.claim", section["claim"], _DNS_NAME), ("cluster.gpu_type", types, _LABEL))
        errors += [
            f"{key}={value!r} is no name that Kubernetes allows: letters, digits, '-' and '.' between them"
            for key, value, allowed in names
            if isinstance(value, str) and not allowed.fullmatch(value)
        ]
    others = [label for label in config["cluster"]["labels"] if label not in _BY_RAY]
    if others and target in ("slurm", "ssh"):
        errors.append(
            f"launch.target={target} starts nodes without labels, but cluster.labels needs {', '.join(others)}"
        )
    if errors:
        raise ConfigError(errors)
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
"""Keys that a target needs."""
