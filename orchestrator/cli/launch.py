"""`mode=launch`: write a file that starts a cluster and runs the sweep there, from the same config.

Every value in a template is quoted in the file's language, shell or YAML, so that no value can add a line, a field or a
command. Only `launch.setup` is written as it is: it consists of commands.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from orchestrator.config.schema import SCHEMA
from orchestrator.config.synonyms import Synonyms, Typed
from orchestrator.config.value_notations import seconds_in
from orchestrator.config.value_types import Described, KeyKind, Number
from sweeps.errors import ConfigError, UnknownChoice

USUAL_GPUS = 8  # GPUs of a node, unless `cluster.gpus_per_node` is set


@dataclass(frozen=True, kw_only=True)
class LaunchTarget:
    """A kind of cluster, with the names of its `launch.options`."""

    template: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()  # options that may be left out


TARGETS: Mapping[str, LaunchTarget] = {
    "slurm": LaunchTarget(template="slurm.sh", takes=("workdir", "time_limit", "partition", "memory_gb")),
    "kuberay": LaunchTarget(template="kuberay.yaml", needs=("image", "claim"), takes=("memory_gb",)),
    "skypilot": LaunchTarget(
        template="skypilot.yaml", needs=("infra",), takes=("workdir", "volume", "image", "instance", "memory_gb")
    ),
    "ssh": LaunchTarget(template="ssh.sh", needs=("hosts", "workdir")),
}

_LINE = Described(form="text in one line", fits=lambda value: isinstance(value, str | int) and _is_one_line(str(value)))
_HOST = re.compile(r"[\w.@:%\[\]][\w.@:%\[\]-]*")
"""A host, `user@host` or an address. ssh would take a name that starts with a dash as an option."""
_CLAIM = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""The name of a Kubernetes object (RFC 1123)."""
_LABEL = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)
"""The value of a Kubernetes label."""

_OPTIONS: Mapping[str, KeyKind] = {
    "memory_gb": Number(above=0, unit="GB"),
    "hosts": Described(
        form="a list of hosts' names",
        fits=lambda value: isinstance(value, list) and all(_HOST.fullmatch(str(host)) for host in value),
    ),
    "claim": Described(
        form="a name that Kubernetes allows: letters, digits, '-' and '.' between them",
        fits=lambda value: bool(_CLAIM.fullmatch(str(value))),
    ),
    "time_limit": Described(
        form="a time: write 2h, 90m, 1d12h, or as Slurm does 1-12:00:00",
        fits=lambda value: slurm_time(str(value)) is not None,
    ),
}
"""The values that an option may have; other options are text in one line."""

_SPECIAL_TO_SBATCH = re.compile(r"[\"'\\#]")  # sbatch knows no escape of a quote
_SLURM_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}|(?i:infinite|unlimited)")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds."""
_BY_RAY = ("ray.io/accelerator-type", "ray.io/node-id")  # labels that Ray gives to all nodes
_NOT_FORWARDED = ("mode=", "launch.", "cluster.address=", "cluster.gpus_per_node=")


def launch_file(config: Mapping[str, Any], name: str, arguments: Sequence[str]) -> str:
    """Return the file for `launch.target`, given a checked config. Raises ConfigError with all wrong options."""
    cluster, gpu_type = config["cluster"], config["cluster"]["gpu_type"]
    gpus = USUAL_GPUS if cluster["gpus_per_node"] is None else cluster["gpus_per_node"]
    section = {**config["launch"], "gpus_per_node": gpus}
    if section["target"] is None:
        raise ConfigError([f"launch.target is not set; valid: {', '.join(SCHEMA['launch.target'].words)}"])
    overrides = [argument for argument in arguments if not argument.lstrip("+").startswith(_NOT_FORWARDED)]
    errors = list(_errors(section, overrides, gpu_type, cluster["labels"]))
    # The hosts of ssh are counted by their names.
    if section["target"] != "ssh" and (config["nodes"] or 1) > section["nodes"]:
        errors.append(f"nodes={config['nodes']} is that of each trial; start as many: launch.nodes={config['nodes']}")
    if errors:
        raise ConfigError(errors)

    def command(*further: str, wait_s: int) -> _Raw:
        """Return the shell command that runs or continues the sweep; `further` overrides are quoted already."""
        own = any(override.lstrip("+").startswith("cluster.wait_s=") for override in overrides)
        waits = () if own else (f"cluster.wait_s={wait_s}",)
        return _Raw(" ".join(["python -m orchestrator", *map(shlex.quote, overrides), *further, *waits]))

    cpus = section["cpus_per_node"]
    values = {
        "name": name,
        # Clusters may be named in lower-case letters, digits and dashes (RFC 1123).
        "cluster_name": re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "sweep",
        "gpu_type": gpu_type if isinstance(gpu_type, str) else None,
        "node": _Raw(f"--num-cpus={cpus} --num-gpus={gpus} --disable-usage-stats --block"),
        "ray_version": version("ray"),
        "command": command,
    }
    template = TARGETS[section["target"]].template
    return _environment(template).get_template(template).render(section, **values)


def _errors(
    section: Mapping[str, Any], overrides: Sequence[str], gpu_type: Any, labels: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each option that is missing, unknown or wrong, and each text that cannot be written."""
    name, options = section["target"], section["options"]
    target = TARGETS[name]
    for option in target.needs:
        if not options.get(option):
            yield f"launch.target={name} needs launch.options.{option}"
    for option, value in options.items():
        if option not in (*target.needs, *target.takes):
            # Most are options of sbatch itself.
            hint = Synonyms.read().action(option, Typed(option, str(value))) if name == "slurm" else ""
            unknown = UnknownChoice(f"launch.options of {name}:", option, (*target.needs, *target.takes))
            yield f"launch.options.{option}: {hint}" if hint else unknown
        elif value is not None:
            yield from _OPTIONS.get(option, _LINE).errors(f"launch.options.{option}", value)
    if isinstance(gpu_type, str):
        yield from _LINE.errors("cluster.gpu_type", gpu_type)
        if name == "kuberay" and not _LABEL.fullmatch(gpu_type):
            yield f"cluster.gpu_type must be {_OPTIONS['claim'].form}, not {gpu_type!r}"
    if name == "slurm":
        texts = [
            ("cluster.gpu_type", gpu_type),
            *((f"launch.options.{option}", text) for option, text in options.items()),
        ]
        for key, text in texts:
            if isinstance(text, str) and _SPECIAL_TO_SBATCH.search(text):
                yield f"launch.target=slurm: {key} has quotes, # or a backslash, which sbatch cannot read: {text!r}"
    if name == "skypilot":
        if section["gpus_per_node"] and not isinstance(gpu_type, str) and not options.get("instance"):
            yield "launch.target=skypilot needs cluster.gpu_type or launch.options.instance, to choose its GPUs"
        # A block of YAML ends at a line that is not indented.
        texts = [("launch.setup", line) for line in section["setup"]]
        texts += [("an override", override) for override in overrides]
        for key, text in texts:
            if not _is_one_line(text):
                yield f"launch.target=skypilot: {key} has more than one line: {text!r}"
    others = [label for label in labels if label not in _BY_RAY]
    if others and name in ("slurm", "ssh"):
        yield f"launch.target={name} starts nodes without labels, but cluster.labels needs {', '.join(others)}"


def _is_one_line(text: str) -> bool:
    return len(text.splitlines()) <= 1 and text.isprintable()


def slurm_time(text: str) -> str | None:
    """Return a duration (`2h`, `90m`, `1d12h`) or a time in Slurm's form as `sbatch` reads it; None for other text."""
    if _SLURM_TIME.fullmatch(text):
        return text
    minutes = math.ceil((seconds_in(text) or 0) / 60)  # Slurm has a resolution of one minute
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00" if minutes else None


class _Raw(str):
    """Text that is already quoted for the file that it is written to."""


def _yaml(value: Any) -> _Raw:
    return _Raw(json.dumps(value if isinstance(value, int | float) else str(value), ensure_ascii=False))


def _shell(value: Any) -> _Raw:
    return _Raw(shlex.quote(str(value)))


def _sbatch(value: Any) -> _Raw:
    """Quote the value of an option: to sbatch, a further option follows a space outside of quotes."""
    # Only the name of a sweep has such signs here: they are refused in options.
    text = _SPECIAL_TO_SBATCH.sub("_", str(value))
    return _Raw(f'"{text}"' if " " in text else text)


def _environment(template: str) -> Environment:
    """Return an environment that quotes each value in the template's language, unless it is quoted already."""
    quote = _yaml if template.endswith(".yaml") else _shell
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "launch_files"),
        finalize=lambda value: value if isinstance(value, _Raw) else quote(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "raw": _Raw,
        "yaml": _yaml,
        "sbatch": _sbatch,
        "slurm_time": lambda value: slurm_time(str(value)),
        "g": lambda value: f"{value:g}",
    }
    return environment
