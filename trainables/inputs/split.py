"""Which images are trained on, which choose, and which only report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainables.data import Dataset
from trainables.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Part:
    """Images uint8 N×C×H×W and their targets."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Disjoint parts of a data set."""

    train: Part
    validation: Part
    test: Part

    @staticmethod
    def of(data: Dataset, *, val_fraction: float, seed: int) -> Split:
        """Hold that share of the training set out, drawn by the seed; the test set is the data's own."""
        count = len(data.train_x)
        order = torch.randperm(count, generator=generator(seed, "validation")).to(data.train_x.device)
        held, kept = order.tensor_split([round(count * val_fraction)])
        return Split(
            train=Part(images=data.train_x[kept], targets=data.train_y[kept]),
            validation=Part(images=data.train_x[held], targets=data.train_y[held]),
            test=Part(images=data.test_x, targets=data.test_y),
        )
