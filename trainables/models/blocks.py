"""The repeated blocks of a model, such as a transformer's layers: what is compiled and recomputed one at a time."""

from __future__ import annotations

from torch import nn

from trainables.context import RequestError
from trainables.torch_private import recomputed


def repeated_blocks(model: nn.Module, *, wanted_for: str) -> nn.ModuleList:
    """Return the torch.nn.ModuleList with the most parameters. Raises RequestError if there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in lists]
    if not any(sizes):
        raise RequestError(f"{wanted_for} needs a model that holds its blocks in a torch.nn.ModuleList")
    return lists[sizes.index(max(sizes))]


def recompute_blocks(model: nn.Module) -> None:
    """Make each block keep only its input for the backward pass, which computes the rest again.

    Chen et al. 2016, "Training deep nets with sublinear memory cost". Names of parameters in a state dict stay.
    """
    blocks = repeated_blocks(model, wanted_for="trainable.activation_checkpointing=full")
    for index, block in enumerate(blocks):
        blocks[index] = recomputed(block)
