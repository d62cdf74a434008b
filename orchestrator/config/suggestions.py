"""Overrides that people write from habit, and the override to write instead, ready to copy into a shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from orchestrator.config.schema import SCHEMA
from sweeps.axes import is_whole

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

RENAMED: Mapping[str, str] = {
    "report.better": "'report.metric={{name: …, better: {value}}}'",
    "trainable.target_accuracy": "report.target={value}",
    "objective.column": "sweeper.objective.column={value}",
    "objective.best": "sweeper.objective.best={value}",
    "plan.format": "format={value}",
    "sweep.search": "'sweep.phases=[probe,train]' or sweep.early_stop=asha",
    "tune.searcher": "'sweep.phases=[probe,train]' or sweep.early_stop=asha",
    "launch.memory_gb_per_node": "'launch.options={{memory_gb: {value}}}'",
    **{
        f"launch.{option}": f"'launch.options={{{{{option}: {{value}}}}}}'"
        for option in ("workdir", "time_limit", "partition", "image", "claim", "hosts", "instance")
    },
    "launch.region": "'launch.options={{infra: aws/{value}}}'",
}
"""Keys of earlier versions, and what to write instead of KEY=VALUE."""

_SHARDED = "fsdp fsdp2 zero zero2 zero3 deepspeed megatron tensor_parallel pipeline_parallel".split()
_STRATEGIES = {**dict.fromkeys(_SHARDED, "ddp"), "dp": "data_parallel", "distributed": "ddp", "horovod": "ddp"}
"""Words for a way to use several GPUs, and the strategy of the project's own loop that is nearest."""

_OWN_RANKS = """trainable=command "trainable.argv='torchrun --nproc_per_node={gpus} train.py --lr {lr}'\""""

_MODES = {
    "dry_run": "plan", "dryrun": "plan", "show": "plan", "summary": "report", "resume": "run", "continue": "run",
    "start": "run", "ls": "list", "ps": "status", "check": "verify",
}  # fmt: skip
"""Words that mean a mode, besides the names of the modes themselves."""

_HINTS = {
    "resume": "the same command continues a sweep",
    "continue": "the same command continues a sweep",
    "time_limit_s": "of one trial",
    "sweep.budget.wall_s": "of the whole sweep",
    "sweep.axes.device_batch_size": "on each GPU",
    "sweep.axes.global_batch_size": "on all GPUs together",
    "trainable.loader.workers": "of each GPU, to load data",
    "trainable.lr": "at trainable.reference_batch_size",
    "sweep.axes.lr_multiplier": "factors on the learning rate",
}
"""Remarks on suggestions."""

_MOST_SEEDS = 50


def mode_meant(word: str) -> str:
    """Return the mode that a word without `=` (or a flag) stands for, as an override; empty if it is none."""
    name = word.lower().replace("-", "_")
    mode = name if name in SCHEMA["mode"].words else _MODES.get(name, "")
    hint = f" ({_HINTS[name]})" if name in _HINTS else ""
    return f"mode={mode}{hint}" if mode else ""


def meant(key: str, value: str) -> str:
    """Return the overrides to write instead of KEY=VALUE, joined by "or"; empty if none is known.

    Also keys in a section are recognised by their last part: `model.lr`, `budget.wall_s`, `sweep.axes.lr`.
    """
    if key in RENAMED:
        return RENAMED[key].format(value=value)
    name = key.rpartition(".")[2].lower().replace("-", "_")
    found = {target: _as_axis(target, name, value) for target, names in _AXES.items() if name in names}
    if "sweep.axes.device_batch_size" in found:
        found["sweep.axes.global_batch_size"] = _as_axis("sweep.axes.global_batch_size", name, value)
    values = _in_brackets(value)
    for target in (target for target, names in _KEYS.items() if name in names):
        is_axis = key.startswith("sweep.axes.") or value.startswith("[")
        found[target] = f"""'sweep.axes."{target}"={values}'""" if is_axis else f"{target}={value}"
    found.pop(key, None)
    if name in ("lr", "learning_rate") and key.startswith("sweep.axes."):
        found["sweep.axes.lr_multiplier"] = "'sweep.axes.lr_multiplier=[0.5,1,2]'"
    if found:
        return " or ".join(f"{text} ({_HINTS[target]})" if target in _HINTS else text for target, text in found.items())
    return mode_meant(name) if value.lower() in ("true", "1", "yes", "") else ""


def choice_meant(key: str, value: Any) -> str:
    """Return what to write instead of KEY=VALUE, if the key has choices and this is none; empty if nothing is known."""
    if key == "workers" and is_whole(value):
        processes = _as_axis("sweep.axes.gpus", "", str(value))
        return f"write {meant(key, str(value))} or {processes} (GPUs, or processes)"
    words = get_close_matches(str(value).lower(), _STRATEGIES, n=1, cutoff=0.75) if key == "strategy" else []
    if not words:
        return ""
    sharded = f" (without sharding), or for a script of yours {_OWN_RANKS}" if words[0] in _SHARDED else ""
    return f"write strategy={_STRATEGIES[words[0]]}{sharded}"


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
