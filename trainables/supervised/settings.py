"""The `trainable` section of the training loop's config, and the errors of a config that show before torch is imported.

The orchestrator calls `errors` and `remarks` by dotted path, for a plan as well as for a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any

from sweeps.axes import is_number, is_whole
from sweeps.errors import UnknownChoice, nearest
from sweeps.layout import may_shard
from sweeps.metric import column_of, named_metric
from sweeps.trial import FEWEST_WARMUP_STEPS, FEWEST_WINDOW_STEPS, SHORTEST_WARMUP_S, SHORTEST_WINDOW_S
from trainables.availability import absent, not_here, runs_here
from trainables.component_registry import (
    DATA,
    FAMILIES,
    MODELS,
    OF_IMAGES_TOO,
    OF_TOKENS,
    OPTIMIZERS,
    SCHEDULES,
    TEXTS,
    factory_of,
    path_of,
)
from trainables.optimizers import schedules
from trainables.optimizers.schedules import Growth
from trainables.token_checks import content_errors, few_steps, shape_errors, tensor_errors

CHOICES = {
    "precision": ("fp32", "tf32", "bf16", "fp16", "fp64"),
    "compile": ("off", "default", "max-autotune", "blocks"),
    "activation_checkpointing": ("off", "selective", "full"),
    "master_weights": ("fp32", "bf16"),
    "fp8": ("off", "tensorwise", "rowwise"),
    "cuda_graph": ("off", "on"),
    "micro_batch": ("off", "auto"),
    "memory_format": ("contiguous", "channels_last"),
    "input": ("resident", "loader"),
    "exchange": ("full", "bf16"),
    "checkpoint": ("off", "epochs"),
}

OF_GPUS = {"precision": ("tf32",), "cuda_graph": ("on",), "fp8": ("tensorwise", "rowwise")}
"""{key of the section: its values that CPUs do not have}"""

LEAST = {
    "branch_tokens": 1,
    "branch_window_tokens": 1,
    "eval_batch_size": 1,
    "window_steps": 1,
    "window_s": 0,
    "warmup_steps": 0,
    "warmup_s": 0,
    "checkpoint_every_s": 0,
}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train, evaluate and time. Raises ValueError naming the valid choices."""

    precision: str = "fp32"  # fp32, tf32, bf16, fp16 or fp64: see `trainables.step.precision`
    input: str = "resident"
    """resident: the training set is on the device and is augmented there; loader: every rank has worker processes that
    load and augment."""
    loader: Mapping[str, Any] = field(default_factory=dict)  # the keys of `trainables.inputs.loaders.Workers`
    compile: str = "off"
    """off, default or max-autotune: torch.compile of the model, for fixed shapes; blocks: of each repeated block."""
    cuda_graph: str = "off"
    """on: the whole optimizer step is captured once and replayed, for steps shorter than their kernel launches."""
    activation_checkpointing: str = "off"
    """full: each repeated block is computed again in the backward pass, which saves memory; selective: all but its
    attention and every second matrix product."""
    master_weights: str = "fp32"
    """The format of parameters and optimizer states; bf16 (with precision=bf16) needs half the memory."""
    fp8: str = "off"
    """tensorwise, rowwise: matrix products of the repeated blocks in float8, scaled by tensor or by row (torchao)."""
    clip_grad_norm: float | None = None
    """The most that the norm of all gradients may be; larger gradients are shortened to it."""
    micro_batch: str = "off"
    """auto: a share that does not fit into memory is divided into passes, as few as fit on every rank; the evaluation's
    batch is halved until it fits."""
    exchange: str = "full"
    """full: gradients are exchanged as they are; bf16: rounded to 8 significant bits, half the bytes."""
    memory_format: str = "contiguous"  # contiguous (N×C×H×W) or channels_last, which tensor cores prefer
    noise_scale: bool = False  # whether the gradient noise scale is estimated, if a step has several ranks or passes
    label_smoothing: float = 0.0
    """The share of a target that training spreads evenly over all classes; evaluation does not."""
    eval_mirrored: bool = False  # whether an image is evaluated by the mean logits of itself and its mirror image
    val_fraction: float = 0.1
    """The share of the training set that is held out by the trial's seed; 0 measures no `val_accuracy`."""
    give_up_below: float | None = None
    """A trial whose `val_accuracy` after the training is below this is neither evaluated nor timed; the orchestrator
    sets it."""
    only_timed: bool = False
    """Whether the trial trains only as far as its timing needs, and is not evaluated on the test set."""
    timed_with: str = ""
    """The id of another trial with the same speed, which was timed; this one then takes no steps for its timing alone.
    The orchestrator sets it."""
    eval_batch_size: int = 1024  # samples that a rank evaluates at once; changes no result
    window_s: float = SHORTEST_WINDOW_S  # throughput is measured over at least so many seconds in steady state
    window_steps: int = FEWEST_WINDOW_STEPS  # … and over at least so many optimizer steps
    warmup_steps: int = FEWEST_WARMUP_STEPS  # untimed steps before a window that follows the training, at least
    warmup_s: float = SHORTEST_WARMUP_S
    """Untimed seconds before such a window, at least; until the pace settles: `trainables.timed_window.Warmup`."""
    checkpoint: str = "epochs"
    """epochs: a checkpoint is saved at the ends of epochs, and when the trial is asked to stop; off: none is."""
    checkpoint_every_s: float = 30.0
    """Seconds of training between two checkpoints, at least; more if saving takes over 1% of the time."""

    branch_tokens: int | None = None  # the training continues that of `branch_base` after so many tokens
    branch_window_tokens: int | None = None  # tokens that such a branch trains
    branch_base: str = ""  # the id of the trial that a branch continues; the orchestrator sets it
    branch_points: tuple[int, ...] = ()
    """The tokens after which the trial saves checkpoints for branches; the orchestrator sets them."""

    @property
    def branch_end(self) -> int | None:
        """The tokens after which a branch ends; None for other trials, and for a branch that is only timed."""
        if not self.branch_base or self.only_timed:
            return None
        return (self.branch_tokens or 0) + (self.branch_window_tokens or 0)

    @staticmethod
    def of(config: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings among the section's keys; the orchestrator reads the others."""
        return TrainingSettings(
            **{setting.name: config[setting.name] for setting in fields(TrainingSettings) if setting.name in config}
        )

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(UnknownChoice(f"trainable.{name}", getattr(self, name), choices))
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"trainable.val_fraction={self.val_fraction} is not a share of the training set below 1")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"trainable.label_smoothing={self.label_smoothing} is not a share below 1")
        if self.clip_grad_norm is not None and not self.clip_grad_norm > 0:
            raise ValueError(f"trainable.clip_grad_norm={self.clip_grad_norm} is not above 0")
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"trainable.{name}={getattr(self, name)} is not at least {least}")
        for name, value in (("master_weights", "bf16"), ("fp8", "tensorwise"), ("fp8", "rowwise")):
            if getattr(self, name) == value and self.precision != "bf16":
                raise ValueError(f"trainable.{name}={value} needs trainable.precision=bf16, not {self.precision}")
        if self.branch_tokens is not None and self.checkpoint == "off" and not self.only_timed:
            raise ValueError(
                "trainable.branch_tokens needs trainable.checkpoint=epochs: branches start from checkpoints"
            )


REPORTED = ("val_accuracy", "val_loss", "bits_per_byte", "accuracy", "loss")
"""The metrics of this training, the validation's first."""

_MEASURED = ("epoch_s", "train_s", "samples_per_s", "peak_memory_gb", "energy_j", "energy_j_per_sample", "mfu")
"""Figures of a trial that someone may compare in place of a metric."""


def errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each error that shows without loading the data and without a device."""
    model, data = config.get("model") or {}, config.get("data") or {}
    try:
        TrainingSettings.of(config["trainable"])
    except ValueError as error:
        yield error.args[0]
    except TypeError as error:
        yield f"trainable: a value has the wrong type: {error}"
    report = config.get("report") or {}
    target = report.get("target")
    metric = named_metric(config)
    if metric not in ("auto", *REPORTED, *_MEASURED) and column_of(metric) not in REPORTED:
        yield f"report.metric={metric}: this training reports {', '.join(REPORTED)}{nearest(metric, REPORTED)}"
    measures_accuracy = report.get("metric") in ("auto", "val_accuracy") and data.get("name") not in TEXTS
    if measures_accuracy and is_number(target) and not 0 < target <= 1:
        yield f"report.target={target:g} is not a share of 1, such as 0.9, as val_accuracy is"
    if (config.get("budget") or {}).get("tokens") is not None and data.get("name") in set(DATA) - set(TEXTS):
        yield f"budget.tokens={config['budget']['tokens']} is a length for language models; images count as samples"
    yield from _layout_errors(config)
    yield from _step_errors(config)
    if model.get("lora") and (config.get("optimizer") or {}).get("name") == "muon":
        yield "optimizer=muon needs parameters beside the blocks' matrices, and adapters have none: optimizer=adamw"
    unfit = [*_name_errors(config), *_label_errors(model, data)]
    yield from unfit or _own_code_errors(config)
    yield from shape_errors(config)
    yield from _data_errors(data)
    loader = config["trainable"].get("loader") or {}
    if isinstance(loader, Mapping):
        yield from _count_errors("trainable.loader", loader, {"workers": 0, "prefetch": 1})
    else:
        yield f"trainable.loader must be a section with workers, prefetch, pin_memory, not {loader!r}"
    if runs_here(config):
        fp8 = config["trainable"].get("fp8", "off")
        if fp8 in ("tensorwise", "rowwise") and find_spec("torchao") is None:
            yield f"trainable.fp8={fp8} needs a further package: pip install 'sweep-orchestrator[fp8]'"
        yield from list(absent(data, config["model"])) or content_errors(config)
        yield from _without_gpu(config)
    try:
        growth = Growth.of(config["schedule"])
        if config["schedule"]["name"] in SCHEDULES:  # the user's own code is not imported here
            schedules.resolve(config["schedule"])(0.0, 1.0)
    except (ValueError, KeyError, TypeError) as error:
        yield f"schedule: {error}"
        return
    yield from growth.errors(config, _axes(config).get("lr_rule") or ())


def remarks(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for data that is not on this machine, if the trials run elsewhere or are only planned.

    Also for accumulation that only costs time (Marek et al. 2025, "Small batch size training for language models"),
    and for budgets of a few steps.
    """
    if (config.get("data") or {}).get("name") in TEXTS:
        yield from few_steps(config)
    passes = config.get("grad_accum_steps", 1)
    if (config.get("data") or {}).get("name") in TEXTS and _is_on_one_gpu(config) and is_whole(passes) and passes > 1:
        yield (
            f"grad_accum_steps={passes} on one GPU takes the time of {passes} smaller steps, which usually train more:"
            " use it only for a batch that does not fit"
        )
    if not runs_here(config):
        yield from not_here(config, absent(config.get("data") or {}, config.get("model")))
        yield from _without_gpu(config)


def _is_on_one_gpu(config: Mapping[str, Any]) -> bool:
    """Return whether all trials have one GPU, on which `fsdp` divides nothing."""
    return _axes(config).get("gpus") in (None, [1])


def _axes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return (config.get("sweep") or {}).get("axes") or {}


def _layout_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each key that the strategy or the division of layers excludes."""
    strategy, degree = config.get("strategy", "auto"), config.get("tensor_parallel", 1)
    trainable, model = config["trainable"], config.get("model") or {}
    is_divided = is_whole(degree) and degree > 1
    if is_divided or (may_shard(strategy) and not _is_on_one_gpu(config)):
        cause = f"tensor_parallel={degree}" if is_divided else f"strategy={strategy}"
        if trainable.get("cuda_graph") == "on":
            yield (
                f"{cause} needs trainable.cuda_graph=off: every pass gathers parameters to new addresses, and a graph"
                " replays the first ones"
            )
        for measure in _noise_measures(config):
            yield f"{measure} needs strategy=ddp: with {cause} no rank has whole gradients"
    if strategy == "data_parallel":
        for key, values in (("compile", ("default", "max-autotune")), ("cuda_graph", ("on",))):
            if trainable.get(key) in values:
                yield f"strategy=data_parallel needs trainable.{key}=off: its replicas run in other threads"
    if strategy == "independent" and model.get("batch_norm") == "sync":
        yield "model.batch_norm=sync joins the ranks of one model, and strategy=independent trains one on each"
    if not is_divided:
        return
    if model.get("name") not in OF_TOKENS:
        yield f"tensor_parallel={degree} divides the layers of {', '.join(OF_TOKENS)}, not of {model.get('name')}"
    wanted = {"fp8": "off", "micro_batch": "off"}
    for key, value in wanted.items():
        if trainable.get(key, value) != value:
            yield f"tensor_parallel={degree} needs trainable.{key}={value}, not {trainable[key]}"
    if model.get("lora"):
        yield f"tensor_parallel={degree} needs model.lora=null: adapters are not divided"
    optimizer = (config.get("optimizer") or {}).get("name")
    if optimizer in ("lars", "lamb"):
        yield f"tensor_parallel={degree} needs another optimizer: {optimizer} needs the norm of each whole layer"
    yield from tensor_errors(model, degree)


def _step_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each way to compute a step that excludes another one."""
    trainable, optimizer = config["trainable"], (config.get("optimizer") or {}).get("name")
    captures, scales_loss = trainable.get("cuda_graph") == "on", trainable.get("precision") == "fp16"
    for measure in _noise_measures(config):
        if captures:
            yield f"{measure} needs trainable.cuda_graph=off: the host cannot see the gradients in a graph"
        if scales_loss:
            yield f"{measure} needs another trainable.precision than fp16, whose gradients are scaled"
    if captures and optimizer == "muon":
        yield "optimizer=muon cannot be captured in a CUDA graph: set trainable.cuda_graph=off"
    elif captures and scales_loss and optimizer in set(OPTIMIZERS) - {"sgd", "adam", "adamw"}:
        yield f"trainable.cuda_graph=on with precision=fp16 needs optimizer=sgd, adam or adamw, not {optimizer}"


def _noise_measures(config: Mapping[str, Any]) -> list[str]:
    """Return the keys by which gradient noise is measured."""
    by_rule = ["lr_rule=adascale"] if "adascale" in (_axes(config).get("lr_rule") or ()) else []
    return by_rule + (["trainable.noise_scale=true"] if config["trainable"].get("noise_scale") else [])


def _without_gpu(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key that needs GPUs, if the trials run without; their device may not be known yet."""
    trainable = config["trainable"]
    if (config.get("resources") or {}).get("device") == "cpu":
        for key, values in OF_GPUS.items():
            if trainable.get(key) in values:
                yield f"trainable.{key}={trainable[key]} needs a GPU, and these trials run on CPUs"


def _name_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each section whose name is missing or unknown."""
    for section in FAMILIES:
        try:
            path_of(section, config[section]["name"])
        except (ValueError, KeyError, TypeError) as error:
            yield str(error) if isinstance(error, ValueError) else f"{section}.name is not set"


def _own_code_errors(config: Mapping[str, Any]) -> list[str]:
    """Return the errors of the user's own factories and of an `arch`, which another process finds out by imports."""
    sections = {section: config[section] for section in FAMILIES}
    own = [str(section["name"]) for section in sections.values() if ":" in str(section["name"])]
    trusted = config.get("trusted_modules") or []
    is_trusted = all(any(f"{name.partition(':')[0]}.".startswith(f"{module}.") for module in trusted) for name in own)
    is_about_to_run = config.get("mode") in ("plan", "run", "settle")
    if not (own or "arch" in config["model"]) or not is_trusted or not is_about_to_run or list(absent(config["data"])):
        return []
    # Other values of the same keys make no other errors, so that an axis does not start a process for each value; but
    # whether an arch takes the images depends on the values.
    values = [config["model"], config["data"]] if "arch" in config["model"] else []
    names = json.dumps([values, *((section["name"], sorted(section)) for section in sections.values())], default=str)
    if names not in _tried:
        _tried[names] = _errors_elsewhere(sections)
    return _tried[names]


_tried: dict[str, list[str]] = {}  # {names and keys of the sections: their errors}


def _errors_elsewhere(sections: Mapping[str, Any]) -> list[str]:
    """Return what `errors_by_import` prints in another process; empty if it ends in any other way."""
    code = "from trainables.supervised.settings import errors_by_import; errors_by_import()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    content = json.dumps(sections, default=str)
    try:
        process = subprocess.run(
            [sys.executable, "-c", code], input=content, env=environment, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return []
    # The user's code may print lines before the answer.
    lines = process.stdout.strip().splitlines()
    return list(json.loads(lines[-1])) if process.returncode == 0 and lines else []


def errors_by_import() -> None:
    """Read the four sections as JSON, import what they name, and print a list of errors as JSON."""
    print(json.dumps(list(own_factory_errors(json.load(sys.stdin)))))


def own_factory_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each factory of the user that does not take its keys, or for such a model that does not fit.

    Imports torch and the user's code.
    """
    unfit = False
    for section in FAMILIES:
        try:
            if ":" in str(config[section]["name"]):
                factory_of(section, config[section])
        except ValueError as error:
            unfit = True
            yield str(error)
    if unfit or not (":" in str(config["model"]["name"]) or "arch" in config["model"]):
        return
    from trainables.models import mismatch

    if message := mismatch(config):
        yield message


def _label_errors(model: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error if a shipped model predicts for images, pixels or tokens, and the shipped data have others."""
    name, source = str(model.get("name")), str(data.get("name"))
    if name not in MODELS or source not in DATA or name == "torchvision":
        return
    if (name in OF_TOKENS and name not in OF_IMAGES_TOO) or source in TEXTS:
        if name not in OF_TOKENS:
            yield f"model {name!r} takes images, but data {source!r} are texts: use model={' or '.join(OF_TOKENS)}"
        elif source not in TEXTS:
            yield f"model {name!r} is a language model, but data {source!r} are images: use data={' or '.join(TEXTS)}"
        return
    if data.get("dense"):
        yield f"model {name!r} predicts one label per image, but data {source!r} has one for every pixel"


def _data_errors(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors of the keys that all data sets have: `subset`, `mean` and `std`."""
    subset = data.get("subset") or {}
    if isinstance(subset, Mapping):
        set_keys = {key: value for key, value in subset.items() if value is not None}
        yield from _count_errors("data.subset", set_keys, {"train": 1, "test": 1, "seed": 0})
    elif data.get("name") not in DATA:  # the orchestrator compares shipped sections with their files
        yield f"data.subset must be {{train: …, test: …, seed: …}}, numbers of images and a seed, not {subset!r}"
    for key in ("mean", "std"):
        given = data.get(key)
        if given is not None and not (isinstance(given, list) and given and all(map(is_number, given))):
            yield f"data.{key} must be null or a list with a number for each channel, not {given!r}"
        elif key == "std" and given is not None and min(given) <= 0:
            yield f"data.std must be above 0 for each channel, which it divides, not {given!r}"


def _count_errors(section: str, values: Mapping[str, Any], least: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each value that is given and is not a whole number of at least `least`."""
    for key, bound in least.items():
        if key in values and not (is_whole(values[key]) and values[key] >= bound):
            yield f"{section}.{key} must be a whole number of at least {bound}, not {values[key]!r}"
