"""Words that people write from habit, as they do for other programs, and what to write instead, ready to copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.config.hydra_private import flag_names
from orchestrator.config.kinds import Number, OneOf
from orchestrator.config.schema import SCHEMA

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
    "sweep.budget.gpu_hours": "gpu_hours max_gpu_hours hours",
    "sweep.budget.cost": "max_cost cost",
    "resources.device": "device accelerator",
    "resources.device=cuda": "device=gpu accelerator=gpu",
    "resources.cpus_per_worker": "cpus num_cpus cpus_per_gpu cores",
    "trainable.precision": "precision dtype mixed_precision",
    "trainable.precision=bf16": "amp=true bf16=true",
    "trainable.precision=fp16": "fp16=true",
    "trainable.micro_batch=auto": "batch_size=auto",
    "report.target": "target target_accuracy accuracy goal",
    "report.metric": "metric",
    "report.margin": "margin tolerance",
    "report.objective": "minimize minimise optimize_for",
    "report.price_per_gpu_hour": "price gpu_price price_per_hour price_per_gpu_hour cost cost_per_hour hourly_cost",
    "data": "dataset datasets",
    "optimizer": "optim opt",
    "schedule": "scheduler lr_scheduler lr_schedule",
    "grad_accum_steps": "accumulate accumulation grad_accum gradient_accumulation gradient_accumulation_steps",
    "results_dir": "output_dir output out out_dir outdir log_dir logdir save_dir results dir folder",
    "sweep.name": "name run_name experiment",
    "sweep.baseline": "baseline",
    "sweep.early_stop=asha": "search searcher search_alg",
    "cluster.gpu_type": "gpu_type gpu_model gpu=TEXT gpus=TEXT",
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
    "mode=run": "mode=run mode=start mode=resume mode=continue mode=train mode=sweep mode=tune mode=restart",
    "mode=plan": "mode=plan mode=dry_run mode=dryrun mode=dry mode=preview mode=simulate mode=test mode=config",
    "mode=report": "mode=report mode=summary mode=best mode=results mode=result mode=recommend mode=recommendation"
    " mode=table mode=tables mode=csv mode=export mode=plot mode=plots mode=html mode=analyze mode=analyse",
    "mode=list": "mode=list mode=ls mode=history mode=runs",
    "mode=status": "mode=status mode=ps mode=show mode=progress mode=info mode=state",
    "mode=watch": "mode=watch mode=live mode=dashboard mode=ui mode=serve mode=web mode=monitor mode=follow mode=tail",
    "mode=verify": "mode=verify mode=check mode=validate mode=repair mode=fsck",
    "mode=compare": "mode=compare mode=diff mode=cmp",
    "mode=forecast": "mode=forecast mode=estimate mode=cost mode=price mode=memory mode=profile",
    "mode=settle": "mode=settle mode=extend mode=more mode=more_seeds",
    "mode=init": "mode=init mode=new mode=create mode=setup mode=template",
    "mode=launch": "mode=launch mode=submit mode=slurm mode=sbatch mode=deploy",
    "rerun=failed": "mode=retry mode=rerun mode=redo rerun=true rerun=yes retry=true retry_failed=true",
    "launch.options": "partition time_limit image claim hosts instance workdir infra",
}
"""What to write, and the words that people write for it: keys, or keys with one value.

`n` stands for any whole number, and `TEXT` for a name.
"""

_OWN_RANKS = "for a script of yours: -- torchrun --nproc_per_node={gpus} train.py --lr {lr}"
_REMARKS = {
    "sweep.axes.device_batch_size": "on each GPU",
    "sweep.axes.global_batch_size": "on all GPUs together",
    "sweep.axes.lr_multiplier": "factors on the learning rate",
    "trainable.lr": "at trainable.reference_batch_size; sweep.axes.lr_multiplier has factors on it",
    "time_limit_s": "of one trial",
    "budget.seconds": "of each training",
    "sweep.budget.wall_s": "of the whole sweep",
    "trainable.loader.workers": "of each GPU, to load data",
    "strategy=fsdp": _OWN_RANKS,
    "strategy=fsdp_grad": _OWN_RANKS,
    "mode=run": "the same command continues a sweep",
    "mode=report": "it prints the end again; tables/summary.csv, tables/recommendation.md and report.html have more",
    "rerun=failed": "or rerun=all",
    "report.price_per_gpu_hour": "of one GPU",
    "sweep.budget.cost": "the most that the sweep may cost",
    "mode=status": "a trial's files are in results/NAME/trials/ID",
}
"""Remarks on what to write."""

_ACTIONS = {
    "write 'report.metric={name: METRIC, better: higher}' (or lower)": "better higher_is_better",
    "write --help": "mode=help",
    "write mode=forecast 'forecast.gpus=[8,16]'": "mode=predict predict.gpus",
    "read results/NAME/trials/ID/*.log": "mode=logs mode=log",
    "write --version, or verbose=true for more messages": "v",
    "press Ctrl-C where the sweep runs, or run kill PID with the pid in results/NAME/owner.json": "mode=stop"
    " mode=cancel",
    "delete the results' folder: rm -r results/NAME": "mode=clean mode=delete",
    "its axes tell how many trials a sweep has: shorten a list in sweep.axes, or limit sweep.budget.gpu_hours,"
    " sweep.budget.wall_s or sweep.budget.cost": "max_trials n_trials num_trials num_samples trials",
}
"""What to do where no override does it, and the words that people write for it."""

_MOST_SEEDS = 50
_MOST_OFFERED = 3


def dash_errors(arguments: Sequence[str]) -> Iterator[str]:
    """Yield an error for each key written as an option (`--key`, `-k`); only Hydra's own flags take dashes."""
    flags = flag_names()
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.partition("=")
        # A flag may be cut (`--conf`), and a short one has its value behind it (`-cdFOLDER`).
        is_flag = any(flag.startswith(name) or (name[1:2] != "-" and name.startswith(flag)) for flag in flags)
        if not name.startswith("-") or is_flag:
            continue
        key = name.lstrip("-").replace("-", "_")
        is_value = not equals and following and not following.startswith("-") and "=" not in following
        value = following if is_value else value
        written = f"{argument} {following}" if is_value else argument
        # A letter is no key.
        likely = f"write {key}={value or 'VALUE'}" if len(key) > 1 else "--help lists keys and flags"
        yield f"{written!r}: keys have no dashes: {meant(key, value) or likely}"


def choice_meant(key: str, value: str) -> str:
    """Return what to do instead of KEY=VALUE, where the key exists and this is none of its choices; else empty."""
    return _instead(key, value, _with_value(key, value))


def meant(key: str, value: str) -> str:
    """Return what to do instead of KEY=VALUE, where the key does not exist; empty if nothing is known.

    Also keys in a section are recognised by their last part: `model.lr`, `budget.wall_s`, `sweep.axes.lr`.
    """
    name = key.rpartition(".")[2].lower().replace("-", "_")
    is_name = value[:1].isalpha() and value.lower() not in ("auto", "null", "true", "false")
    words = [*[key] * ("." in key), _with_value(name, value), *[f"{name}=TEXT"] * is_name, name]
    if value.lower() in ("true", "1", "yes", ""):  # a mode as a flag
        words.append(f"mode={name}")
    return next(filter(None, (_instead(key, value, word) for word in words)), "")


def meant_by_word(word: str) -> str:
    """Return what to do instead of a word without `=`: a flag, a mode, or a key without its value; empty if unknown."""
    name = word.lower().replace("-", "_")
    tried = (("mode", word, f"mode={name}"), (name, "true", f"{name}=true"), (name, "…", name))
    return next(filter(None, (_instead(*each) for each in tried)), "")


def meant_in_section(section: str, value: str) -> str:
    """Return the keys of a section that take the value given to the section; empty if none takes it, or too many do.

    Such as `budget.seconds=7200` for `budget=2h`, and `tracker.wandb.enabled=true` for `tracker=wandb`.
    """
    if f"{section}.{value}.enabled" in SCHEMA:
        return f"write {section}.{value}.enabled=true"
    # A budget of the whole sweep is as likely to be meant as one of each trial.
    beside = (section, f"sweep.{section}")
    kinds = {key: kind for key, kind in SCHEMA.items() if key.rpartition(".")[0] in beside and isinstance(kind, Number)}
    numbers = {key: kind.number_in(value) for key, kind in kinds.items()}
    written = [f"{key}={number}{_remark(key)}" for key, number in numbers.items() if number]
    return f"write {' or '.join(written)}" if 0 < len(written) <= _MOST_OFFERED else ""


def _with_value(key: str, value: str) -> str:
    return f"{key}={'n' if value.isdecimal() else value.lower().replace('-', '_')}"


def _instead(key: str, value: str, word: str) -> str:
    """Return what to do instead of KEY=VALUE by the tables, in which it is this word; empty if they do not have it."""
    for action, words in _ACTIONS.items():
        if word in words.split():
            return action
    targets = [target for target, words in _HABITS.items() if word in words.split() and target != key]
    texts = [_override(target, key, value) + _remark(target) for target in targets]
    return f"write {' or '.join(texts)}" if texts else ""


def _remark(target: str) -> str:
    return f" ({_REMARKS[target]})" if target in _REMARKS else ""


def _override(target: str, key: str, value: str) -> str:
    """Return the override of a target with the value that was given to the key."""
    if "=" in target:
        return target
    if target == "launch.options":
        return f"'{target}={{{key.rpartition('.')[2]}: {value}}}'"
    if target.startswith("sweep.axes."):
        is_count = key.endswith("seeds") and value.isdecimal() and 0 < int(value) <= _MOST_SEEDS
        return copyable(target, ",".join(map(str, range(int(value)))) if is_count else value)
    if key.startswith("sweep.axes.") or value.startswith("["):
        return f"""'sweep.axes."{target}"={_in_brackets(value)}'"""
    kind = SCHEMA.get(target)
    number = kind.number_in(value) if isinstance(kind, Number) else ""
    if isinstance(kind, OneOf) and not kind.admits(value):
        # Such as `cuda` for `cuda:0`.
        known = [word for word in kind.words if value.lower().startswith(word)]
        return f"{target}={known[0]}" if known else f"{target}= one of {', '.join(kind.words)}"
    return f"{target}={number or value}"


def copyable(key: str, value: str) -> str:
    """Return KEY=VALUE as it can be copied into a shell: an axis takes a list, and brackets need quotes."""
    if not key.startswith("sweep.axes."):
        return f"{key}={value}"
    return "sweep.axes.gpus=auto" if value == "auto" else f"'{key}={_in_brackets(value)}'"


def _in_brackets(value: str) -> str:
    return value if value.startswith("[") else f"[{value or '…'}]"
