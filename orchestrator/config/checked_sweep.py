"""The step from a checked config to trials; what `auto` means follows from nodes that a cluster may tell later."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from orchestrator.config.compose import Composition
from orchestrator.config.content_hashes import Versions, source_file
from orchestrator.config.request import AUTO_GPUS, Request, target
from orchestrator.config.schema import IDENTIFYING, at_default, trainable_part
from orchestrator.config.trust import is_users_own, named_code
from orchestrator.schedule.cluster import Node, of_type
from orchestrator.store.results import Results
from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.axes import Axes, Point, flat
from sweeps.branch import with_bases
from sweeps.errors import ConfigError, UnknownChoice
from sweeps.identity import COMMAND, digest, identity, without
from sweeps.layout import MODEL_PARALLEL
from sweeps.rerun_selection import rerun_errors
from sweeps.sweep import Setup, Sweep, trials
from sweeps.trial import TrialSpec

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


Check = Callable[[Mapping[str, Any]], Sequence[str]]  # a function that returns the errors in a resolved config


@dataclass(frozen=True, kw_only=True)
class CheckedSweep:
    """A sweep that may start: what to do, and everything that determines its trials, except the nodes."""

    request: Request
    composition: Composition
    remarks: Sequence[str] = ()  # facts worth knowing before the sweep runs; not errors
    results: Results | None = None  # what the results folder holds, if it was read to complete the command line
    versions: Versions = field(default_factory=Versions)
    variants: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The resolved config of each combination of config axes that was expanded so far."""
    _trials: dict[tuple[tuple[float, float, str], ...], list[TrialSpec]] = field(default_factory=dict)
    """The trials by the cores, GPUs and GPU types of the nodes, on which alone they depend."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config."""
        return self.composition.config

    @property
    def secrets(self) -> Secrets:
        """Values in the config that must not be written down."""
        return self.composition.secrets

    def fingerprint(self) -> dict[str, Any]:
        """Return the config outside the axes, with content hashes: what a continued sweep must not change."""
        return fingerprint(self.config, self.versions, self.secrets)

    def with_outputs(self, outputs: Mapping[str, str]) -> CheckedSweep:
        """Return the sweep in a folder of results whose trials write these files (see `History.outputs`)."""
        return replace(self, versions=Versions(outputs), _trials={}) if outputs else self

    def axes(self, nodes: Sequence[Node]) -> Axes:
        """Return the axes with `gpus: auto` resolved: 1, 2, 4 … up to what the nodes have."""
        axes = self.request.sweep.axes
        if axes.get("gpus") != AUTO_GPUS:
            return axes
        most = sum(_node_sizes(self.config, nodes, device_of(self.config, nodes)))
        return {**axes, "gpus": [2**power for power in range(max(1, most).bit_length())]}

    def trials(
        self, nodes: Sequence[Node], *, guessed: bool = False, check: Check = lambda config: ()
    ) -> list[TrialSpec]:
        """Return the sweep's trials on these nodes, which may be `guessed`. Raises ConfigError with all errors.

        `check` is applied to each config in which config axes are set.
        """
        # The check, the plan and the driver ask for the same trials, and an expansion composes configs with Hydra.
        shapes = tuple(sorted((node.cpus, node.gpus, node.gpu_type) for node in nodes))
        if shapes not in self._trials:
            whole = replace(self.request.sweep, axes=self.axes(nodes))
            # The base of a branch is at the reference batch and under no rule, which may be outside of the grid.
            own_trials = trials(whole, lambda point: self._setup(point, nodes, check))
            self._trials[shapes] = with_bases(own_trials, lambda axes: self._at(dict(axes), nodes)[0])
        all_trials = self._trials[shapes]
        # On the real nodes `auto` may stand for other counts, and a reference to one of them may be right.
        if not (guessed and self.request.sweep.axes.get("gpus") == AUTO_GPUS):
            points = [trial.axes for trial in all_trials]
            errors = list(baseline_errors(self.request.settings.sweep.baseline or {}, points))
            errors += rerun_errors(self.request.rerun, all_trials)
            if errors:
                raise ConfigError(errors)
        return all_trials

    def more_seeds(self, trial: TrialSpec, seeds: Sequence[int], nodes: Sequence[Node]) -> list[TrialSpec]:
        """Return trials of the same cell with these seeds, which need not be among the sweep's."""
        return self._at(dict(trial.axes), nodes, seeds)

    def _at(self, point: Point, nodes: Sequence[Node], seeds: Sequence[int] | None = None) -> list[TrialSpec]:
        """Return the trial at a point, or one for each of the seeds; they need not be among the sweep's."""
        axes = {axis: [value] for axis, value in point.items()} | ({"seed": list(seeds)} if seeds is not None else {})
        sweep = Sweep(name=self.request.sweep.name, axes=axes)
        return trials(sweep, lambda point: self._setup(point, nodes))

    def _setup(self, config_axes: Point, nodes: Sequence[Node], check: Check = lambda config: ()) -> Setup:
        key = digest(config_axes)
        if key not in self.variants:
            config = self.composition.variant(config_axes) if config_axes else self.config
            # The config without config axes was checked as a whole before.
            if config_axes and (errors := check(config)):
                raise ConfigError(errors)
            self.variants[key] = config
        return setup(self.variants[key], nodes, self.versions, self.secrets)


def baseline_errors(baseline: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if the baseline, whose axes exist, is not a cell of the grid."""
    # By `repr`, because values of axes over config keys may be lists, which cannot be hashed.
    there = {axis: {repr(point[axis]): point[axis] for point in points if axis in point} for axis in baseline}
    absent = [axis for axis, value in baseline.items() if value not in there[axis].values()]
    for axis in filter(there.get, absent):
        yield f"sweep.baseline is not a cell: {UnknownChoice(axis, baseline[axis], map(str, there[axis].values()))}"
    if not absent and not any(all(point[axis] == value for axis, value in baseline.items()) for point in points):
        values = ", ".join(f"{axis}={value}" for axis, value in baseline.items())
        yield f"sweep.baseline is not a cell: each of {values} occurs, but never together"


def setup(config: Mapping[str, Any], nodes: Sequence[Node], versions: Versions, secrets: Secrets = NO_SECRETS) -> Setup:
    """Return the setup of a config, with `auto` resolved for the nodes. Raises ValueError for missing settings."""
    trainable = config["trainable"]
    for key in ("_target_", "lr", "reference_batch_size"):
        if trainable.get(key) is None:
            raise ValueError(f"trainable.{key} is not set")
    resources = config["resources"]
    computes_on = device_of(config, nodes)
    timing, strategy = resources["timing"], config["strategy"]
    # The optimizer that LR rules look at: the trainable's declaration precedes the section.
    declared = trainable.get("optimizer")
    # The least of all nodes: trials of one gang size need the same cores wherever they run.
    cores_per_gpu = min((int(node.cpus // node.gpus) for node in _of_gpu_type(config, nodes) if node.gpus), default=1)
    return Setup(
        trainable=trainable["_target_"],
        config=_with_absolute_paths(config),
        reference_lr=trainable["lr"],
        reference_batch_size=trainable["reference_batch_size"],
        optimizer={"name": declared} if declared else config.get("optimizer") or {"name": "unknown"},
        strategy=strategy if strategy != "auto" else trainable.get("strategy") or "auto",
        device=computes_on,
        nodes=config["nodes"],
        node_sizes=_node_sizes(config, nodes, computes_on) if _may_span_nodes(trainable) else (),
        gpu_types=_gpu_types(config) if computes_on == "cuda" else (),
        cpus_per_worker=_given(resources["cpus_per_worker"]),
        cores_per_gpu=max(1, cores_per_gpu),
        timing=timing if timing != "auto" else ("device" if computes_on == "cuda" else "exclusive"),
        grad_accum_steps=config["grad_accum_steps"],
        model_parallel={name: config[name] for name in MODEL_PARALLEL},
        fsdp_size=config["fsdp_size"],
        uneven_batch=config["uneven_batch"],
        warmup_epochs=config["warmup_epochs"],
        # The resolved device identifies, not `auto`: the same config gives other results on CPUs.
        identity={"fingerprint": digest(identity(fingerprint(config, versions, secrets))), "device": computes_on},
    )


def _of_trials(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a config that trials receive: the trainable's own, and the target if there is one."""
    sections = trainable_part(config)
    if goal := target(config):
        sections["report"] = {"target": asdict(goal)}
    return sections


_FILES = {"data": ("root", "path", "tokenizer"), "model": ("path",)}  # keys that name files


def _with_absolute_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trainable's part of a config, with absolute paths: a rank may run in another folder."""
    sections = _of_trials(config)
    for name, keys in _FILES.items():
        section = config.get(name) or {}
        places = {key: str(_absolute(section[key])) for key in keys if section.get(key)}
        sections |= {name: {**section, **places}} if places else {}
    if config["trainable"].get("_target_") == COMMAND:
        sections["trainable"] = {**config["trainable"], "source_dir": str(source_dir(config["trainable"]))}
    return sections


def source_dir(trainable: Mapping[str, Any]) -> Path:
    """Return the folder of a command's files: the current directory, unless the config says otherwise."""
    return _absolute(trainable["source_dir"] or ".")


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def fingerprint(config: Mapping[str, Any], versions: Versions, secrets: Secrets = NO_SECRETS) -> dict[str, Any]:
    """Return what identifies a trial besides its point: the config without secrets, and hashes of sources and data."""
    sections = _of_trials(config)
    source: dict[str, Any] = {path: versions.source(path) for path in sorted(code_in(sections) | plugins_in(sections))}
    trainable = config["trainable"]
    # A command's code is not imported, so that the files that its words name stand for it.
    if trainable.get("_target_") == COMMAND:
        source |= versions.command(trainable["argv"], source_dir(trainable))
    # The user says that these keys change no result, such as the number of loader processes.
    counted = without(sections, config["sweep"]["identity_ignores"])
    identifying = {key: config[key] for key in IDENTIFYING}
    # An axis is no part of the fingerprint, so that a wider grid continues the sweep.
    recorded = {
        "config": secrets.value(counted),
        **identifying,
        "defaults": sorted(at_default({"config": counted, **identifying})),
        "source": source,
        "data": versions.data(config.get("data") or {}),
    }
    if weights := (config.get("model") or {}).get("path"):
        recorded["model"] = versions.model(str(weights))
    # Round-tripped as in the journal: keys that are numbers become text.
    return cast(dict[str, Any], json.loads(json.dumps(recorded)))


def code_in(sections: Mapping[str, Any]) -> set[str]:
    """Return every `package.module:name` that is code: named as such in a config, or of a module of the user's.

    `expandable_segments:True` in an environment variable, or `loss:value` in a pattern, is no code.
    """
    named = {name for _, name in named_code(sections) if _CODE.fullmatch(name)}
    others = {text for _, text in flat(sections) if isinstance(text, str) and _CODE.fullmatch(text)} - named
    # Also a name that the module takes from elsewhere, such as `criterion = nn.MSELoss`.
    modules = {text: text.partition(":")[0] for text in others}
    return named | {text for text, module in modules.items() if is_users_own(module) and source_file(module)}


def plugins_in(sections: Mapping[str, Any]) -> set[str]:
    """Return the `package.module:name` of every section whose name is a plugin's; its sources identify the trial."""
    named = {(section, value.get("name")) for section, value in sections.items() if isinstance(value, Mapping)}
    return {path for (section, name), path in _plugins().items() if (section, name) in named}


@functools.cache
def _plugins() -> dict[tuple[str, str], str]:
    # By name, because importing the registry here would load torch.
    installed, groups = entry_points(), resolve_name("trainables.component_registry:PLUGINS")
    return {
        (section, plugin.name): plugin.value
        for section, group in groups.items()
        for plugin in installed.select(group=group)
    }


def _node_sizes(config: Mapping[str, Any], nodes: Sequence[Node], device: str) -> tuple[int, ...]:
    """Return the GPUs of each node, or the worker processes that its cores suffice for."""
    if device == "cuda":
        return tuple(int(node.gpus) for node in _of_gpu_type(config, nodes))
    cores = _given(config["resources"]["cpus_per_worker"]) or 1
    return tuple(int(node.cpus // cores) for node in nodes)


def _may_span_nodes(trainable: Mapping[str, Any]) -> bool:
    """Return whether a command names the GPUs or the number of a node."""
    # Any other command would start a process for each GPU of the trial on every node.
    text = str((trainable.get("argv"), trainable.get("env")))
    return any(name in text for name in ("{gpus_per_node}", "{node_rank}"))


def _of_gpu_type(config: Mapping[str, Any], nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes whose GPUs have a type that a gang requires."""
    types = _gpu_types(config) or ("",)  # an empty type matches every GPU
    return [node for node in nodes if any(of_type(node.gpu_type, kind) for kind in types)]


def _gpu_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the GPU types that a gang requires; empty for any."""
    types = config["cluster"]["gpu_type"]
    # Trials are also made of values that are refused, to report all errors at once.
    return tuple(map(str, types if isinstance(types, list) else [types] if types else []))


def device_of(config: Mapping[str, Any], nodes: Sequence[Node]) -> str:
    """Return the device that trials run on, cuda or cpu; a configured GPU type implies cuda."""
    configured: str = config["resources"]["device"]
    if configured != "auto":
        return configured
    return "cuda" if _gpu_types(config) or any(node.gpus for node in nodes) else "cpu"


def _given(value: Any) -> Any:
    return None if value == "auto" else value
