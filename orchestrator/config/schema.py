"""The schema of the config: every key of `conf/config.yaml` with its type, range, unit or choices, declared once.

The checks of values, sections and key names follow from it. The sections `model`, `data`, `optimizer` and
`schedule` have no entries: their keys and types are those of the shipped file that the config chose, and `BOUNDS` adds
ranges.
Rules that concern several keys are in `orchestrator.cli.checks`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.config_files import config_dir
from orchestrator.store import files
from sweeps.axes import Axes, flat, is_not_finite, is_number, is_whole
from sweeps.errors import nearest, unknown
from sweeps.lr_rule import RULES
from sweeps.rerun import form_errors
from sweeps.sweep import MODEL_PARALLEL, STRATEGIES


def value_at(config: Mapping[str, Any], dotted: str) -> Any:
    """Return the value under a dotted key, or None if part of the path is missing."""
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The values that a key may have."""

    words: tuple[str, ...] = ()
    """Words that are allowed besides."""
    null: bool = False
    """Whether null is allowed besides."""

    def admits(self, value: Any) -> bool:
        """Return whether the key may have this value."""
        if value is None:
            return self.null
        return (isinstance(value, str) and value in self.words) or self._fits(value)

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the key may not have this value."""
        if not self.admits(value):
            others = "".join(f" or {other}" for other in (*self.words, *["null"] * self.null))
            yield f"{key} must be {self.form}{others}, not {'null' if value is None else repr(value)}"

    @property
    def form(self) -> str:
        """The allowed values in words, without `words` and null."""
        raise NotImplementedError

    def _fits(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """A finite number in a range."""

    above: float = -math.inf
    at_least: float = -math.inf
    below: float = math.inf
    whole: bool = False
    unit: str = ""
    hint: str = ""
    """What an error adds if the value is text."""

    @property
    def form(self) -> str:
        """The range in words."""
        bounds = [
            *([f"above {self.above:g}"] if self.above > -math.inf else []),
            *([f"of at least {self.at_least:g}"] if self.at_least > -math.inf else []),
            *([f"below {self.below:g}"] if self.below < math.inf else []),
        ]
        return f"a {'whole ' * self.whole}number {' and '.join(bounds)}" + (f" ({self.unit})" if self.unit else "")

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line if the value is not a number in the range."""
        yield from (f"{line}{self.hint if isinstance(value, str) else ''}" for line in super().errors(key, value))

    def _fits(self, value: Any) -> bool:
        if not (is_whole(value) if self.whole else is_number(value)) or not math.isfinite(value):
            return False
        return bool(self.above < value < self.below and value >= self.at_least)


@dataclass(frozen=True, kw_only=True)
class Choice(Kind):
    """One of the `words`."""

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield a line with the choices, and what may be meant."""
        from orchestrator.config.suggestions import choice_meant  # which imports this module

        if not self.admits(value):
            instead = choice_meant(key, value)
            yield unknown(key, value, (*self.words, *["null"] * self.null)) + (f"; {instead}" if instead else "")

    def _fits(self, value: Any) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Flag(Kind):
    """True or false. Hydra reads `no` as text, which would count as true."""

    @property
    def form(self) -> str:
        """Both values."""
        return "true or false"

    def _fits(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Form(Kind):
    """Values of a form that is described in words."""

    described: str
    fits: Callable[[Any], bool]

    @property
    def form(self) -> str:
        """The description."""
        return self.described

    def _fits(self, value: Any) -> bool:
        return self.fits(value)


@dataclass(frozen=True, kw_only=True)
class Structure(Form):
    """A list or a section: as long as it is something else, nothing below it can be read."""


@dataclass(frozen=True, kw_only=True)
class Parsed(Kind):
    """Values with a special grammar, which `parse` checks."""

    parse: Callable[[Any], Iterator[str]]

    def errors(self, key: str, value: Any) -> Iterator[str]:
        """Yield what the grammar refuses; these lines name the key."""
        yield from self.parse(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _names_code(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def _is_metric(value: Any) -> bool:
    if isinstance(value, Mapping):
        return set(value) == {"name", "better"} and _is_text(value["name"]) and value["better"] in ("higher", "lower")
    return _is_text(value)


def _is_folder_name(name: Any) -> bool:
    """Return whether the name makes a visible folder directly inside its parent."""
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        return False
    return name.isprintable() and not name.startswith(".") and not set(name) & set("/\\")


def _choice(*words: str, null: bool = False) -> Choice:
    return Choice(words=words, null=null)


def _text(described: str, *, null: bool = True) -> Form:
    return Form(described=described, fits=_is_text, null=null)


def _name(described: str) -> Form:
    """Return the kind of an optional name; Hydra reads some names as numbers."""
    return Form(described=described, fits=_is_scalar, null=True)


def _list(described: str, of: Callable[[Any], bool]) -> Structure:
    return Structure(described=described, fits=lambda value: isinstance(value, list) and all(map(of, value)))


def _positive(unit: str = "", *, null: bool = True) -> Number:
    return Number(above=0, unit=unit, null=null)


def _count(at_least: int = 1, *, null: bool = False) -> Number:
    return Number(at_least=at_least, whole=True, null=null)


AXES: Mapping[str, Kind] = {
    "gpus": Number(above=0, hint=": sweep.axes.gpus=auto tries 1, 2, 4 … up to all GPUs"),
    "device_batch_size": _count(),
    "global_batch_size": _count(),
    "lr_rule": _choice(*RULES),
    "lr_multiplier": Number(above=0),
    "seed": _count(0),
}
"""The values on each standard axis; on any other axis, they are those of the config key."""

SCHEMA: Mapping[str, Kind] = {
    # What runs
    "mode": _choice(
        "run", "settle", "plan", "report", "predict", "compare", "verify", "status", "list", "launch", "init"
    ),
    "sweep.name": Form(described="a plain folder name of at most 100 characters", fits=_is_folder_name),
    "sweep.axes": Structure(described=f"a section with {', '.join(AXES)}", fits=_is_mapping),
    "sweep.zip": _list(
        "a list of groups of axes like [[gpus, global_batch_size]]", lambda each: isinstance(each, list)
    ),
    "sweep.exclude": _list("a list of combinations like [{gpus: 2, lr_rule: linear}]", _is_mapping),
    "sweep.scaling": _choice("auto", "weak", "strong"),
    "sweep.baseline": Structure(described="a cell like {gpus: 1, lr_rule: none}", fits=_is_mapping, null=True),
    "sweep.phases": Form(described="[probe, train]", fits=lambda value: value == ["probe", "train"], null=True),
    "sweep.early_stop": _choice("asha", null=True),
    "sweep.early_stop_after": Number(above=0, below=1, unit="share of a trial's budget"),
    "sweep.budget.gpu_hours": Number(at_least=0, null=True),
    "sweep.budget.wall_s": Number(at_least=0, unit="seconds", null=True),
    "sweep.budget.cost": Number(at_least=0, null=True),
    "sweep.claims": _list("a list of claims like [{sentence: …, expression: …}]", lambda each: True),
    "sweep.identity_ignores": _list("a list of keys", _is_text),
    "strategy": _choice("auto", *STRATEGIES),
    "grad_accum_steps": _count(),
    "tensor_parallel": _count(),
    "context_parallel": _count(),
    "pipeline_parallel": _count(),
    "uneven_batch": Flag(),
    "warmup_epochs": Number(at_least=0),
    "rerun": Parsed(parse=form_errors),
    "allow_changed": Flag(),
    "trusted_modules": _list("a list of modules like [mypackage]", _is_text),
    # How long
    "budget.epochs": _positive(),
    "budget.samples": Number(above=0, whole=True, null=True),
    "budget.tokens": Number(above=0, whole=True, null=True),
    "budget.steps": Number(above=0, whole=True, null=True),
    "budget.seconds": _positive("seconds"),
    # Where
    "backend": _choice("ray", "inprocess"),
    "workers": _choice("warm", "per_seed", "fresh"),
    "resources.device": _choice("auto", "cuda", "cpu"),
    "resources.gpus_per_worker": Number(above=0, words=("auto",)),
    "resources.cpus_per_worker": Number(above=0, whole=True, words=("auto",)),
    "resources.timing": _choice("auto", "device", "exclusive", "shared"),
    "cluster.address": _text("auto or host:port"),
    "cluster.gpu_type": Form(
        described="a name like H100, a list of names",
        fits=lambda value: bool(value) and all(map(_is_text, value if isinstance(value, list) else [value])),
        null=True,
    ),
    "cluster.labels": Structure(
        described="a section {label: value} with text values",
        fits=lambda value: _is_mapping(value) and all(_is_text(each) for pair in value.items() for each in pair),
    ),
    "cluster.wait_s": Number(at_least=0, unit="seconds"),
    "cluster.dashboard": Flag(),
    "results_dir": Form(
        described="a folder or a URI (results_dir=. is the current folder)",
        fits=lambda value: _is_scalar(value) and value != "",
    ),
    "local_results_dir": Form(
        described="a folder", fits=lambda value: _is_scalar(value) and value != "" and "://" not in str(value)
    ),
    # Failures
    "retries": _count(0),
    "equal_failures": _count(2, null=True),
    "hang_s": _positive("seconds"),
    "time_limit_s": _positive("seconds"),
    "rerun_invalid": Number(at_least=0, unit="share of all trials"),
    # Report
    "report.objective": _choice("time", "energy", "cost", "none"),
    "report.metric": Form(
        described="a metric that trials report, such as val_loss, or {name: bleu, better: higher} (or lower)",
        fits=_is_metric,
    ),
    "report.target": Number(null=True),
    "report.margin": _positive(null=False),
    "report.price_per_gpu_hour": Number(at_least=0, null=True),
    "report.currency": _text("a name like EUR"),
    "report.show": _choice("summary", "all"),
    "report.html": Flag(),
    "claims.fail_on": _choice("refuted", "inconclusive", null=True),
    "predict.gpus": _list("a list of GPU counts like [8, 16, 32]", Number(above=0).admits),
    "predict.gpus_per_node": _positive(),
    "predict.bandwidth_gb_s": _positive("GB/s"),
    "predict.latency_s": _positive("seconds"),
    "compare.with": _text("a folder of results"),
    "sweeper.objective.column": _text("a column of summary.csv"),
    "sweeper.objective.best": _choice("max", "min"),
    "format": _choice("table", "json"),
    "telemetry.hz": Number(at_least=0),
    "verbose": Flag(),
    "tracker.tensorboard.enabled": Flag(),
    "tracker.tensorboard.dir": _text("a folder"),
    "tracker.mlflow.enabled": Flag(),
    "tracker.mlflow.uri": _text("a URI"),
    "tracker.mlflow.experiment": _name("a name"),
    "tracker.wandb.enabled": Flag(),
    "tracker.wandb.mode": _choice("offline", "online"),
    "tracker.wandb.project": _name("a name"),
    "tracker.wandb.entity": _name("a name"),
    "tune.callbacks": _list("a list like [{_target_: package.module.Class, …}]", _names_code),
    "tune.storage_path": _text("a folder or a URI"),
    # Launch
    "launch.target": _choice("slurm", "kuberay", "skypilot", "ssh", null=True),
    "launch.nodes": _count(),
    "launch.gpus_per_node": _count(0),
    "launch.cpus_per_node": _count(),
    "launch.setup": _list("a list of shell commands", _is_text),
    "launch.options": Structure(described="a section of options like {partition: gpu}", fits=_is_mapping),
    "init.dir": _name("a new or empty folder"),
    "init.kind": _choice("command", "function", "model"),
}
"""All keys of `conf/config.yaml`, in its order."""

OWN_SECTIONS = tuple(
    dict.fromkeys([key.partition(".")[0] for key in SCHEMA if not key.startswith("budget.")] + ["hydra"])
)
"""Config sections that the orchestrator reads; all others belong to the trainable."""

IDENTIFYING = ("strategy", "grad_accum_steps", *MODEL_PARALLEL, "uneven_batch", "warmup_epochs", "resources")
"""Own sections that can change a trial's result: part of its identity as written, `auto` as `auto`."""


def trainable_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a config that belong to the trainable."""
    return {key: value for key, value in config.items() if key not in OWN_SECTIONS}


def _sections_of_schema() -> dict[str, list[str]]:
    """Return the names of the keys of each section."""
    found: dict[str, list[str]] = {}
    for key in SCHEMA:
        parts = key.split(".")
        for length in range(1, len(parts)):
            names = found.setdefault(".".join(parts[:length]), [])
            names += [parts[length]] if parts[length] not in names else []
    return found


_SECTIONS = _sections_of_schema()


def structure_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every value that should be a section or a list and is not; the rest cannot be read then."""
    for section, keys in _SECTIONS.items():
        given = value_at(config, section)
        if not _is_mapping(given) and (section in config or section != "budget") and _is_in_section(config, section):
            yield f"{section} must be a section with {', '.join(keys)}, not {'null' if given is None else repr(given)}"
    for key, kind in SCHEMA.items():
        if isinstance(kind, Structure) and _is_in_section(config, key):
            yield from kind.errors(key, value_at(config, key))


def value_errors(config: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    """Yield a line for every value of these keys that the schema does not allow, apart from sections and lists."""
    for key in keys:
        kind = SCHEMA[key]
        if not isinstance(kind, Structure) and _is_in_section(config, key):
            yield from kind.errors(key, value_at(config, key))


def _is_in_section(config: Mapping[str, Any], key: str) -> bool:
    section = key.rpartition(".")[0]
    return not section or _is_mapping(value_at(config, section))


def axis_value_errors(axes: Axes) -> Iterator[str]:
    """Yield a line for every value on an axis that its key cannot have; null stands for a missing value."""
    for axis, values in axes.items():
        kind = AXES.get(axis) or SCHEMA.get(axis)
        if kind and not isinstance(values, str):
            yield from (line for value in values if value is not None for line in kind.errors(axis, value))


def key_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every key that the schema does not have.

    Other sections belong to the trainable: their names are errors only if they resemble one of the schema.
    """
    from orchestrator.config.suggestions import RENAMED  # which imports this module

    for key, instead in RENAMED.items():
        if (value := value_at(config, key)) is not None:
            yield f"there is no key {key}: write {instead.format(value=value)}"
    known = [*OWN_SECTIONS, "budget", *(each.name for each in config_dir().iterdir() if each.is_dir())]
    for section in config:
        if section not in known and (meant := nearest(str(section), known)):
            yield f"there is no section {section!r}{meant}"
    for section, keys in _SECTIONS.items():
        given = value_at(config, section)
        for key in given if isinstance(given, Mapping) else ():
            if key not in keys and f"{section}.{key}" not in RENAMED:
                yield f"there is no key {section}.{key}{nearest(str(key), keys)}"


_GROUPS = ("model", "data", "optimizer", "schedule")
_OF_COUNTS = ("model", "data")
"""Groups in which whole numbers count things (channels, images, pixels); elsewhere they may be rates."""

BOUNDS: Mapping[str, Number] = {
    **dict.fromkeys(("optimizer.momentum", "optimizer.betas", "optimizer.rho"), Number(at_least=0, below=1)),
    **dict.fromkeys(("optimizer.eps", "optimizer.weight_decay"), Number(at_least=0)),
    **dict.fromkeys(("optimizer.trust_coefficient", "schedule.gamma"), Number(above=0)),
    **dict.fromkeys(("schedule.initial", "schedule.final"), Number(at_least=0)),
    **dict.fromkeys(("schedule.warmup", "schedule.decay", "model.dropout"), Number(at_least=0, below=1)),
}
"""Ranges of numbers (and of each in a list) of shipped optimizers and schedules; outside them training cannot work."""


def group_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value of another type or size than in the shipped model, data set, optimizer or schedule.

    The user's own models and optimizers are not checked: what they accept is not known here.
    """
    for key, value in flat(trainable_part(config)):
        if is_not_finite(value) and key not in SCHEMA:
            yield f"{key} must be a finite number, not {value!r}"
    for group in _GROUPS:
        given = config.get(group)
        if not isinstance(given, Mapping):
            continue
        shipped = _shipped(group, str(given.get("name")))
        for key, value in ((key, value) for key, value in flat(given) if value is not None):
            if kind := _wanted(shipped, key, value, counts=group in _OF_COUNTS):
                yield f"{group}.{key} must be {kind}, not {value!r}"
            elif key in shipped and (bounds := BOUNDS.get(f"{group}.{key}")):
                values = value if isinstance(value, list) else [value]
                if not all(map(bounds.admits, values)):
                    each = "a list of numbers, each " if isinstance(value, list) else ""
                    yield f"{group}.{key} must be {each}{bounds.form}, not {value!r}"
        if shipped.get("nesterov") is False and given.get("nesterov") is True and given.get("momentum") == 0:
            yield f"{group}.nesterov=true needs a momentum, but {group}.momentum=0"
        for key in ("root", "path", "tokenizer") if group == "data" else ():
            if not isinstance(place := given.get(key), str | None):
                yield f"data.{key} must be text, not {place!r}"


def _wanted(shipped: Mapping[str, Any], key: str, given: Any, *, counts: bool) -> str:
    """Return the expected kind of value; empty if the given one may be right."""
    inside = [each.removeprefix(f"{key}.").partition(".")[0] for each in shipped if each.startswith(f"{key}.")]
    default = shipped.get(key)
    if inside:
        return f"a section with {', '.join(dict.fromkeys(inside))}"
    if isinstance(default, bool):
        return "" if isinstance(given, bool) else "true or false"
    if isinstance(default, list):
        return "" if isinstance(given, list) else "a list"
    if counts and is_whole(default):
        least = min(default, 1)
        return "" if is_whole(given) and given >= least else f"a whole number of at least {least}"
    return "a number" if is_number(default) and not is_number(given) else ""


def at_default(identifying: Mapping[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Yield the dotted keys whose value is that of the shipped file, among sections of trials (`config`) and own keys.

    The names of sections and trainables have no default: they say which file has the defaults of the others.
    """
    place = folder or config_dir()
    defaults = {key: value for key, value in flat(_of_file(place / "config.yaml")) if not key.startswith("budget.")}
    sections = identifying["config"]
    for group in (*_GROUPS, "trainable", "budget"):
        section = sections.get(group)
        if isinstance(section, Mapping):
            shipped = _defaults(group, section, place)
            defaults |= {f"config.{group}.{key}": value for key, value in shipped.items()}
    for key, value in flat(identifying):
        if key not in defaults or key.rpartition(".")[2] in ("name", "_target_"):
            continue
        default = defaults[key]
        # True equals 1, but is another value of a key.
        if default == value and isinstance(default, bool) == isinstance(value, bool):
            yield key


def _defaults(group: str, section: Mapping[str, Any], place: Path) -> Mapping[str, Any]:
    """Return {dotted key: default} of a section, from the shipped file that the section's name or code belongs to."""
    if group == "budget":
        return dict(flat(_of_file(place / "config.yaml")["budget"]))
    if group != "trainable":
        return _shipped(group, str(section.get("name")), place)
    # Code of the user's own has the keys of `trainable=function`.
    files_by_code = {_of_file(file).get("_target_"): file for file in sorted((place / group).glob("*.yaml"))}
    file = files_by_code.get(section.get("_target_"), place / group / "function.yaml")
    values = dict(_of_file(file))
    bases = [base for base in values.pop("defaults", ()) if base != "_self_"]
    inherited = [dict(flat(_of_file(place / group / f"{base}.yaml"))) for base in bases]
    return {key: value for level in (*inherited, dict(flat(values))) for key, value in level.items()}


def _shipped(group: str, name: str, place: Path | None = None) -> Mapping[str, Any]:
    """Return {dotted key: value} of the shipped file with this name; empty if there is none."""
    file = (place or config_dir()) / group / f"{name}.yaml"
    return dict(flat(_of_file(file))) if name.isidentifier() and file.is_file() else {}


@functools.cache
def _of_file(file: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = files.load(file.read_text(encoding="utf-8"))
    return content
