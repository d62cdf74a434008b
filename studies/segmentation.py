"""Images with masks in folders, such as the nuclei on which the U-Net of the published experiments trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from trainables.data.dataset import DataError, Samples

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}
"""{Pillow's pixel format: the format to decode to}: grey or RGB, 8 bits per channel."""


@dataclass(frozen=True, kw_only=True)
class SegmentationFolder:
    """`root/{train,val}/{images,masks}/NAME.png`, all of one size; a mask above 0 is foreground, class 1 of 2.

    `val` is the test set: a validation split is held out from `train`, as for all data.
    """

    root: str

    def files(self) -> Sequence[Path]:
        """Return all images and masks."""
        return [path for split in ("train", "val") for kind in self._pairs(split) for path in kind]

    def read(self, device: str) -> Samples:
        """Decode every image, grey or RGB, and every mask to class 0 or 1 per pixel."""
        splits = []
        for split in ("train", "val"):
            images, masks = self._pairs(split)
            x = _stack(images, [_image(path) for path in images])
            y = _stack(masks, [_mask(path) for path in masks])
            splits.append((x.permute(0, 3, 1, 2).contiguous(), y.to(torch.int64)))
        return Samples(*splits[0], *splits[1], 2)

    def _pairs(self, split: str) -> tuple[list[Path], list[Path]]:
        """Return images and masks with the same names, sorted by name."""
        folders = [Path(self.root).resolve() / split / kind for kind in ("images", "masks")]
        for folder in folders:
            if not folder.is_dir():
                raise DataError(f"there is no folder {folder}: data.root holds {{train,val}}/{{images,masks}}/*.png")
        images, masks = ({path.name: path for path in folder.glob("*.png")} for folder in folders)
        alone = sorted(images.keys() ^ masks.keys())
        if alone:
            raise DataError(f"{len(alone)} images in {folders[0].parent} lack a mask, or masks an image: {alone[0]}")
        if not images:
            raise DataError(f"there are no *.png in {folders[0]}")
        return [images[name] for name in sorted(images)], [masks[name] for name in sorted(images)]


def _image(path: Path) -> np.ndarray:
    """Decode an image to H×W×C, uint8."""
    image = _open(path)
    if image.mode not in MODES:
        raise DataError(f"{path} has pixels of format {image.mode}, not one of {', '.join(MODES)}")
    return np.atleast_3d(np.asarray(image.convert(MODES[image.mode])))


def _mask(path: Path) -> np.ndarray:
    """Decode a mask to H×W: 1 for values above 0."""
    pixels = np.asarray(_open(path))
    if pixels.ndim != 2:
        raise DataError(f"{path} is a mask of {pixels.shape[2]} channels, not one")
    return (pixels > 0).astype(np.uint8)


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a broken PNG
        raise DataError(f"{path} cannot be read: {error}") from error
    return image


def _stack(paths: Sequence[Path], arrays: Sequence[np.ndarray]) -> torch.Tensor:
    for path, array in zip(paths, arrays, strict=True):
        if array.shape != arrays[0].shape:
            sizes = ["×".join(map(str, shape)) for shape in (arrays[0].shape, array.shape)]
            raise DataError(f"images of mixed sizes: {paths[0]} is {sizes[0]}, {path} is {sizes[1]}")
    return torch.from_numpy(np.stack(arrays))
