"""Exact scores on a fixed set, by all ranks together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainables.inputs.inputs import Form, as_pixels
from trainables.inputs.split import Part
from trainables.outcome import Ending
from trainables.process_group import Gang
from trainables.step.objective import correct_sum, loss_sum
from trainables.step.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over all samples of a set."""

    accuracy: float
    loss: float


class Evaluation:
    """A set of which each rank holds its own slice, so that every sample counts exactly once."""

    def __init__(
        self,
        part: Part,
        *,
        gang: Gang,
        form: Form,
        precision: Precision,
        batch_size: int,
        shrinks: bool = False,
        mirrored: bool = False,
    ) -> None:
        """The part may be on any device; the rank's slice moves to its own.

        `shrinks`: what does not fit into memory is taken in batches half as large, on which no figure depends.
        `mirrored`: an image is judged by the mean outputs of itself and its mirror image.
        """
        mine = gang.share_of(len(part))
        self._pixels = as_pixels(part.images[mine], form.device)
        self._targets = part.targets[mine].to(form.device)
        self._count = len(part)
        self._gang, self._form, self._precision = gang, form, precision
        self._batch_size = max(1, min(batch_size, len(self._targets)))  # no more than what there is to halve
        self._shrinks, self._mirrored = shrinks, mirrored

    def score(self, model: nn.Module) -> Score:
        """Evaluate this module, not its wrapper, which may be compiled for other shapes; leaves it in training mode."""
        model.eval()
        while (sums := self._sums(model)) is None:
            self._batch_size //= 2
            if self._form.device != "cpu":
                torch.cuda.empty_cache()
        model.train()
        correct, loss = self._gang.sum(sums).tolist()
        return Score(accuracy=correct / self._count, loss=loss / self._count)

    def _sums(self, model: nn.Module) -> Tensor | None:
        """Of what is right, and of the losses, on the rank's slice; None where a smaller batch is to be tried."""
        sums = torch.zeros(2, dtype=torch.float64, device=self._form.device)
        try:
            self._add_up(model, sums)
        except (RuntimeError, MemoryError) as error:
            if not self._shrinks or self._batch_size == 1 or Ending.of(error).status != "oom":
                raise
            return None
        return sums

    def _add_up(self, model: nn.Module, sums: Tensor) -> None:
        with torch.inference_mode(), self._precision.casting(self._form.device):
            for pixels, targets in zip(
                self._pixels.split(self._batch_size), self._targets.split(self._batch_size), strict=True
            ):
                outputs = self._outputs(model, self._form.normalise(pixels))
                sums += torch.stack([correct_sum(outputs, targets), loss_sum(outputs, targets).double()])

    def _outputs(self, model: nn.Module, images: Tensor) -> Tensor:
        outputs: Tensor = model(images)
        if self._mirrored:
            outputs = (outputs + _mirrored(model(_mirrored(images)))) / 2
        return outputs


def _mirrored(values: Tensor) -> Tensor:
    """Images and segmentations left to right; logits of whole images as they are."""
    return values.flip(-1) if values.ndim == 4 else values
