# mypy: ignore-errors
"""The batches that this process trains on: those of loaders, or without loaders the inputs of the model."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

COMPARED_VALUES = 4096  # so many values of each tensor stand for its content
MOST_SIZES = 64  # different numbers of rows that are counted, to find the usual one


class StepData(NamedTuple):
    """The data that one step trains on, or the parts of it so far."""

    samples: int = 0
    tokens: int = 0  # 0 for other data than texts
    content: float | None = 0.0  # the sum of its first values; None if it is unknown, or not compared
    is_held_out: bool = False  # whether an evaluation has it
    begun_s: float | None = None  # when its loader started, if that was after the last step

    def plus(self, samples, tokens, values, *, is_compared):
        """Return the batch with another part, which has these values."""
        content = content_of(values) if is_compared and self.content is not None else None
        content = None if content is None else self.content + content
        # `_replace` takes several times as long.
        return StepData(self.samples + samples, self.tokens + tokens, content, self.is_held_out, self.begun_s)


NO_BATCH = StepData(content=None)


class Batches:
    """The batches since the last step, and those that the next step trains on."""

    def __init__(self):
        self.iterator = None  # the number of the iterator that the training goes through; None without loaders
        self._iterators = 0  # iterators of loaders so far
        self._begun_s = {}  # when iterators began to give batches, by number
        self._waiting = {}  # what each iterator has given since the last step, by number; the latest comes last
        self._inputs = StepData()  # the inputs of the model since the last step
        self._steps_of_size = {}  # how many steps had so many rows of inputs
        self._steps_without_inputs = 0  # the first steps, before the model was known

    def has_one(self):
        """Return whether a batch to train on waits."""
        return any(not batch.is_held_out for batch in self._waiting.values())

    def begin(self, iterator, paused_s):
        """Number the iterator of a loader that starts; `paused_s` is when the last evaluation began."""
        # The id of an iterator that has gone may be given again.
        self._iterators += 1
        iterator.sweep_number = self._iterators
        self._begun_s = {number: begun_s for number, begun_s in self._begun_s.items() if begun_s > paused_s}
        self._begun_s[self._iterators] = time.perf_counter()

    def add(self, iterator, values, indices, counts, *, is_held_out):
        """Add a batch that a loader gives, from so many `indices`."""
        number = iterator.sweep_number
        before = self._waiting.pop(number, None) or StepData(is_held_out=is_held_out, begun_s=self._begun_s.get(number))
        # A batch may have other rows than samples: two for a pair, one for several that are packed.
        rows, tokens = size_of(values)
        self._waiting[number] = batch = before.plus(indices or rows, tokens, values, is_compared=counts.is_compared)
        if indices and not batch.is_held_out and not counts.dataset:
            counts.dataset = length_of(iterator)

    def add_inputs(self, inputs, named, counts):
        """Add the inputs of a model that is trained without a loader of PyTorch."""
        rows, tokens = size_of(inputs)
        if not rows:
            rows, tokens = size_of(named)
        values = [*inputs, *named.values()]
        self._inputs = self._inputs.plus(rows, tokens, values, is_compared=counts.is_compared)

    def hold_out_last(self):
        """Note that the latest batch is that of an evaluation."""
        for number in list(self._waiting)[-1:]:
            self._waiting[number] = self._waiting[number]._replace(is_held_out=True)

    def drop(self):
        """Forget the batches since the last step."""
        self._waiting.clear()

    def take(self, counts):
        """Return what a step trains on. With another iterator, an epoch of these counts begins."""
        numbers = [number for number, batch in self._waiting.items() if not batch.is_held_out]
        if not numbers and not self._inputs.samples:
            numbers = list(self._waiting)
        number = numbers[-1] if numbers else None
        if number is not None and number != self.iterator:
            self.iterator = number
            counts.begin_epoch(counts.epoch + 1)
        batch = self._waiting.get(number)
        self.drop()
        if self.iterator is None:
            return self._take_inputs(counts)
        return batch or NO_BATCH

    def _take_inputs(self, counts):
        """Return the inputs of the model as what a step trains on."""
        batch, self._inputs = self._inputs, StepData()
        sizes, rows = self._steps_of_size, batch.samples
        # More rows than usual are those of an evaluation with gradients.
        if len(sizes) < MOST_SIZES or rows in sizes:
            sizes[rows] = sizes.get(rows, 0) + (rows > 0)
        usual = max(sizes, key=sizes.get)
        if rows > usual > 0:
            batch = batch._replace(samples=usual, tokens=0)
        counts.is_input |= rows > 0
        if not counts.is_input:
            self._steps_without_inputs += 1
        elif rows:
            # The first steps come before the model is known, and are as large as the next one.
            steps, self._steps_without_inputs = 1 + self._steps_without_inputs, 0
            batch = batch._replace(samples=steps * batch.samples, tokens=steps * batch.tokens)
        return batch


def length_of(iterator):
    """Return the samples of the data set of a loader's iterator; 0 if it is not known."""
    try:
        return len(iterator._dataset)
    except Exception:  # a stream has no length
        return 0


def size_of(batch):
    """Return the samples of a batch, from its first tensor, and its tokens, if it has `input_ids`."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        ids, mask = (batch[name] if name in batch else None for name in ("input_ids", "attention_mask"))
        if hasattr(ids, "shape") and len(ids.shape):
            on_host = hasattr(mask, "shape") and getattr(getattr(mask, "device", None), "type", "") == "cpu"
            return int(ids.shape[0]), int(mask.sum()) if on_host else math.prod(ids.shape)
        batch = [batch[key] for key in batch.keys()]
    if hasattr(batch, "shape"):
        return (int(batch.shape[0]), 0) if len(batch.shape) else (0, 0)
    if isinstance(batch, (list, tuple)):
        for part in batch:
            samples, tokens = size_of(part)
            if samples:
                return samples, tokens
    return 0, 0


def content_of(batch):
    """Return the sum of the first values of each tensor of a batch; None if it has no tensors."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        batch = [batch[key] for key in batch.keys()]
    if isinstance(batch, (list, tuple)):
        sums = [content for content in map(content_of, batch) if content is not None]
        return sum(sums) if sums else None
    try:
        return float(batch.reshape(-1)[:COMPARED_VALUES].double().sum())
    except Exception:  # no tensor, or one of an unusual kind
        return None
