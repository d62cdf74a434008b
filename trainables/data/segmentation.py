"""A folder of images and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from trainables.data.dataset import DataError, Samples
from trainables.data_place import no_images

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}
"""What an image is decoded to, by Pillow's name of its pixel format: grey or RGB, 8 bits a channel."""


@dataclass(frozen=True, kw_only=True)
class SegmentationFolder:
    """`root/{train,val}/{images,masks}/NAME.png`, all of one size; a mask above 0 is foreground, class 1 of 2.

    `val` is the test set: a validation split is held out from `train`, as for all data.
    """

    root: str

    def files(self) -> Sequence[Path]:
        """All images and masks."""
        return [path for split in ("train", "val") for kind in self._pairs(split) for path in kind]

    def read(self, device: str) -> Samples:
        """Every image decoded, grey or RGB, and every mask as class 0 or 1 a pixel."""
        (train_x, train_y), (test_x, test_y) = (self._decode(split) for split in ("train", "val"))
        return Samples(train_x, train_y, test_x, test_y, 2)

    def _pairs(self, split: str) -> tuple[list[Path], list[Path]]:
        """Images and masks of the same names, in the order of the names."""
        folders = [Path(self.root).resolve() / split / kind for kind in ("images", "masks")]
        for folder in folders:
            if not folder.is_dir():
                raise DataError(no_images(folder))
        images, masks = ({path.name: path for path in folder.glob("*.png")} for folder in folders)
        alone = sorted(images.keys() ^ masks.keys())
        if alone:
            raise DataError(f"{len(alone)} images in {folders[0].parent} lack a mask, or masks an image: {alone[0]}")
        if not images:
            raise DataError(f"there are no *.png in {folders[0]}")
        return [images[name] for name in sorted(images)], [masks[name] for name in sorted(images)]

    def _decode(self, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        images, masks = self._pairs(split)
        x = _stack(images, [_image(path) for path in images])
        y = _stack(masks, [_mask(path) for path in masks])
        return x.permute(0, 3, 1, 2).contiguous(), y.to(torch.int64)


def _image(path: Path) -> np.ndarray:
    """H×W×C, uint8."""
    image = _open(path)
    if image.mode not in MODES:
        raise DataError(f"{path} has pixels of format {image.mode}, not one of {', '.join(MODES)}")
    return np.atleast_3d(np.asarray(image.convert(MODES[image.mode])))


def _mask(path: Path) -> np.ndarray:
    """H×W, 1 where the mask is above 0."""
    pixels = np.asarray(_open(path))
    if pixels.ndim != 2:
        raise DataError(f"{path} is a mask of {pixels.shape[2]} channels, not one")
    return (pixels > 0).astype(np.uint8)


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's word for a broken PNG is SyntaxError
        raise DataError(f"{path} cannot be read: {error}") from error
    return image


def _stack(paths: Sequence[Path], arrays: Sequence[np.ndarray]) -> torch.Tensor:
    for path, array in zip(paths, arrays, strict=True):
        if array.shape != arrays[0].shape:
            sizes = ["×".join(map(str, shape)) for shape in (arrays[0].shape, array.shape)]
            raise DataError(f"images of mixed sizes: {paths[0]} is {sizes[0]}, {path} is {sizes[1]}")
    return torch.from_numpy(np.stack(arrays))
