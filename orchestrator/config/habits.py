"""Words that people write from habit, as they do for other programs, and what to write instead, ready to copy."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from orchestrator.config.hydra_private import flag_names
from orchestrator.config.kinds import FLAG, KeyKind, Number, OneOf, is_money, seconds_in, values_in
from orchestrator.config.schema import IDENTIFYING, OWN_SECTIONS, SCHEMA, options_with
from sweeps.errors import UnknownChoice

_TRACKERS = ("wandb", "mlflow", "tensorboard")

_NAMES: Mapping[str, str] = {
    "trainable.loader.workers": "num_workers dataloader_workers dataloader_num_workers workers workers=n j",
    "sweep.axes.gpus": "gpus gpu devices num_devices nproc nproc_per_node nprocs np processes num_processes tasks"
    " ntasks ntasks_per_node world_size ranks replicas gres workers=n g n",
    "sweep.axes.device_batch_size": "batch batchsize batch_size bs b batch_per_gpu device_batch device_batch_size"
    " per_gpu_batch local_batch micro_batch micro_batch_size",
    "sweep.axes.global_batch_size": "global_batch total_batch effective_batch batchsize batch_size batch bs b",
    "sweep.axes.lr_rule": "lr_rule rule lr_scaling scaling_rule",
    "sweep.axes.lr_multiplier": "lr_multiplier lr_factor",
    "sweep.axes.seed": "seed random_seed random_state repeats repetitions replicates",
    "trainable.lr": "lr learning_rate base_lr peak_lr",
    "trainable.clip_grad_norm": "clip clip_norm clip_grad grad_clip gradient_clip gradient_clip_val gradient_clipping"
    " grad_norm max_norm",
    "trainable.precision": "precision dtype torch_dtype mixed_precision amp_dtype",
    "trainable.precision=bf16": "amp=true bf16=true mixed_precision=true",
    "trainable.precision=fp16": "fp16=true half=true",
    "trainable.precision=tf32": "tf32=true allow_tf32=true",
    "trainable.precision=fp32": "amp=false bf16=false fp16=false",
    "trainable.compile=default": "compile=true torch_compile=true",
    "trainable.activation_checkpointing=full": "gradient_checkpointing=true activation_checkpointing=true"
    " grad_checkpointing=true recompute=true remat=true",
    "trainable.micro_batch=auto": "batch_size=auto auto_scale_batch_size=true auto_find_batch_size=true",
    "trainable.checkpoint_every_s": "save_every checkpoint_every checkpoint_interval",
    "trainable.checkpoint=off": "checkpoint=false checkpointing=false save=false save_strategy=no",
    "trainable.memory_format=channels_last": "channels_last=true",
    "trainable.input=loader": "dataloader=true",
    "budget.epochs": "epochs e limit_train_batches",
    "budget.steps": "steps iterations iters updates global_step limit_train_batches",
    "budget.samples": "samples examples",
    "budget.tokens": "tokens",
    "budget.steps=10": "fast_dev_run quick fast smoke smoke_test sanity_check toy tiny",
    "time_limit_s": "time_limit timeout time trial_timeout trial_time walltime limit t",
    "sweep.budget.wall_s": "time_limit timeout time walltime budget_s deadline duration total_time time_budget limit"
    " runtime t",
    "sweep.budget.gpu_hours": "gpu_hours gpuh",
    "sweep.budget.cost": "max_cost cost max_price max_spend spend money usd eur dollars euros budget_usd budget_eur"
    " cost_limit cost_budget",
    "resources.device": "device accelerator device_type",
    "resources.device=cpu": "cuda=false gpu=false gpus=false cpu=true cpu_only=true use_cpu=true",
    "resources.device=cuda": "cuda=true gpu=true",
    "resources.cpus_per_worker": "cpus cores cpus_per_gpu cpus_per_task threads omp_num_threads",
    "resources.timing=exclusive": "exclusive=true",
    "report.target": "target target_accuracy accuracy goal",
    "report.metric": "metric metric_for_best_model monitor",
    "report.margin": "margin tolerance epsilon accuracy_margin accuracy_loss min_delta",
    "report.objective": "objective minimize minimise minimizes optimize_for optimise_for prefer priority",
    "report.price_per_gpu_hour": "price gpu_price gpu_cost price_per_hour cost cost_per_hour cost_per_gpu_hour"
    " hourly_cost hourly_rate rate",
    "model": "models model_name model_name_or_path arch architecture network net backbone pretrained_model",
    "model.layers": "layers depth blocks n_layer num_hidden_layers hidden_layers",
    "model.heads": "heads n_head attention_heads num_attention_heads",
    "model.width": "width hidden_size hidden_dim d_model dim embed_dim n_embd embedding_size channels",
    "model.sequence_length": "sequence_length seq_length seq_len sequence_len context_length context context_size"
    " block_size max_length ctx n_ctx max_position_embeddings",
    "model.vocabulary": "vocabulary vocab vocab_size",
    "model.pretrained": "pretrained",
    "model.batch_norm=sync": "sync_batchnorm=true sync_bn=true",
    "model.config.attn_implementation": "attn_implementation attention_implementation attn",
    "model.lora.r": "lora_r lora_rank lora=n",
    "data": "dataset dataset_name task",
    "data.subset.train": "train_samples max_train_samples train_subset subset limit_data data_size",
    "data.root": "data_dir dataset_dir datadir",
    "optimizer": "optimizers optim opt",
    "optimizer.weight_decay": "wd weight_decay l2",
    "schedule": "schedules scheduler lr_scheduler lr_scheduler_type lr_schedule lr_decay",
    "schedule.warmup": "warmup_ratio warmup_fraction",
    "strategy": "strategies",
    "grad_accum_steps": "accumulate accumulation grad_accum grad_accumulation gradient_accumulation"
    " gradient_accumulation_steps accumulate_grad_batches",
    "tensor_parallel": "tp tensor_parallel_size",
    "pipeline_parallel": "pp pipeline_parallel_size",
    "context_parallel": "cp sequence_parallel",
    "results_dir": "output_dir output out o out_dir outdir log_dir logdir save_dir results dir folder local_dir"
    " default_root_dir storage_path",
    "sweep.name": "name run_name experiment experiment_name exp_name job_name project",
    "sweep.baseline": "baseline",
    "sweep.early_stop=asha": "early_stop=true early_stopping=true callbacks=early_stopping"
    " callbacks=earlystopping asha=true hyperband=true early_terminate=true"
    " scheduler=asha scheduler=hyperband prune=true pruner",
    "cluster.gpu_type": "gpu_type gpu_model gpu_name gpu=TEXT gpus=TEXT",
    "cluster.address": "address ray_address",
    "launch.nodes": "n_nodes nnodes N",
    "nodes": "n_nodes nnodes N",
    "retries": "max_failures max_restarts max_retries attempts",
    **{
        f"tracker.{tracker}.enabled=true": f"{tracker}=true report_to={tracker} logger={tracker} log_with={tracker}"
        f" tracker={tracker}"
        for tracker in _TRACKERS
    },
    **{f"tracker.{tracker}.enabled=false": f"{tracker}=false" for tracker in _TRACKERS},
    **{f"tracker.wandb.mode={mode}": f"wandb={mode}" for mode in ("offline", "online")},
    "tracker.mlflow.uri": "tracking_uri",
    "format=json": "json= json=true",
    "verbose=true": "debug=true log_level=debug v=true",
    "report.html=false": "plots=false plot=false",
    "rerun=all": "force=true overwrite=true from_scratch=true fresh=true restart=true",
    "rerun=failed": "rerun=true rerun=yes retry=true retry_failed=true",
    "launch.target": "cloud provider target_platform",
    "launch.options": "partition image claim hosts instance workdir infra volume memory_gb",
    "launch.options.memory_gb": "mem memory",
    "launch.options.time_limit": "time walltime t",
}
"""What to write, and the names that people write for it: keys, or keys with one value.

`n` stands for any whole number, `TEXT` for a name, `FILE` for that of a file, `true` and `false` also for yes, no, on
and off. A name also counts in another order, in the plural, and with words that say nothing (`_SAY_NOTHING`):
`num_train_epochs` for `epochs`.
"""

_VALUES: Mapping[str, Mapping[str, str]] = {
    "mode": {
        "run": "start resume continue train sweep tune restart resume_from_checkpoint",
        "plan": "dry_run dryrun dry preview simulate test config list_trials",
        "report": "summary best results result recommend recommendation table tables csv export plot plots html analyze"
        " analyse",
        "list": "ls history runs",
        "status": "ps show progress info state squeue",
        "watch": "live dashboard ui serve web monitor follow tail",
        "verify": "check validate repair fsck",
        "compare": "diff cmp",
        "forecast": "estimate cost price memory profile quote",
        "settle": "extend more more_seeds",
        "init": "new create setup template",
        "launch": "submit slurm sbatch deploy",
    },
    "strategy": {
        "fsdp": "fsdp2 zero zero3 deepspeed full_shard deepspeed_stage_3",
        "fsdp_grad": "zero2 shard_grad_op deepspeed_stage_2",
        "data_parallel": "dp",
        "ddp": "distributed horovod ddp_spawn ddp_notebook ddp_find_unused_parameters_false mirrored data_parallelism",
    },
    "resources.device": {"cuda": "gpu"},
    "trainable.precision": {
        "bf16": "bfloat16 bf16_mixed bf16_true true",
        "fp16": "16 half float16 16_mixed 16_true mixed",
        "fp32": "32 float32 float full single false no 32_true",
        "fp64": "64 double float64 64_true",
    },
    "trainable.compile": {"default": "true inductor", "off": "false none", "max-autotune": "max_autotune max"},
    "trainable.activation_checkpointing": {"full": "true", "off": "false"},
    "report.objective": {
        "time": "speed fast fastest throughput runtime",
        "cost": "cheap cheapest money price dollars usd",
        "energy": "power kwh joules green co2",
    },
    "sweep.axes.lr_rule": {"none": "constant false", "sqrt": "square_root", "adam_sqrt": "adam"},
    "optimizer": {"adamw": "adamw_torch adamw_torch_fused adamw_hf", "sgd": "momentum nesterov"},
    "schedule": {"constant": "none off false null", "cosine": "cosine_annealing cosineannealinglr cosine_with_warmup"},
    "model": {
        "hf model.path=FOLDER": "bert roberta distilbert t5 mistral qwen gemma opt huggingface transformers",
        "torchvision model.arch=NAME": "vit vgg16 efficientnet mobilenet densenet convnext alexnet",
    },
    "data": {
        "imagefolder data.path=FOLDER": "imagenet images folder image_folder",
        "text data.path=FILE": "wikitext openwebtext c4 shakespeare tinystories",
    },
    "launch.target": {"kuberay": "k8s kubernetes", "skypilot": "sky aws gcp azure cloud"},
}
"""The values of a key, and the words that people write for them."""

_OWN_RANKS = "for a script of yours: -- torchrun --nproc_per_node={gpus} train.py --lr {lr}"
_REMARKS = {
    "sweep.axes.device_batch_size": "on each GPU",
    "sweep.axes.global_batch_size": "on all GPUs together",
    "sweep.axes.lr_multiplier": "factors on the learning rate",
    "trainable.lr": "at trainable.reference_batch_size; sweep.axes.lr_multiplier has factors on it",
    "time_limit_s": "of one trial",
    "budget.seconds": "of each training",
    "budget.steps=10": "to try it; mode=forecast rehearses each cell",
    "sweep.budget.wall_s": "of the whole sweep",
    "sweep.budget.gpu_hours": "of all trials together",
    "trainable.loader.workers": "of each GPU, to load data",
    "strategy=fsdp": _OWN_RANKS,
    "strategy=fsdp_grad": _OWN_RANKS,
    "mode=run": "the same command continues a sweep",
    "mode=report": "it prints the end again; tables/summary.csv, tables/recommendation.md and report.html have more",
    "rerun=failed": "or rerun=all",
    "report.price_per_gpu_hour": "of one GPU",
    "sweep.budget.cost": "the most that the sweep may cost; it needs report.price_per_gpu_hour",
    "sweep.early_stop=asha": "it stops cells that are clearly worse; no training ends by its own curve",
    "mode=status": "a trial's files are in results/NAME/trials/ID",
    "schedule.warmup": "share of the training; warmup_epochs is for the learning-rate rules",
    "launch.options.time_limit": "of the Slurm job",
    "launch.nodes": "that mode=launch starts",
    "nodes": "for each trial",
}
"""Remarks on what to write."""

_FORMS = ("json", "csv", "tsv", "md", "markdown", "html", "pdf", "parquet", "excel", "xlsx", "yaml", "text", "latex")

_ACTIONS = {
    "write 'report.metric={name: METRIC, better: higher}' (or lower)": "better higher_is_better greater_is_better"
    " mode=max mode=min direction",
    "write --help": "mode=help",
    "write mode=forecast 'forecast.gpus=[8,16]'": "mode=predict predict.gpus predict",
    "read results/NAME/trials/ID/*.log": "mode=logs mode=log",
    "write --version, or verbose=true for more messages": "v",
    "press Ctrl-C where the sweep runs, or run kill PID with the pid in results/NAME/owner.json": "mode=stop"
    " mode=cancel mode=kill",
    "delete the results' folder: rm -r results/NAME": "mode=clean mode=delete mode=rm mode=reset",
    "its axes tell how many trials a sweep has: shorten a list in sweep.axes, or limit sweep.budget.gpu_hours,"
    " sweep.budget.wall_s or sweep.budget.cost": "max_trials n_trials num_trials num_samples trials",
    "results/NAME has all forms: tables/*.csv and *.md, tables/recommendation.json, report.html (which prints to PDF);"
    " write format=json for what mode=plan, forecast, status and list print": " ".join(
        f"{key}={form}" for key in ("report", "format", "output", "output_format", "export") for form in _FORMS
    ).replace("format=json ", ""),
    "the output goes where the shell sends it: append 2>&1 | tee {value}": "output=FILE out=FILE o=FILE log=FILE"
    " log_file=FILE logfile=FILE error=FILE",
    "there is nothing to silence but the end: append > /dev/null; report.html has everything": "quiet silent q"
    " verbose=0 progress=false",
    "there is no pause before a sweep to answer: mode=plan shows what would run": "yes y confirm",
    "only CUDA, ROCm and CPUs are supported: write resources.device=cpu": "device=mps device=tpu device=xpu mps tpu"
    " accelerator=mps accelerator=tpu resources.device=mps resources.device=tpu resources.device=xpu use_mps",
    "the sweep tries all combinations of sweep.axes; 'sweep.phases=[probe,train]' leaves out those that cannot win, and"
    " -m hydra/sweeper=… searches (docs/how-to/hydra.md)": "search searcher search_alg method sampler bayes optuna",
    "learning-rate warm-up is a share of the training, write schedule=cosine schedule.warmup=0.1; warmup_epochs=5 is"
    " that of the rules linear, lars and lamb": "lr_warmup warmup warmup_steps warmup_iters",
    "sbatch reads it from its own options or the environment: sbatch --{name}={value} FILE": "account qos constraint"
    " reservation mail_user mail_type nodelist exclude dependency A mem_per_cpu mem_per_gpu requeue signal begin",
    "the sweep runs as many trials at once as GPUs are free; write resources.timing=exclusive for one on each"
    " node": "array max_concurrent max_concurrent_trials parallel n_jobs num_jobs jobs concurrency max_parallel",
    "trials write metrics.jsonl and logs into results/NAME/trials/ID; their interval is no setting": "logging_steps"
    " log_every log_every_n_steps log_interval print_freq log_freq",
    "every training is evaluated on its validation set at the ends of epochs; that is no setting": "do_eval do_train"
    " eval evaluate eval_steps eval_every val_check_interval check_val_every_n_epoch evaluation_strategy eval_strategy",
    "a training of this project has no such setting; a script of yours may have it: -- python train.py --lr"
    " {lr}": "load_in_8bit load_in_4bit quantization quantize fp4 offload cpu_offload push_to_hub ema swa patience"
    " callbacks deterministic benchmark num_sanity_val_steps save_total_limit load_best_model_at_end resume_from"
    " max_new_tokens packing",
    "checkpoints are saved at the ends of epochs, write trainable.checkpoint_every_s=30 for the least time between"
    " two": "save_steps save_freq save_interval save_strategy save_total",
    "'optimizer.betas=[0.9,0.999]' has both, with optimizer=adam or adamw": "adam_beta1 adam_beta2 beta1 beta2",
    "intervals are of 95% and P(near best) must reach 90% for CLEAR: no setting, more seeds narrow them, write"
    " mode=settle": "confidence confidence_level alpha significance p_value ci power_analysis",
    "costs come from GPU-hours alone: write report.price_per_gpu_hour=2.5 with electricity in it; energy has its own"
    " column": "electricity electricity_price kwh_price price_per_kwh energy_price carbon carbon_price co2",
    "each cell's cost, and what larger ones save, stand at the end of a sweep: write"
    " report.price_per_gpu_hour=2.5": "savings roi costs cost_report",
    "a spot price is a price: write report.price_per_gpu_hour=1.2; lost nodes are tried again, see"
    " docs/how-to/faults.md": "spot spot_price use_spot preemptible",
}
"""What to do where no override does it, and the words that people write for it; {name} and {value} are theirs."""

_SAY_NOTHING = {"num", "n", "number", "of", "count", "max", "train", "training", "per", "the", "size", "use", "enable"}
_TIMES = {"s": "s", "sec": "s", "second": "s", "m": "m", "min": "m", "minute": "m", "h": "h", "hour": "h", "day": "d"}
_TRUE, _FALSE = ("true", "yes", "on", "1", ""), ("false", "no", "off", "0", "none", "null")
_MOST_SEEDS = 50
_MOST_OFFERED = 3
_MOST_LISTED = 8
_NAMED_BY_VALUES = ("strategy", "report.objective", "launch.target")
_LIKELY = ("budget.epochs", "sweep.budget.gpu_hours", "sweep.budget.cost")
_IN_MAPPING = ("launch.options", "model.lora", "model.config")


def _stem(name: str) -> str:
    """Return a name's words in the singular, in one order, without those that say nothing; the name if none is left."""
    words = [word if word.endswith("ss") else word.removesuffix("s") for word in name.split("_")]
    return "_".join(sorted({*words} - _SAY_NOTHING - {""})) or name


def _by_word(tables: Sequence[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    """Return {word: texts}, in which stems of words (`~batch`) are entries, too."""
    texts_by_word: dict[str, list[str]] = {}
    for text, words in tables:
        for word in words.split():
            name, equals, value = word.partition("=")
            for entry in (word, f"~{_stem(name)}{equals}{value}"):
                texts = texts_by_word.setdefault(entry, [])
                if text not in texts:  # else another word has the same stem
                    texts.append(text)
    return texts_by_word


_OF_NAMES = _by_word([*_NAMES.items()])
_OF_ACTIONS = _by_word([*_ACTIONS.items()])
_OF_VALUES = {key: _by_word([*values.items()]) for key, values in _VALUES.items()}


def without_dashes(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments with options (`--key 1`, `-k`) as overrides, and {override: as written} of those.

    Only Hydra's own flags take dashes.
    """
    flags = flag_names()
    plain: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        # A flag may be cut (`--conf`), and a short one has its value behind it (`-cdFOLDER`).
        is_flag = any(flag.startswith(name) or (name[1:2] != "-" and name.startswith(flag)) for flag in flags)
        if not name.startswith("-") or is_flag:
            plain.append(argument)
            continue
        key, values = name.lstrip("-").replace("-", "_"), [value]
        if not equals:
            # Several values are several numbers: `--gpus 1 2 4`.
            values = [rest.pop(0)] if rest and not rest[0].startswith("-") and "=" not in rest[0] else []
            while values and rest and values[-1][:1].isdigit() and rest[0][:1].isdigit() and "=" not in rest[0]:
                values.append(rest.pop(0))
        is_negated = not values and key.startswith("no_")
        key = key.removeprefix("no_") if is_negated else key
        override = f"{key}={','.join(values) if values else 'false' if is_negated else 'true'}"
        plain.append(override)
        options[override] = argument if equals else " ".join([argument, *values])
    return plain, options


def explained(line: str) -> str:
    """Return an error line; for an unknown choice that people write from habit, with what to do instead."""
    if not isinstance(line, UnknownChoice):
        return line
    value = str(line.value).lower() if isinstance(line.value, bool) else str(line.value)
    instead = choice_meant(line.key, value)
    return f"unknown {line.key} {line.value!r}: {instead}" if instead else line


def choice_meant(key: str, value: str) -> str:
    """Return what to do instead of KEY=VALUE, where the key exists and this is none of its choices; else empty."""
    words = [f"{name}={reading}" for name in (key, key.rpartition(".")[2]) for reading in _readings(value)]
    if instead := next(filter(None, (_instead(key, value, word, ()) for word in words)), ""):
        return instead
    synonym = _synonym(key, value)
    return f"write {key}={synonym}{_remark(f'{key}={synonym}')}" if synonym else ""


def meant(key: str, value: str, known: Collection[str] = ()) -> str:
    """Return what to do instead of KEY=VALUE, where the key does not exist; empty if nothing is known.

    Also keys in a section are recognised by their last part: `model.lr`, `budget.wall_s`, `sweep.axes.lr`. Without
    `known`, the keys and groups of the config, all keys of all choices count.
    """
    name = _plain(re.sub("(?<=[a-z])(?=[A-Z])", "_", key.rpartition(".")[2]))
    values = _readings(value)
    words = [*[key] * ("." in key)]
    for base in (name, f"~{_stem(name)}"):
        words += [*(f"{base}={reading}" for reading in values), base]
    if instead := next(filter(None, (_instead(key, value, word, known) for word in words)), ""):
        return instead
    if "true" in values and (mode := _mode_meant(name)):
        return mode
    # A value is in place of its key: `fsdp=true`, `deepspeed=ds.json`.
    for owner in _NAMED_BY_VALUES:
        if choice := name if name in SCHEMA[owner].words else _synonym(owner, name):
            return f"write {owner}={choice}{_remark(f'{owner}={choice}')}"
    # The unit is in the name: `max_hours=3`.
    rest, _, unit = name.rpartition("_")
    if (letter := _TIMES.get(unit.removesuffix("s") or unit)) and re.fullmatch(r"[\d.]+", value):
        name = rest if rest.replace("_", "") and _stem(rest) not in _SAY_NOTHING else "time"
        return next(
            filter(None, (_instead(key, value + letter, word, known) for word in (name, f"~{_stem(name)}"))), ""
        )
    return ""


def meant_by_word(word: str, known: Collection[str] = ()) -> str:
    """Return what to do instead of a word without `=`: a mode, a flag, or a key without its value; empty if unknown."""
    name = _plain(word)
    return _mode_meant(name) or meant(name, "true", known)


def meant_in_section(section: str, value: str) -> str:
    """Return what to do instead of a value in place of a section: its keys that take it, if they are few.

    Such as `budget.seconds=7200` for `budget=2h`, and `tracker.wandb.enabled=true` for `tracker=wandb`.
    """
    if f"{section}.{value}.enabled" in SCHEMA:
        return f"write {section}.{value}.enabled=true"
    if instead := choice_meant(section, value):
        return instead
    # A budget of the whole sweep is as likely to be meant as one of each trial.
    beside = (section, f"sweep.{section}")
    kinds = {key: kind for key, kind in SCHEMA.items() if key.rpartition(".")[0] in beside}
    values = {key: kind.number_in(value) for key, kind in kinds.items() if isinstance(kind, Number)}
    if is_money(value):
        values = {key: number for key, number in values.items() if key.endswith("cost")}
    elif seconds_in(value):
        values = {key: number for key, number in values.items() if key.rpartition(".")[2] in ("seconds", "wall_s")}
    values |= {key: value for key, kind in kinds.items() if value in kind.words}
    values |= {key: _synonym(key, value) for key in kinds if _synonym(key, value)}
    values = {key: word for key, word in values.items() if word}
    if len(values) > _MOST_OFFERED:  # a plain number
        values = {key: word for key, word in values.items() if key in _LIKELY}
    return f"write {' or '.join(f'{key}={word}{_remark(key)}' for key, word in values.items())}" if values else ""


def group_meant(key: str) -> str:
    """Return the config group that a key that does not exist is a synonym of; empty if there is none."""
    targets = _OF_NAMES.get(_plain(key), ())
    return next((target for target in targets if "." not in target and target not in SCHEMA and "=" not in target), "")


def _plain(word: str) -> str:
    return word if len(word) == 1 else word.lower().replace("-", "_")  # `-N` is not `-n`


def _readings(value: str) -> list[str]:
    """Return what a value may stand for in the tables: itself, `true`, `false`, `n`, `FILE` or `TEXT`."""
    value = _plain(value)
    readings = [value, *["true"] * (value in _TRUE), *["false"] * (value in _FALSE), *["n"] * value.isdecimal()]
    is_name = value[:1].isalpha() and value not in (*_TRUE, *_FALSE, "auto", "all", "max") and values_in(value) == value
    return [*readings, *["FILE"] * bool(re.search(r"\.[a-z]{2,5}$", value)), *["TEXT"] * is_name]


def _mode_meant(name: str) -> str:
    """Return what to do instead of the name of a mode, or a synonym of one."""
    if action := next(iter(_OF_ACTIONS.get(f"mode={name}", ())), ""):
        return action
    mode = name if name in SCHEMA["mode"].words else _synonym("mode", name)
    return f"write mode={mode}{_remark(f'mode={mode}')}" if mode else ""


def _synonym(key: str, value: str) -> str:
    """Return the value of a key that another word stands for; empty if none is known."""
    values = _OF_VALUES.get(key, {})
    return next((values[reading][0] for reading in _readings(value) if reading in values), "")


def _instead(key: str, value: str, word: str, known: Collection[str]) -> str:
    """Return what to do instead of KEY=VALUE by the tables, in which it is this word; empty if they do not have it."""
    for action in _OF_ACTIONS.get(word, ()):
        return action.replace("{name}", key.rpartition(".")[2].replace("_", "-")).replace(
            "={value}" if value == "true" else "{value}", "" if value == "true" else value
        )
    targets = [target for target in _OF_NAMES.get(word, ()) if target != key]
    there = [target for target in targets if not known or _is_there(target, known)]
    if targets and not there:
        return elsewhere(_settable(targets[0]), value, known)
    # A fraction is no number of steps.
    fitting = [target for target in there if _takes(SCHEMA.get(target), value)]
    texts = [override_of(target, key, value) for target in fitting or there]
    return f"write {' or '.join(texts)}" if texts else ""


def _takes(kind: KeyKind | None, value: str) -> bool:
    return not isinstance(kind, Number) or not re.fullmatch(r"[\d.]+", value) or bool(kind.number_in(value))


def _is_there(target: str, known: Collection[str]) -> bool:
    key = _settable(target)
    return key in SCHEMA or key in known or key.startswith("sweep.")


def _settable(target: str) -> str:
    """Return the key that a target sets: its section, if that is a value as a whole."""
    key = target.partition("=")[0]
    return key.rpartition(".")[0] if key.rpartition(".")[0] in _IN_MAPPING else key


def elsewhere(key: str, value: str, known: Collection[str]) -> str:
    """Return which choices of a group have a key that the chosen one lacks; empty if none has it."""
    group = key.partition(".")[0]
    if not (options := options_with(key)):
        return ""
    if group == "schedule":  # any schedule fits any training
        return f"write schedule={options[0]} {key}={value}{_remark(key)}"
    own = [dotted.partition(".")[2] for dotted in known if dotted.startswith(f"{group}.") and dotted != f"{group}.name"]
    has = f", which has {', '.join(own)}" if 0 < len(own) <= _MOST_LISTED else ""
    return f"{key} is a setting of {group}={', '.join(options)}, not of the chosen {group}{has}"


def _remark(target: str) -> str:
    return f" ({_REMARKS[target]})" if target in _REMARKS else ""


def override_of(target: str, key: str, value: str) -> str:
    """Return the override of a target with the value that was given to the key, and a remark on it."""
    if "=" in target:
        return target + _remark(target)
    section, _, name = target.rpartition(".")
    kind = SCHEMA.get(target)
    if synonym := _synonym(target, value):
        value = synonym
    elif value == "true" and kind is not FLAG:  # a flag for a key that takes a value
        value = "…"
    if section == "model.config":  # keys of a file of the user's, which Hydra does not know
        return f"+{target}={value}"
    if target == "launch.options" or section in _IN_MAPPING:
        option = key.rpartition(".")[2] if target == "launch.options" else name
        amount = Number(unit="GB").number_in(value) if option == "memory_gb" else ""
        if option == "time_limit" and ":" in value and (seconds := seconds_in(value)):
            amount = f"{math.ceil(seconds / 60)}m"
        mapping = section if section in _IN_MAPPING else target
        return f"'{mapping}={{{option}: {amount or value}}}'{_remark(target)}"
    if target.startswith("sweep.axes."):
        is_count = key.endswith(("seeds", "repeats")) and value.isdecimal() and 0 < int(value) <= _MOST_SEEDS
        return copyable(target, ",".join(map(str, range(int(value)))) if is_count else value) + _remark(target)
    top = target.partition(".")[0]
    can_be_axis = top not in OWN_SECTIONS or top in IDENTIFYING
    if key.startswith("sweep.axes.") or value.startswith("[") or (can_be_axis and values_in(value) != value):
        axis = f'"{target}"' if "." in target else target
        return f"'sweep.axes.{axis}={_in_brackets(target, value)}'{_remark(target)}"
    number = kind.number_in(value) if isinstance(kind, Number) else ""
    if isinstance(kind, OneOf) and not kind.admits(value):
        # Such as `cuda` for `cuda:0`.
        near = [word for word in kind.words if value.lower().startswith(word)]
        return f"{target}={near[0]}" if near else f"{target}= one of {', '.join(kind.words)}"
    if isinstance(kind, Number) and kind.null and value.lower() in ("-1", "inf", "unlimited", "none"):
        return copyable(target, "null") + _remark(target)
    if isinstance(kind, Number) and not (number or value == "…" or re.fullmatch(r"[\d.e+-]+", value)):
        number = (kind.unit or "number").partition(" ")[0].upper()  # `deadline=tomorrow`
    return copyable(target, number or value) + _remark(target)


def copyable(key: str, value: str) -> str:
    """Return KEY=VALUE as it can be copied into a shell: an axis takes a list, and brackets need quotes."""
    if not key.startswith("sweep.axes."):
        return f"'{key}={value}'" if set(value) & set("[]{}$ ") else f"{key}={value}"
    if key == "sweep.axes.gpus" and value.lower() in ("auto", "all", "max", "-1", "available"):
        return "sweep.axes.gpus=auto"
    return f"'{key}={_in_brackets(key, value)}'"


def _in_brackets(key: str, value: str) -> str:
    # `4` of `gpu:4` and `gpu:h100:4`, which Slurm takes.
    count = re.fullmatch(r"gpu:(?:\w+:)?(\d+)", value)
    return f"[{values_in(count[1] if count else value, every=key.endswith('seed')) or '…'}]"
