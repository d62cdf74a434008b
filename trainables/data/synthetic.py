"""Made-up images of any shape, which can be learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from trainables.data.dataset import DataError, Samples

GRID = 4
"""Patches a side: coarse enough for a model that pools, fine enough for one that does not."""


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Noise of 0 to 127 over patches of 0 to 127, both uint8; equal seeds give equal data on the same kind of device.

    Every class has brightnesses of its own for the patches; a label is drawn, and its image shows them. `dense` is for
    segmentation: every patch has a class, which its brightness shows.
    """

    shape: Sequence[int] = (3, 32, 32)
    """Channels, height, width in pixels."""
    num_classes: int = 10
    train_size: int = 50_000
    test_size: int = 10_000
    seed: int = 0
    dense: bool = False

    def files(self) -> Sequence[Path]:
        """None."""
        return []

    def read(self, device: str) -> Samples:
        """Both splits, made on `device`."""
        if len(self.shape) != 3 or min(*self.shape, self.num_classes, self.train_size, self.test_size) < 1:
            raise DataError(f"shape {list(self.shape)}, num_classes and sizes need 3 sides, and numbers of at least 1")
        generator = torch.Generator(device).manual_seed(self.seed)
        make = self._labelled_patches if self.dense else self._labelled_images
        levels = _random(128, (self.num_classes, self.shape[0], GRID, GRID), torch.uint8, generator)
        train, test = (make(size, levels, generator) for size in (self.train_size, self.test_size))
        return Samples(*train, *test, self.num_classes)

    def _labelled_images(
        self, count: int, levels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = _random(self.num_classes, (count,), torch.int64, generator)
        return self._with_noise(self._enlarge(levels)[y], generator), y

    def _labelled_patches(
        self, count: int, levels: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        patches = _random(self.num_classes, (count, 1, GRID, GRID), torch.uint8, generator)
        y = self._enlarge(patches).to(torch.int64).squeeze(1)
        return self._with_noise(levels[:, :, 0, 0][y].permute(0, 3, 1, 2).contiguous(), generator), y

    def _enlarge(self, patches: torch.Tensor) -> torch.Tensor:
        """N×C×GRID×GRID to N×C×H×W."""
        return functional.interpolate(patches, size=tuple(self.shape[1:]), mode="nearest")

    def _with_noise(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return images.add_(_random(128, tuple(images.shape), torch.uint8, generator))


def _random(bound: int, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(bound, shape, dtype=dtype, device=generator.device, generator=generator)
