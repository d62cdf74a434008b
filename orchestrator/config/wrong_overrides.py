"""Explanations of command lines that do not compose: one line for each wrong override, with what to write instead.

Hydra reports only the first wrong override, and offers nothing. Here each is tried, on one composition of the others.
Overrides that people write from habit have a suggestion, ready to copy into a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, cast

import yaml
from hydra import compose
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.hydra_private import apply_override, flag_names
from orchestrator.config.kinds import number_meant
from orchestrator.config.overrides import is_search_path, key_of
from orchestrator.config.schema import IDENTIFYING, OWN_SECTIONS, SCHEMA
from orchestrator.config.search_path import Groups, primary
from sweeps.axes import is_whole
from sweeps.errors import ConfigError, nearest, unknown
from sweeps.layout import STRATEGIES
from sweeps.sweep import STANDARD_AXES

WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing raises for an invalid config: YAML that would create objects, a file that cannot be read or is not
UTF-8 (a ValueError), `model=null` (another), or lists nested too deep."""

_SCRIPTS = (".py", ".sh")
_LONGEST_QUOTED = 200
"""Longer values are not repeated in a message."""
_LONGEST_TOLD = 1000
"""What Hydra says is cut here: it may repeat a whole config."""
_COMMAND = "to run a script of yours: -- python train.py --lr {lr}"


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed config as plain values. Raises the errors in WRONG."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, and `composed` is their config if it could be composed."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        trial = _Trial(overrides, groups)
        # In the order of the command line, whatever the order in which they were tried.
        lines = [trial.unfit[override] for override in overrides if override in trial.unfit]
        super().__init__(lines or [one_line(error)])
        self.fitting = tuple(override for override in overrides if override not in trial.unfit)
        self.composed = trial.composed if trial.unfit else None
        self._keys = [key_of(override) for override in trial.unfit]

    def is_due_to_them(self, message: str) -> bool:
        """Return whether an error in the rest may be a consequence of these overrides missing."""
        return any(re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", message) for key in self._keys)


class _Trial:
    """Overrides that are tried: groups decide which keys exist, so all groups are chosen before any key is set."""

    def __init__(self, overrides: Sequence[str], groups: Groups) -> None:
        self._groups = groups
        self.composed: DictConfig | None = None
        """The config of the overrides that fit, without Hydra's section."""
        self.unfit: dict[str, str] = {}
        """The explanation of each override that does not fit."""
        try:
            chosen = [override for override in overrides if self._is_choice(override)]
        except WRONG:  # the primary config cannot be read, and overrides are not to blame
            return
        # The search path comes first, because it determines which groups exist.
        self._choose(sorted(chosen, key=lambda override: not is_search_path(override)))
        if self.composed is not None:
            self._set([override for override in overrides if override not in chosen])

    def _is_choice(self, override: str) -> bool:
        """Return whether an override counts while Hydra reads files, or is for Hydra's own section."""
        key = key_of(override)
        return key in self._groups.names or "/" in key or "@" in key or key.startswith("hydra.")

    def _choose(self, overrides: Sequence[str]) -> None:
        """Compose the choices together; if that fails, add them one by one and explain those that do not fit."""
        with suppress(*WRONG):
            self.composed = _resolvable(overrides)
            return
        with suppress(*WRONG):
            self.composed = _resolvable([])
        if self.composed is None:  # the primary config itself is wrong
            return
        fitting: list[str] = []
        for override in overrides:
            try:
                self.composed = _resolvable([*fitting, override])
                fitting.append(override)
            except WRONG as error:
                self._explain(override, error, _keys_of(self.composed))

    def _set(self, overrides: Sequence[str]) -> None:
        """Set these keys, and explain those that do not fit."""
        config = cast(DictConfig, self.composed)
        # The keys before any is set, or a suggestion might name one that another override adds.
        before, keys = config.copy(), _keys_of(config)
        fitting: list[str] = []
        for override in overrides:
            # Hydra looks up the key before it sets it, so that a wrong key changes nothing.
            try:
                apply_override(override, config)
                fitting.append(override)
            except WRONG as error:
                self._explain(override, error, keys)
        try:
            resolved(config)
        except WRONG as error:
            # A copy takes as long as setting many keys, so that a value without meaning is found by halving.
            self.composed = before
            middle = len(fitting) // 2
            if middle == 0:
                self._explain(fitting[0], error, keys)
                return
            self._set(fitting[:middle])
            self._set(fitting[middle:])

    def _explain(self, override: str, error: Exception, keys: Sequence[str]) -> None:
        self.unfit[override] = _explained(override, error, keys, self._groups)


def _keys_of(config: DictConfig) -> list[str]:
    return list(dotted_keys(cast(dict[str, Any], OmegaConf.to_container(config))))


def _resolvable(overrides: Sequence[str]) -> DictConfig:
    """Return the composed config. Raises the errors in WRONG, also if an interpolation in it cannot be resolved."""
    config = compose(primary(), list(overrides))
    resolved(config)
    return config


def _explained(override: str, error: Exception, keys: Sequence[str], groups: Groups) -> str:
    """Return why an override does not fit to a config with these keys, with a suggestion."""
    key, equals, value = override.lstrip("+~").partition("=")
    if not key:
        return f"{override!r} has no key: write KEY=VALUE without spaces"
    if not equals and not override.startswith("~"):
        return f"{override!r} is not KEY=VALUE{_word_without_key(override, groups)}"
    if key.startswith("sweep/") and not groups.options(key):
        return f"sweep={key.removeprefix('sweep/')} has no scales: remove scale={value}"
    options = groups.options(key) if key in groups.names or "/" in key else []
    if "Ambiguous value" in str(error) or ("," in value and set(value.split(",")) <= set(options)):
        return f"{override!r}: {_several_values(key, value, groups)}; with -m they are several sweeps"
    if options and value == "null" and key not in ("trainable", "sweep"):
        return f"{override!r}: to leave out a group, write ~{key}"
    if options and value not in options:
        what = f"{key} in {override!r}:" if not key.startswith("sweep/") else f"scale of {key.replace('/', '=', 1)}:"
        return f"{unknown(what, value, options)}{_own_code(key, value)}"
    if "Could not override" in str(error):
        known = [*keys, *groups.names]
        if len(value) > _LONGEST_QUOTED:
            override, value = f"{key}=…", "…"
        if key in known:
            return f"{override!r}: {key} has no such key; +{key}.KEY=… adds one, ~{key}.KEY leaves one out"
        return f"{override!r}: there is no key {key!r}{_instead_of(key, value, known)}"
    written = override.removeprefix("++")  # which labels and environment variables are given (`overrides`)
    return f"{written!r}: {one_line(error)}{_quoting(written, error)}"


def _instead_of(key: str, value: str, known: Sequence[str]) -> str:
    """Return a hint for a key that does not exist: what to write, similar keys, and whether it can be added."""
    section, dot, name = key.rpartition(".")
    if instead := meant(key, value):
        own = f"; for a key that your code reads: +{key}={value}" if key.startswith("trainable.") else ""
        return f": write {instead}{own}"
    if not dot:  # a bare word may stand for up to three keys: `gpus` for `sweep.axes.gpus`
        names = {dotted: dotted.rpartition(".")[2] for dotted in known if "." in dotted}
        similar_keys = [dotted for dotted, word in names.items() if word == name]
        similar_keys = similar_keys or [dotted for dotted, word in names.items() if word.endswith(f"_{name}")]
        if similar_keys:
            return f" (did you mean {' or '.join(copyable(dotted, value) for dotted in similar_keys[:3])}?)"
    if section in known:
        beside = [dotted.rpartition(".")[2] for dotted in known if dotted.rpartition(".")[0] == section]
        close = get_close_matches(name, beside, n=2, cutoff=0.75)
        texts = " or ".join(copyable(section + dot + own, value) for own in close)
        similar = f" (did you mean {texts}?)" if close else ""
    else:
        similar = nearest(key, known)
    # Own sections take no further keys, and a section that is misspelt should not be added.
    top = key.partition(".")[0]
    is_misspelt = top not in known and nearest(top, known)
    can_be_added = top not in (*OWN_SECTIONS, "budget") and not is_misspelt
    return f"{similar}; +{key}=… adds one" if can_be_added else similar


def _quoting(override: str, error: Exception) -> str:
    """Return a hint on quoting for a value that Hydra's grammar took apart."""
    key, _, value = override.partition("=")
    if key != key.rstrip() or value != value.lstrip():
        return "; write no spaces around ="
    # The shell removes one pair of quotes, and Hydra's grammar the other.
    mark = "'" if "'" not in value else r"\""
    quoted = f'quote it twice: "{key}={mark}{value}{mark}"'
    if "requires --multirun" in str(error):
        return f"; for the values of an axis {quoted}"
    if value.startswith("[") and not value.endswith("]"):
        return f"; write the list in quotes, without spaces: '{key}={value.rstrip(',')}]'"
    taken_apart = isinstance(error, OverrideParseException) and value[:1] not in ("'", '"', "[", "{")
    return f"; if this is one text, {quoted}" if taken_apart else ""


def one_line(error: BaseException) -> str:
    """Return the error in one line, with its cause if Hydra names only what failed."""
    text = re.sub(r"\s+", " ", str(error)).strip().partition(" Config search path:")[0]
    text = re.sub(r" See https://hydra\.cc/\S+ for details|: None$", "", text)
    text = re.sub(r" full_key: ?(\S*?) object_type=\S+$", lambda match: f" ({match[1]})" if match[1] else "", text)
    text = re.sub(r"maximum recursion depth exceeded.*", "values are nested too deep", text)
    # Hydra's own error often says only that a call failed.
    why = one_line(error.__cause__) if error.__cause__ else ""
    line = f"{text}: {why}" if why and why not in text else text
    return line if len(line) <= _LONGEST_TOLD else f"{line[:_LONGEST_TOLD]} …"


def dotted_keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a config, including sections."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_keys(value, f"{prefix}{key}.")


def _several_values(key: str, values: str, groups: Groups) -> str:
    """Return how to write several values: as an axis, if the key can be one."""
    section = key.partition(".")[0]
    if key.startswith("sweep.axes."):
        return f"an axis takes a list in brackets, '{key}=[{values}]'"
    if section not in OWN_SECTIONS or section in IDENTIFYING:
        return f"an axis takes a list in brackets, 'sweep.axes.{key}=[{values}]'"
    return "only one can be chosen" if key in groups.names else f"write a list in brackets, '{key}=[{values}]'"


def _word_without_key(word: str, groups: Groups) -> str:
    """Return a hint for a value without a key."""
    if choices := [f"{group}={word}" for group in sorted(groups.names) if word in groups.options(group)]:
        return f" (did you mean {' or '.join(choices)}?)"
    if word.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    if action := _ACTIONS.get(word):
        return f": {action}"
    if mode := mode_meant(word):
        return f": write {mode}"
    return "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


def _own_code(group: str, value: str) -> str:
    """Return a hint if the value looks like code or a sweep file in place of a choice; else empty."""
    if group == "trainable" and value.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    module, colon, _ = value.partition(":")
    if group == "sweep" and value.startswith("published/"):
        return "; the published experiments are in a clone of the repository, not in the installed package"
    if group == "data" and not colon:
        return "; for your own images in a folder for each class: data=imagefolder data.path=FOLDER"
    if not colon:
        return (
            f"; to use your own FOLDER/sweep/{value.removesuffix('.yaml')}.yaml, add -cd FOLDER"
            if group == "sweep"
            else ""
        )
    key = "trainable=function trainable._target_" if group == "trainable" else f"{group}.name"
    return f"; to use code of yours: {key}={value} 'trusted_modules=[{module.partition('.')[0]}]'"


def axis_error(axis: str, values: Any, config: Mapping[str, Any], groups: Groups) -> str:
    """Return why an axis does not fit: it is neither a key of the config nor a group."""
    keys = [key for key in dotted_keys(config) if not key.startswith("sweep.")]
    listed = f"[{','.join(map(str, values))}]" if isinstance(values, list) else str(values)
    instead = meant(f"sweep.axes.{axis}", listed)
    hint = f": write {instead}" if instead else nearest(axis, [*keys, *groups.names, *STANDARD_AXES])
    return f"axis {axis!r} is not a config key or group{hint}"


def dash_errors(arguments: Sequence[str]) -> Iterator[str]:
    """Yield an error for each key written as an option (`--key`); only Hydra's own flags take dashes."""
    flags = flag_names()
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or any(flag.startswith(name) for flag in flags):
            continue
        key = name.lstrip("-").replace("-", "_")
        is_value = not equals and following and not following.startswith("-") and "=" not in following
        value = following if is_value else value
        written = f"{argument} {following}" if is_value else argument
        instead = meant(key, value) or f"{key}={value or 'VALUE'}"
        yield f"{written!r}: write keys without dashes: {instead}"


_AXES: Mapping[str, Sequence[str]] = {
    "sweep.axes.gpus": (
        "gpus gpu num_gpus n_gpus ngpus gpu_count devices num_devices nproc nproc_per_node num_processes processes "
        "world_size"
    ).split(),
    "sweep.axes.device_batch_size": "device_batch_size batch_size batch bs batch_per_gpu batch_size_per_gpu "
    "per_device_batch_size per_device_train_batch_size per_gpu_batch_size local_batch_size".split(),
    "sweep.axes.global_batch_size": "global_batch_size global_batch total_batch_size train_batch_size".split(),
    "sweep.axes.lr_rule": "lr_rule lr_rules rule rules lr_scaling".split(),
    "sweep.axes.lr_multiplier": "lr_multiplier lr_multipliers lr_factor".split(),
    "sweep.axes.seed": "seed seeds n_seeds num_seeds random_seed".split(),
}
"""Names that mean an axis, by the axis."""

_KEYS: Mapping[str, Sequence[str]] = {
    "trainable.lr": "lr learning_rate base_lr".split(),
    "budget.epochs": "epochs epoch num_epochs n_epochs max_epochs num_train_epochs".split(),
    "budget.steps": "steps max_steps num_steps train_steps iterations iters max_iters".split(),
    "budget.samples": ["samples", "max_samples"],
    "budget.tokens": ["tokens", "max_tokens"],
    "time_limit_s": "time_limit timeout timeout_s max_time trial_timeout walltime".split(),
    "sweep.budget.wall_s": "time_limit timeout max_time wall_s budget_s walltime".split(),
    "sweep.budget.gpu_hours": ["gpu_hours", "max_gpu_hours"],
    "sweep.budget.cost": ["max_cost"],
    "resources.device": ["device", "accelerator"],
    "resources.cpus_per_worker": "cpus num_cpus cpus_per_gpu cores".split(),
    "trainable.loader.workers": ["num_workers", "dataloader_workers", "workers"],
    "trainable.precision": ["precision", "dtype", "mixed_precision"],
    "report.target": ["target", "target_accuracy"],
    "data": ["dataset", "datasets"],
    "optimizer": ["optim", "opt"],
    "schedule": ["scheduler", "lr_scheduler", "lr_schedule"],
    "grad_accum_steps": "accumulate accumulation grad_accum gradient_accumulation gradient_accumulation_steps".split(),
    "results_dir": "output_dir output out out_dir outdir log_dir logdir save_dir results dir folder".split(),
    "sweep.name": ["name", "run_name", "experiment"],
    "sweep.baseline": ["baseline"],
    "report.metric": ["metric"],
    "report.margin": ["margin", "tolerance"],
    "report.objective": ["minimize", "minimise", "optimize_for"],
    "report.price_per_gpu_hour": ["price", "gpu_price", "price_per_hour", "price_per_gpu_hour"],
    "cluster.gpu_type": ["gpu_type", "gpu_model"],
    "cluster.address": ["address", "ray_address"],
    "launch.nodes": ["nodes", "num_nodes", "nnodes"],
}
"""Names that mean another key, by that key."""

_IN_NUMBERS = ("time_limit_s", "sweep.budget.wall_s", "report.price_per_gpu_hour")
"""Keys whose numbers people write with a unit."""

RENAMED: Mapping[str, str] = {
    "report.better": "'report.metric={{name: …, better: {value}}}'",
    "trainable.target_accuracy": "report.target={value}",
    "objective.column": "sweeper.objective.column={value}",
    "objective.best": "sweeper.objective.best={value}",
    "plan.format": "format={value}",
    "sweep.search": "'sweep.phases=[probe,train]' or sweep.early_stop=asha",
    "tune.scheduler": "'sweep.phases=[probe,train]' or sweep.early_stop=asha",
    "tune.searcher": "'sweep.phases=[probe,train]' or sweep.early_stop=asha",
    "launch.memory_gb_per_node": "'launch.options={{memory_gb: {value}}}'",
    **{
        f"launch.{option}": f"'launch.options={{{{{option}: {{value}}}}}}'"
        for option in ("workdir", "time_limit", "partition", "image", "claim", "hosts", "instance")
    },
    "launch.region": "'launch.options={{infra: aws/{value}}}'",
}
"""Keys of earlier versions, and what to write instead of KEY=VALUE."""

_SHARDED = "fsdp2 zero zero3 deepspeed full_shard".split()
_KEPT = "zero2 shard_grad_op".split()
_STRATEGIES = {
    **dict.fromkeys(_SHARDED, "fsdp"),
    **dict.fromkeys(_KEPT, "fsdp_grad"),
    **{strategy: strategy for strategy in STRATEGIES},
    "dp": "data_parallel",
    "distributed": "ddp",
    "horovod": "ddp",
}
"""Words for a way to use several GPUs, and the strategy of the project's own loop that is nearest."""

_OWN_RANKS = "-- torchrun --nproc_per_node={gpus} train.py --lr {lr}"

_MODES = {
    "dry_run": "plan", "dryrun": "plan", "show": "plan", "summary": "report", "start": "run", "ls": "list",
    "ps": "status", "check": "verify",
    **dict.fromkeys(("resume", "continue"), "run (the same command continues a sweep)"),
}  # fmt: skip
"""Words that mean a mode, besides the names of the modes themselves, with a remark where one is needed."""

_WISHES = {
    "amp=true": "trainable.precision=bf16",
    "bf16=true": "trainable.precision=bf16",
    "fp16=true": "trainable.precision=fp16",
    "batch_size=auto": "trainable.micro_batch=auto",
    "json=": "format=json",
    "json=true": "format=json",
    **{f"{tracker}=true": f"tracker.{tracker}.enabled=true" for tracker in ("wandb", "mlflow", "tensorboard")},
    **{f"wandb={mode}": f"tracker.wandb.enabled=true tracker.wandb.mode={mode}" for mode in ("offline", "online")},
}
"""What to write instead of KEY=VALUE."""

_ACTIONS = {
    "help": "write --help",
    "show": "write mode=status, or read the trial's files in results/NAME/trials/ID",
    "watch": "write mode=watch",
    **dict.fromkeys(("logs", "log"), "read results/NAME/trials/ID/*.log"),
    **dict.fromkeys(
        ("stop", "cancel"), "press Ctrl-C where the sweep runs, or run kill PID with the pid in results/NAME/owner.json"
    ),
    **dict.fromkeys(("clean", "delete"), "delete the results' folder: rm -r results/NAME"),
}
"""What to do instead of a mode that does not exist."""

_HINTS = {
    "time_limit_s": "of one trial",
    "sweep.budget.wall_s": "of the whole sweep",
    "sweep.axes.device_batch_size": "on each GPU",
    "sweep.axes.global_batch_size": "on all GPUs together",
    "trainable.loader.workers": "of each GPU, to load data",
    "trainable.lr": "at trainable.reference_batch_size",
    "sweep.axes.lr_multiplier": "factors on the learning rate",
}
"""Remarks on suggested keys."""

_MOST_SEEDS = 50


def mode_meant(word: str) -> str:
    """Return the mode that a word without `=` (or a flag) stands for, as an override; empty if it is none."""
    name = word.lower().replace("-", "_")
    mode = name if name in SCHEMA["mode"].words else _MODES.get(name, "")
    return f"mode={mode}" if mode else ""


def meant(key: str, value: str) -> str:
    """Return the overrides to write instead of KEY=VALUE, joined by "or"; empty if none is known.

    Also keys in a section are recognised by their last part: `model.lr`, `budget.wall_s`, `sweep.axes.lr`.
    """
    if key in RENAMED:
        return RENAMED[key].format(value=value)
    name = key.rpartition(".")[2].lower().replace("-", "_")
    if instead := _WISHES.get(f"{name}={value.lower()}"):
        return instead
    wishes = {target: _as_axis(target, name, value) for target, names in _AXES.items() if name in names}
    if "sweep.axes.device_batch_size" in wishes:
        wishes["sweep.axes.global_batch_size"] = _as_axis("sweep.axes.global_batch_size", name, value)
    is_axis = key.startswith("sweep.axes.") or value.startswith("[")
    for target, names in _KEYS.items():
        if name in names:
            axis = f"""'sweep.axes."{target}"={_in_brackets(value)}'"""
            number = number_meant(value, is_duration=target.endswith("_s")) if target in _IN_NUMBERS else ""
            wishes[target] = axis if is_axis else f"{target}={number or value}"
    wishes.pop(key, None)
    if name in ("lr", "learning_rate") and key.startswith("sweep.axes."):
        wishes["sweep.axes.lr_multiplier"] = "'sweep.axes.lr_multiplier=[0.5,1,2]'"
    if wishes:
        return " or ".join(
            f"{text} ({_HINTS[target]})" if target in _HINTS else text for target, text in wishes.items()
        )
    return mode_meant(name) if value.lower() in ("true", "1", "yes", "") else ""


def choice_meant(key: str, value: Any) -> str:
    """Return what to write instead of KEY=VALUE, if the key has choices and this is none; empty if nothing is known."""
    if key == "mode":
        return _ACTIONS.get(value) or (f"write {mode_meant(value)}" if mode_meant(value) else "")
    if key == "workers" and is_whole(value):
        processes = _as_axis("sweep.axes.gpus", "", str(value))
        return f"write {meant(key, str(value))} or {processes} (GPUs, or processes)"
    words = get_close_matches(str(value).lower(), _STRATEGIES, n=1, cutoff=0.75) if key == "strategy" else []
    if not words:
        return ""
    is_sharded = words[0] in (*_SHARDED, *_KEPT)
    own_script = f", or for a script of yours {_OWN_RANKS}" if is_sharded else ""
    return f"write strategy={_STRATEGIES[words[0]]}{own_script}"


def copyable(key: str, value: str) -> str:
    """Return KEY=VALUE as it can be copied into a shell: an axis takes a list, and brackets need quotes."""
    return _as_axis(key, "", value) if key.startswith("sweep.axes.") else f"{key}={value}"


def _as_axis(axis: str, name: str, value: str) -> str:
    count = int(value) if name in ("seeds", "n_seeds", "num_seeds") and value.isascii() and value.isdigit() else 0
    if 0 < count <= _MOST_SEEDS:
        value = ",".join(map(str, range(count)))
    return "sweep.axes.gpus=auto" if value == "auto" else f"'{axis}={_in_brackets(value)}'"


def _in_brackets(value: str) -> str:
    return value if value.startswith("[") else f"[{value or '…'}]"
