"""Causal language models and image classifiers of the `transformers` package, and LoRA of the `peft` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sweeps.errors import nearest
from trainables.context import RequestError
from trainables.tokens import transformers_config


def from_transformers(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    path: str,
    pretrained: bool = True,
    config: Mapping[str, Any] | None = None,
    sequence_length: int | None = None,
    lora: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build the model in a local folder with config.json, with its weights if `pretrained`.

    It is an image classifier for an `input_shape` of C, H, W, with a new head if its classes are others than the
    data's; else a causal language model.

    `config` replaces values of config.json. `lora` has the keys of peft's LoraConfig (r, lora_alpha, target_modules):
    then only the adapters are trained. Nothing is downloaded, and no code of the folder runs. Raises RequestError for a
    missing package or folder, for a `config` with other keys, and for a `sequence_length` beyond the model's.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification
    except ImportError as error:
        raise RequestError("model=hf needs a further package: pip install 'sweep-orchestrator[hf]'") from error
    transformers_config({"path": path, "config": config})
    folder = Path(path).expanduser()
    # Both may come from a stranger. transformers asks at the terminal unless it is told not to trust code.
    local = {"local_files_only": True, "trust_remote_code": False}
    known = AutoConfig.from_pretrained(folder, **local).to_dict()
    # Any other key would be an argument of transformers, such as trust_remote_code.
    if wrong := [key for key in config or {} if key not in known and key != "attn_implementation"]:
        raise RequestError(
            f"model.config has no key {wrong[0]!r}{nearest(wrong[0], known)}: it has those of config.json"
        )
    of_images = len(input_shape) == 3
    options: dict[str, Any] = {"use_cache": False}
    if of_images:
        options = {"num_labels": num_classes, "num_channels": input_shape[0], "image_size": input_shape[1]}
    options |= config or {}
    read = AutoConfig.from_pretrained(folder, **local, **options)
    family = AutoModelForImageClassification if of_images else AutoModelForCausalLM
    longest = getattr(read, "max_position_embeddings", None)
    if longest is not None and sequence_length is not None and sequence_length > longest:
        raise RequestError(f"model.sequence_length={sequence_length} is beyond the {longest} positions of {path}")
    if pretrained:
        options = {"ignore_mismatched_sizes": True} if of_images else {}
        model: nn.Module = family.from_pretrained(folder, config=read, dtype="float32", **local, **options)
    else:
        model = family.from_config(read, dtype="float32", trust_remote_code=False)
    return (_with_lora(model, {} if of_images else {"task_type": "CAUSAL_LM"}, lora) if lora else model).train()


def _with_lora(model: nn.Module, kind: Mapping[str, str], options: Mapping[str, Any]) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise RequestError("model.lora needs a further package: pip install peft") from error
    # peft would import the module that megatron_core names.
    if wrong := [key for key in options if key.startswith("megatron")]:
        raise RequestError(f"model.lora.{wrong[0]} is not supported")
    adapted: nn.Module = get_peft_model(model, LoraConfig(**kind, **options))
    return adapted
