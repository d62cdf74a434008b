"""Causal language models of the `transformers` package, and LoRA of the `peft` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainables.context import RequestError


class CausalModel(nn.Module):
    """A model of transformers that maps tokens N×T to logits N×T×vocabulary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each; keys and values of attention are not kept."""
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


def from_transformers(
    *,
    path: str,
    pretrained: bool = True,
    config: Mapping[str, Any] | None = None,
    sequence_length: int | None = None,
    lora: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build the causal language model in a local folder with config.json, with its weights if `pretrained`.

    `config` replaces values of config.json. `lora` has the keys of peft's LoraConfig (r, lora_alpha, target_modules):
    then only the adapters are trained. Nothing is downloaded. Raises RequestError for a missing package or folder, and
    for a `sequence_length` beyond the model's.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise RequestError("model=hf needs a further package: pip install 'sweep-orchestrator[hf]'") from error
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise RequestError(f"model.path={path}: there is no config.json in {folder.resolve()}")
    read = AutoConfig.from_pretrained(folder, local_files_only=True, **(config or {}))
    longest = getattr(read, "max_position_embeddings", None)
    if longest is not None and sequence_length is not None and sequence_length > longest:
        raise RequestError(f"model.sequence_length={sequence_length} is beyond the {longest} positions of {path}")
    if pretrained:
        model = AutoModelForCausalLM.from_pretrained(folder, config=read, local_files_only=True, dtype="float32")
    else:
        model = AutoModelForCausalLM.from_config(read, dtype="float32")
    return CausalModel(_with_lora(model, lora) if lora else model).train()


def _with_lora(model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise RequestError("model.lora needs a further package: pip install peft") from error
    adapted: nn.Module = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    return adapted
