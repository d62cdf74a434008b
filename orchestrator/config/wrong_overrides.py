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
from orchestrator.config.kinds import Number
from orchestrator.config.overrides import is_search_path, key_of
from orchestrator.config.schema import IDENTIFYING, OWN_SECTIONS, SCHEMA
from orchestrator.config.search_path import Groups, primary
from sweeps.errors import ConfigError, nearest, unknown
from sweeps.sweep import STANDARD_AXES

WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing raises for an invalid config: YAML that would create objects, a file that cannot be read or is not
UTF-8 (a ValueError), `model=null` (another), or lists nested too deep."""

_SCRIPTS = (".py", ".sh")
_LONGEST_QUOTED = 200  # longer values are not repeated in a message
_LONGEST_TOLD = 1000  # what Hydra says is cut here: it may repeat a whole config
_COMMAND = "to run a script of yours: -- python train.py --lr {lr}"


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed config as plain values. Raises the errors in WRONG."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


class CompositionError(ConfigError):
    """Overrides that do not fit; `fitting` are the others, and `composed` is their config if it could be composed."""

    def __init__(self, error: Exception, overrides: Sequence[str], groups: Groups) -> None:
        """Find all overrides that do not compose; Hydra reported `error`, the first."""
        self._groups = groups
        self.composed: DictConfig | None = None
        self._unfit: dict[str, str] = {}  # the explanation of each override that does not fit
        with suppress(*WRONG):  # the primary config cannot be read, and overrides are not to blame
            self._try(overrides)
        # In the order of the command line, whatever the order in which they were tried.
        lines = [self._unfit[override] for override in overrides if override in self._unfit]
        super().__init__(lines or [one_line(error)])
        self.fitting = tuple(override for override in overrides if override not in self._unfit)
        self.composed = self.composed if self._unfit else None

    def is_due_to_them(self, message: str) -> bool:
        """Return whether an error in the rest may be a consequence of these overrides missing."""
        names = [key_of(override).rpartition(".")[2] for override in self._unfit]
        return any(re.search(rf"\b{re.escape(name)}\b", message) for name in names)

    def _try(self, overrides: Sequence[str]) -> None:
        """Compose the config of the overrides that fit, and explain the others."""
        # Groups decide which keys exist, so all groups are chosen before any key is set.
        choices = [override for override in overrides if self._is_choice(override)]
        try:
            config = _composed(choices)
        except WRONG:
            config = _composed([])
            fitting: list[str] = []
            # The search path comes first, because it determines which groups exist.
            for override in sorted(choices, key=lambda choice: not is_search_path(choice)):
                try:
                    config = _composed([*fitting, override])
                    fitting.append(override)
                except WRONG as error:
                    self._explain(override, error, _keys_of(config))
        self._set([override for override in overrides if override not in choices], config, _keys_of(config))

    def _is_choice(self, override: str) -> bool:
        """Return whether an override counts while Hydra reads files, or is for Hydra's own section."""
        key = key_of(override)
        return key in self._groups.names or "/" in key or "@" in key or key.startswith("hydra.")

    def _set(self, overrides: Sequence[str], config: DictConfig, keys: Sequence[str]) -> None:
        """Set these keys in the config, and explain those that do not fit; `keys` are those before any is set."""
        self.composed = config.copy()
        fitting: list[str] = []
        for override in overrides:
            # Hydra looks up the key before it sets it, so that a wrong key changes nothing.
            try:
                apply_override(override, self.composed)
                fitting.append(override)
            except WRONG as error:
                self._explain(override, error, keys)
        try:
            resolved(self.composed)
        except WRONG as error:
            # A copy takes as long as setting many keys, so that a value without meaning is found by halving.
            middle = len(fitting) // 2
            if middle == 0:
                self.composed = config
                self._explain(fitting[0], error, keys)
                return
            self._set(fitting[:middle], config, keys)
            self._set(fitting[middle:], self.composed, keys)

    def _explain(self, override: str, error: Exception, keys: Sequence[str]) -> None:
        self._unfit[override] = _explained(override, error, keys, self._groups)


def _keys_of(config: DictConfig) -> list[str]:
    return list(dotted_keys(cast(dict[str, Any], OmegaConf.to_container(config))))


def _composed(overrides: Sequence[str]) -> DictConfig:
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
    section, _, name = key.rpartition(".")
    if instead := meant(key, value):
        own = f"; for a key that your code reads: +{key}={value}" if key.startswith("trainable.") else ""
        return f": {instead}{own}"
    if section in known:
        beside = {dotted.rpartition(".")[2]: dotted for dotted in known if dotted.rpartition(".")[0] == section}
        similar = [beside[close] for close in get_close_matches(name, beside, n=2, cutoff=0.75)]
    else:  # the section is missing or wrong: `margin` for `report.margin`, `plan.format` for `format`
        similar = [dotted for dotted in known if dotted.rpartition(".")[2] == name]
        similar = similar or [dotted for dotted in known if "." in dotted and dotted.endswith(f"_{name}")]
    if similar:
        return f" (did you mean {' or '.join(_copyable(dotted, value) for dotted in similar[:3])}?)"
    # Own sections take no further keys, and a section that is misspelt should not be added.
    top = key.partition(".")[0]
    can_be_added = top not in (*OWN_SECTIONS, "budget") and (top in known or not nearest(top, known))
    hint = "" if section in known else nearest(key, known)
    return f"{hint}; +{key}=… adds one" if can_be_added else hint


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
    instead = meant("mode", word)
    return f": {instead}" if instead else "; if it belongs to the word before it, quote both as one: 'KEY=[1, 2]'"


def _own_code(group: str, value: str) -> str:
    """Return a hint if the value looks like code or a sweep file in place of a choice; else empty."""
    if group == "trainable" and value.endswith(_SCRIPTS):
        return f"; {_COMMAND}"
    if ":" in value:
        key = "trainable=function trainable._target_" if group == "trainable" else f"{group}.name"
        return f"; to use code of yours: {key}={value} 'trusted_modules=[{re.split('[.:]', value)[0]}]'"
    if group == "data":
        return "; for your own images in a folder for each class: data=imagefolder data.path=FOLDER"
    if group != "sweep":
        return ""
    if value.startswith("published/"):
        return "; the published experiments are in a clone of the repository, not in the installed package"
    return f"; to use your own FOLDER/sweep/{value.removesuffix('.yaml')}.yaml, add -cd FOLDER"


def axis_error(axis: str, values: Any, config: Mapping[str, Any], groups: Groups) -> str:
    """Return why an axis does not fit: it is neither a key of the config nor a group."""
    keys = [key for key in dotted_keys(config) if not key.startswith("sweep.")]
    listed = f"[{','.join(map(str, values))}]" if isinstance(values, list) else str(values)
    instead = meant(f"sweep.axes.{axis}", listed)
    hint = f": {instead}" if instead else nearest(axis, [*keys, *groups.names, *STANDARD_AXES])
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
        instead = meant(key, value) or f"write {key}={value or 'VALUE'}"
        yield f"{written!r}: keys have no dashes: {instead}"


_HABITS: Mapping[str, str] = {
    "trainable.loader.workers": "num_workers dataloader_workers workers workers=n",
    "sweep.axes.gpus": "gpus gpu num_gpus n_gpus ngpus gpu_count devices num_devices nproc nproc_per_node num_processes"
    " processes world_size workers=n",
    "sweep.axes.device_batch_size": "device_batch_size batch_size batch bs batch_per_gpu batch_size_per_gpu"
    " per_device_batch_size per_device_train_batch_size per_gpu_batch_size local_batch_size",
    "sweep.axes.global_batch_size": "global_batch_size global_batch total_batch_size train_batch_size batch_size bs",
    "sweep.axes.lr_rule": "lr_rule lr_rules rule rules lr_scaling",
    "sweep.axes.lr_multiplier": "lr_multiplier lr_multipliers lr_factor",
    "sweep.axes.seed": "seed seeds n_seeds num_seeds random_seed",
    "trainable.lr": "lr learning_rate base_lr",
    "budget.epochs": "epochs epoch num_epochs n_epochs max_epochs num_train_epochs",
    "budget.steps": "steps max_steps num_steps train_steps iterations iters max_iters",
    "budget.samples": "samples max_samples",
    "budget.tokens": "tokens max_tokens",
    "time_limit_s": "time_limit timeout timeout_s max_time trial_timeout walltime",
    "sweep.budget.wall_s": "time_limit timeout max_time wall_s budget_s walltime",
    "sweep.budget.gpu_hours": "gpu_hours max_gpu_hours",
    "sweep.budget.cost": "max_cost",
    "resources.device": "device accelerator",
    "resources.cpus_per_worker": "cpus num_cpus cpus_per_gpu cores",
    "trainable.precision": "precision dtype mixed_precision",
    "trainable.precision=bf16": "amp=true bf16=true",
    "trainable.precision=fp16": "fp16=true",
    "trainable.micro_batch=auto": "batch_size=auto",
    "report.target": "target target_accuracy",
    "report.metric": "metric",
    "report.margin": "margin tolerance",
    "report.objective": "minimize minimise optimize_for",
    "report.price_per_gpu_hour": "price gpu_price price_per_hour price_per_gpu_hour",
    "data": "dataset datasets",
    "optimizer": "optim opt",
    "schedule": "scheduler lr_scheduler lr_schedule",
    "grad_accum_steps": "accumulate accumulation grad_accum gradient_accumulation gradient_accumulation_steps",
    "results_dir": "output_dir output out out_dir outdir log_dir logdir save_dir results dir folder",
    "sweep.name": "name run_name experiment",
    "sweep.baseline": "baseline",
    "sweep.early_stop=asha": "search searcher search_alg",
    "cluster.gpu_type": "gpu_type gpu_model",
    "cluster.address": "address ray_address",
    "launch.nodes": "nodes num_nodes nnodes",
    "strategy=fsdp": "strategy=fsdp2 strategy=zero strategy=zero3 strategy=deepspeed strategy=full_shard",
    "strategy=fsdp_grad": "strategy=zero2 strategy=shard_grad_op",
    "strategy=data_parallel": "strategy=dp",
    "strategy=ddp": "strategy=distributed strategy=horovod",
    **{f"tracker.{tracker}.enabled=true": f"{tracker}=true" for tracker in ("wandb", "mlflow", "tensorboard")},
    **{f"tracker.wandb.mode={mode}": f"wandb={mode}" for mode in ("offline", "online")},
    "format=json": "json= json=true",
    **{f"mode={mode}": f"mode={mode}" for mode in SCHEMA["mode"].words},
    "mode=run": "mode=run mode=start mode=resume mode=continue",
    "mode=plan": "mode=plan mode=dry_run mode=dryrun",
    "mode=report": "mode=report mode=summary",
    "mode=list": "mode=list mode=ls",
    "mode=status": "mode=status mode=ps mode=show",
    "mode=verify": "mode=verify mode=check",
    "launch.options": "partition time_limit image claim hosts instance workdir infra",
}
"""What to write, and the words that people write for it: keys, or keys with one value (`n`: any whole number)."""

_OWN_RANKS = "for a script of yours: -- torchrun --nproc_per_node={gpus} train.py --lr {lr}"
_REMARKS = {
    "sweep.axes.device_batch_size": "on each GPU",
    "sweep.axes.global_batch_size": "on all GPUs together",
    "sweep.axes.lr_multiplier": "factors on the learning rate",
    "trainable.lr": "at trainable.reference_batch_size; sweep.axes.lr_multiplier has factors on it",
    "time_limit_s": "of one trial",
    "sweep.budget.wall_s": "of the whole sweep",
    "trainable.loader.workers": "of each GPU, to load data",
    "strategy=fsdp": _OWN_RANKS,
    "strategy=fsdp_grad": _OWN_RANKS,
    "mode=run": "the same command continues a sweep",
    "mode=status": "a trial's files are in results/NAME/trials/ID",
}
"""Remarks on what to write."""

_ACTIONS = {
    "write --help": "mode=help",
    "read results/NAME/trials/ID/*.log": "mode=logs mode=log",
    "press Ctrl-C where the sweep runs, or run kill PID with the pid in results/NAME/owner.json": "mode=stop"
    " mode=cancel",
    "delete the results' folder: rm -r results/NAME": "mode=clean mode=delete",
    "its axes tell how many trials a sweep has: shorten a list in sweep.axes, or limit sweep.budget.gpu_hours,"
    " sweep.budget.wall_s or sweep.budget.cost": "max_trials n_trials num_trials num_samples trials",
}
"""What to do where no override does it, and the words that people write for it."""

_MOST_SEEDS = 50


def choice_meant(key: str, value: str) -> str:
    """Return what to do instead of KEY=VALUE, where the key exists and this is none of its choices; else empty."""
    return _instead(key, value, _with_value(key, value))


def meant(key: str, value: str) -> str:
    """Return what to do instead of KEY=VALUE, where the key does not exist; empty if nothing is known.

    Also keys in a section are recognised by their last part: `model.lr`, `budget.wall_s`, `sweep.axes.lr`.
    """
    name = key.rpartition(".")[2].lower().replace("-", "_")
    words = [_with_value(name, value), name]
    if value.lower() in ("true", "1", "yes", ""):  # a mode as a flag
        words.append(f"mode={name}")
    return next(filter(None, (_instead(key, value, word) for word in words)), "")


def _with_value(key: str, value: str) -> str:
    return f"{key}={'n' if value.isdecimal() else value.lower().replace('-', '_')}"


def _instead(key: str, value: str, word: str) -> str:
    """Return what to do instead of KEY=VALUE by the tables, in which it is this word; empty if they do not have it."""
    for action, words in _ACTIONS.items():
        if word in words.split():
            return action
    targets = [target for target, words in _HABITS.items() if word in words.split() and target != key]
    remarks = {target: f" ({remark})" for target, remark in _REMARKS.items()}
    texts = [_override(target, key, value) + remarks.get(target, "") for target in targets]
    return f"write {' or '.join(texts)}" if texts else ""


def _override(target: str, key: str, value: str) -> str:
    """Return the override of a target with the value that was given to the key."""
    if "=" in target:
        return target
    if target == "launch.options":
        return f"'{target}={{{key.rpartition('.')[2]}: {value}}}'"
    if target.startswith("sweep.axes."):
        is_count = key.endswith("seeds") and value.isdecimal() and 0 < int(value) <= _MOST_SEEDS
        return _copyable(target, ",".join(map(str, range(int(value)))) if is_count else value)
    if key.startswith("sweep.axes.") or value.startswith("["):
        return f"""'sweep.axes."{target}"={_in_brackets(value)}'"""
    kind = SCHEMA.get(target)
    number = kind.number_in(value) if isinstance(kind, Number) else ""
    return f"{target}={number or value}"


def _copyable(key: str, value: str) -> str:
    """Return KEY=VALUE as it can be copied into a shell: an axis takes a list, and brackets need quotes."""
    if not key.startswith("sweep.axes."):
        return f"{key}={value}"
    return "sweep.axes.gpus=auto" if value == "auto" else f"'{key}={_in_brackets(value)}'"


def _in_brackets(value: str) -> str:
    return value if value.startswith("[") else f"[{value or '…'}]"
