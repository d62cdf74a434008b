# mypy: ignore-errors
"""The optimizers of this process: which of their steps count, and the parameters that they train."""

from __future__ import annotations

import sys
import weakref
from typing import NamedTuple

OF_SHARDS = ("placements", "_is_flat_param", "_fsdp_flattened", "ds_id", "tensor_model_parallel")
"""Attributes of parameters of which each rank has a part."""
SHARDING = ("deepspeed", "megatron", "colossalai", "fairscale", "torch.distributed.optim.zero_redundancy_optimizer")
"""Modules whose optimizers may have a part of the parameters."""


class OptimizerStep(NamedTuple):
    """A step of an optimizer that counts."""

    is_of_first: bool  # whether it is that of the training's first optimizer
    begins_training: bool  # whether it trains another model than the steps before it
    is_second: bool  # whether the step before it was the first one of the same training


class Optimizers:
    """The optimizers of this process, by their number in the order of their first steps, and those of the training."""

    def __init__(self):
        self._sizes = {}  # the number of parameters of each optimizer
        self._stepped = None  # the optimizer of the last step
        self._in_a_row = 0  # how many steps it has taken in succession
        self._leading = None  # the optimizer that counts, of those that step together
        self._counted = None  # the optimizer of the last step that counted
        self._first = None  # the first optimizer of the training
        self._members = set()  # the optimizers of the training
        self._parameters = {}  # their parameters: weak references by id

    def step(self, optimizer, *, has_batch):
        """Take a step of an optimizer; return None if it belongs to a step that is counted.

        `has_batch()` tells whether there is a batch to train on since the last step that counted.
        """
        number = self._number_of(optimizer)
        self._in_a_row = self._in_a_row + 1 if number == self._stepped else 1
        self._stepped = number
        if self._leading is None:
            self._leading = self._first = number
        # Of several optimizers that step together the first one counts. One that steps twice in a row, or on a new
        # batch, is that of another phase; without common parameters it trains another model.
        is_repeated, begins_training = self._in_a_row > 1, False
        if number != self._leading and not is_repeated and not has_batch():
            return None
        if number != self._leading and is_repeated:
            self._leading = number
            begins_training = number not in self._members and not any(map(self.has_parameter, weights_of(optimizer)))
        if begins_training:
            self._first, self._members, self._parameters = number, set(), {}
        if (is_repeated or number == self._first) and number not in self._members:
            self._members.add(number)
            self._parameters.update({id(weights): weakref.ref(weights) for weights in weights_of(optimizer)})
        is_second, self._counted = begins_training and self._counted == number, number
        return OptimizerStep(number == self._first, begins_training, is_second)

    def _number_of(self, optimizer):
        if not hasattr(optimizer, "sweep_number"):  # an id may be given again
            optimizer.sweep_number = len(self._sizes) + 1
            self._sizes[optimizer.sweep_number] = count_of(optimizer)
        return optimizer.sweep_number

    def has_parameter(self, weights):
        """Return whether an optimizer of the training has this parameter."""
        reference = self._parameters.get(id(weights))
        return reference is not None and reference() is weights

    def n_params(self):
        """Return the number of parameters that the training's optimizers have; 0 if it is unknown."""
        # Optimizers that stepped before the first one are those of an earlier training.
        sizes = [size for number, size in self._sizes.items() if number >= self._first]
        return sum(sizes) if all(sizes) else 0


def weights_of(optimizer):
    """Yield the parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def count_of(optimizer):
    """Return the number of parameters that an optimizer trains; 0 if each rank has a part of them."""
    parameters = list(weights_of(optimizer))
    # A DTensor of FSDP2 tells the size of the whole.
    has_parts = any(is_shard(weights) and not hasattr(weights, "placements") for weights in parameters)
    return 0 if has_parts else sum(weights.numel() for weights in parameters)


def is_shard(weights):
    """Return whether each rank may have a part of this parameter."""
    return any(hasattr(weights, name) for name in OF_SHARDS) or any(name in sys.modules for name in SHARDING)


def is_shared(weights):
    """Return whether processes share the memory of these weights, as in Hogwild."""
    return weights.device.type == "cpu" and weights.is_shared()


def checksum(optimizer):
    """Return the sum of the first weights, which replicas have in common; None for a shard, or for shared memory."""
    first = next(weights_of(optimizer), None)
    if first is None or is_shared(first) or is_shard(first):
        return None
    return float(first.detach().double().sum())
