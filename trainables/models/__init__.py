"""Models by name: functions of the images' shape, the number of classes and further config keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from trainables.context import RequestError
from trainables.models.batch_norm import convert_batch_norm
from trainables.registry import MODELS, check_keys, choose, taken


def build(config: Mapping[str, Any], *, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Build the model `config["name"]` for images of `input_shape` (C, H, W) or sequences (T), in float32.

    Classifiers map N×C×H×W to logits N×num_classes; `unet` maps it to logits N×num_classes×H×W; language models map
    tokens N×T to logits N×T×vocabulary. A name of the form
    `package.module:factory` calls the user's factory with those of `input_shape` and `num_classes` that it takes, and
    the config's other keys. `config["batch_norm"]` (`replica`, `sync`, `ghost:SIZE`) sets the samples of batch norm.

    Raises ValueError, in one line, for unknown names and keys, and for a model that does not take such images.
    """
    options = {key: value for key, value in config.items() if key not in ("name", "batch_norm")}
    subject = f"model {config['name']!r}"
    factory = choose(MODELS, config["name"], subject="model")
    of_data = {"input_shape": input_shape, "num_classes": num_classes}
    check_keys(factory, options, subject=subject, given=tuple(of_data))
    module = factory(**taken(factory, of_data), **options)
    if not isinstance(module, nn.Module):
        raise RequestError(f"{subject} made something of type {type(module).__name__}, not a torch.nn.Module")
    return convert_batch_norm(module, config.get("batch_norm", "replica"))
