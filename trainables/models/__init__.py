"""Models by name: functions of the images' shape, the number of classes and further config keys.

A model's repeated blocks, such as a transformer's layers, are compiled and recomputed one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from trainables import data
from trainables.component_registry import accepted, factory_of
from trainables.context import RequestError
from trainables.models.batch_norm import convert_batch_norm
from trainables.tokens import Corpus
from trainables.torch_private import recomputed


def build(
    config: Mapping[str, Any], *, input_shape: tuple[int, ...], num_classes: int, device: str | None = None
) -> nn.Module:
    """Build the model `config["name"]` for images of `input_shape` (C, H, W) or sequences (T), in float32.

    Classifiers map N×C×H×W to logits N×num_classes; `unet` maps it to logits N×num_classes×H×W; language models map
    tokens N×T to logits N×T×vocabulary. A name of the form
    `package.module:factory` calls the user's factory with those of `input_shape` and `num_classes` that it takes, and
    the config's other keys; see `_made` for one with `**kwargs`. A model of `transformers` gives its logits.
    `config["batch_norm"]` (`replica`, `sync`, `ghost:SIZE`) sets the samples of batch norm. `gpt` and `llama` draw
    their weights on `device`, which is faster on a GPU by seconds.

    Raises ValueError, in one line, for unknown names and keys, and for a model that does not take such images.
    """
    factory, options = factory_of("model", config)
    of_data = {"input_shape": input_shape, "num_classes": num_classes}
    with torch.device(device) if device and config["name"] in ("gpt", "llama") else nullcontext():
        module = _made(factory, of_data, options)
    if not isinstance(module, nn.Module):
        made = f"model {config['name']!r} made something of type {type(module).__name__}"
        raise RequestError(f"{made}, not a torch.nn.Module")
    # The mark of a model of transformers, which need not be installed.
    if hasattr(module, "main_input_name"):
        module = LogitsModel(module)
    return convert_batch_norm(module, config.get("batch_norm", "replica"))


class LogitsModel(nn.Module):
    """A model of the `transformers` package as a function of its main input that returns the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits for images N×C×H×W or tokens N×T."""
        logits: Tensor = self.model(**{str(self.model.main_input_name): inputs}).logits
        return logits


_REFUSED = re.compile(r"unexpected keyword argument '(\w+)'")


def _made(factory: Callable[..., Any], of_data: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call a factory with the options and what it takes of the data.

    A factory with `**kwargs`, such as timm's create_model, is also offered timm's `in_chans` and `img_size`. What it
    refuses by a TypeError is left out.
    """
    given = accepted(factory, of_data)
    if len(of_data["input_shape"]) == 3:
        channels, *sides = of_data["input_shape"]
        given |= accepted(factory, {"in_chans": channels, "img_size": tuple(sides)}, named=False)
    given = {key: value for key, value in given.items() if key not in options}
    while True:
        try:
            return factory(**given, **options)
        except TypeError as error:
            # Factories pass **kwargs on, so that what they accept shows only when they are called.
            refused = _REFUSED.search(str(error))
            if refused is None or given.pop(refused[1], None) is None:
                raise


def repeated_blocks(model: nn.Module, *, wanted_for: str) -> nn.ModuleList:
    """Return the torch.nn.ModuleList with the most parameters. Raises RequestError if there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(parameter.numel() for parameter in blocks.parameters()) for blocks in lists]
    if not any(sizes):
        raise RequestError(f"{wanted_for} needs a model that holds its blocks in a torch.nn.ModuleList")
    # The largest list has the layers; others hold heads or stages.
    return lists[sizes.index(max(sizes))]


def tensor_plan(model: nn.Module) -> dict[str, str]:
    """Return how tensor parallelism divides a model's layers: `colwise` or `rowwise` for each name.

    A `colwise` layer has a part of the outputs on each rank, and the `rowwise` layer after it adds up the parts. The
    plan is the model's `tensor_plan`, or that of `transformers` for the blocks. Raises RequestError if there is none.
    """
    patterns: dict[str, str] = getattr(model, "tensor_plan", {})
    described = type(model).__name__
    if isinstance(model, LogitsModel):
        described = type(model.model).__name__
        own = getattr(model.model, "tp_plan", None) or {}
        patterns = {f"model.{pattern}": kind for pattern, kind in own.items() if "layers." in pattern}
    if not patterns or {*patterns.values()} - {"colwise", "rowwise"}:
        raise RequestError(f"tensor_parallel needs a plan of colwise and rowwise layers, and {described} has none")
    return {
        name: kind
        for name, module in model.named_modules()
        for pattern, kind in patterns.items()
        if isinstance(module, nn.Linear) and fnmatch(name, pattern)
    }


def recompute_blocks(model: nn.Module, kind: str) -> None:
    """Make each block keep only its input for the backward pass (`full`), which computes the rest again.

    `selective` also keeps the results of attention and of every second matrix product. Chen et al. 2016, "Training deep
    nets with sublinear memory cost". Names of parameters in a state dict stay.
    """
    blocks = repeated_blocks(model, wanted_for=f"trainable.activation_checkpointing={kind}")
    for index, block in enumerate(blocks):
        blocks[index] = recomputed(block, _selected if kind == "selective" else None)


def _selected() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return the contexts of a block's forward pass, which keeps some results, and of its second computation."""
    products = {False: 0, True: 0}

    def policy(context: SelectiveCheckpointContext, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operation in _PRODUCTS:
            # Counted apart, so that both computations of a block take the same decision for each product.
            products[context.is_recompute] += 1
            is_kept = products[context.is_recompute] % 2 == 1
        else:
            is_kept = operation in _ATTENTION
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-any-return]


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)


FP8_CAPABILITY = (8, 9)  # the first compute capability that multiplies float8


def convert_to_float8(model: nn.Module, recipe: str, device: str) -> None:
    """Make the matrix products of each block multiply float8, scaled by tensor (`tensorwise`) or by row (`rowwise`).

    Weights, gradients and the sums of products keep their formats. Raises RequestError without torchao, and for a
    device that cannot multiply float8.
    """
    on_gpu = torch.device(device).type == "cuda"
    if not on_gpu or torch.cuda.get_device_capability() < FP8_CAPABILITY:
        name = torch.cuda.get_device_name() if on_gpu else "a CPU"
        raise RequestError(f"trainable.fp8={recipe} needs a GPU of compute capability 8.9 or more, not {name}")
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise RequestError(
            f"trainable.fp8={recipe} needs a further package: pip install 'sweep-orchestrator[fp8]'"
        ) from error

    def fits(module: nn.Module, name: str) -> bool:  # kernels multiply tiles of 16
        return isinstance(module, nn.Linear) and not any(side % 16 for side in module.weight.shape)

    for block in repeated_blocks(model, wanted_for=f"trainable.fp8={recipe}"):
        convert_to_float8_training(block, module_filter_fn=fits, config=Float8LinearConfig.from_recipe_name(recipe))


def mismatch(config: Mapping[str, Any]) -> str:
    """Return why the config's model cannot train on its data, by the shapes of two samples; empty if it can.

    Nothing is computed: the model is built on the meta device. Also empty if it cannot be built there.
    """
    name, loaded = config["model"]["name"], data.load(config["data"], device="cpu")
    if isinstance(loaded, Corpus):
        shape: tuple[int, ...] = (int(loaded.sequence_length or config["model"].get("sequence_length") or 16),)
        classes = int(config["model"].get("vocabulary") or loaded.vocabulary)
        of_targets: tuple[int, ...] = (2, *shape)
        given, samples = "tokens N×T", torch.zeros(2, *shape, dtype=torch.long, device="meta")
    else:
        shape, classes = loaded.input_shape, loaded.num_classes
        of_targets = (2, *loaded.train_y.shape[1:])
        given, samples = "images N×C×H×W", torch.empty(2, *shape, device="meta")
    about = f"model {name!r} does not fit the data's {given} = {'×'.join(map(str, (2, *shape)))}"
    try:
        # Without memory: a model of 70 GB would not fit the machine that checks.
        with torch.device("meta"):
            model = build(config["model"], input_shape=shape, num_classes=classes)
    except RequestError as error:
        return str(error)
    except Exception:  # code that needs numbers cannot be built without them; the trial will report it
        return ""
    try:
        with torch.no_grad():
            logits = model.eval()(samples)
    except NotImplementedError:
        return ""
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        return "" if "meta" in reason else f"{about}: {type(error).__name__}: {reason}"
    message = why_unfit(logits, of_targets, classes, of_tokens=isinstance(loaded, Corpus))
    return f"{about}: {message}" if message else ""


def why_unfit(outputs: object, of_targets: Sequence[int], num_classes: int, *, of_tokens: bool) -> str:
    """Return why a model's outputs are not logits for targets of this shape; empty if they are, also of more classes.

    Logits are N×classes(×H×W), or for sequences N×T×classes.
    """
    if not isinstance(outputs, Tensor):
        return f"the model returns a {type(outputs).__name__}, not a tensor of logits"
    axis = len(of_targets) if of_tokens else 1
    wanted = [*of_targets[:axis], num_classes, *of_targets[axis:]]
    shape = list(outputs.shape)
    is_alike = len(shape) == len(wanted) and [*shape[:axis], *shape[axis + 1 :]] == list(of_targets)
    if is_alike and shape[axis] >= num_classes:
        return ""
    if is_alike and of_tokens:
        return f"the data have tokens up to {num_classes - 1}, but the model's vocabulary has {shape[axis]}"
    needed, returned = ("×".join(map(str, sides)) or "a single number" for sides in (wanted, shape))
    return f"logits of {needed} are needed, and the model returns {returned}"
