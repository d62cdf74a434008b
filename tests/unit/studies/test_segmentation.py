import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trainables.data import DataError, load

FOLDER = "studies.segmentation:SegmentationFolder"
RANDOM = np.random.default_rng(0)


def images(*shape):
    return RANDOM.integers(256, size=shape, dtype=np.uint8)


def half(content):
    return content[: len(content) // 2]


def save_pairs(root, mode="L", size=(8, 6)):
    """Save three training pairs and a validation pair, width × height, masks with instances 0, 1, 2."""
    for split, count in (("train", 3), ("val", 1)):
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            Image.fromarray(images(size[1], size[0], 3)).convert(mode).save(root / split / "images" / f"{index}.png")
            mask = np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[::-1]) % 3
            Image.fromarray(mask).save(root / split / "masks" / f"{index}.png")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 3)])
def test_segmentation_folder_is_read(tmp_path, mode, channels):
    save_pairs(tmp_path, mode)
    dataset = load({"name": FOLDER, "root": str(tmp_path)})
    assert dataset.input_shape == (channels, 6, 8)
    assert (len(dataset.train_x), len(dataset.test_x), dataset.num_classes) == (3, 1, 2)
    assert torch.equal(dataset.train_y[2], (torch.arange(48).reshape(6, 8) % 3 > 0).long())
    with Image.open(tmp_path / "train" / "images" / "1.png") as image:
        expected = np.atleast_3d(np.asarray(image.convert("RGB" if channels == 3 else "L")))
    assert np.array_equal(dataset.train_x[1].permute(1, 2, 0).numpy(), expected)


def test_malformed_segmentation_folder_is_refused(tmp_path):
    config = {"name": FOLDER, "root": str(tmp_path)}
    with pytest.raises(DataError, match=r"/train/images: data\.root"):
        load(config)
    save_pairs(tmp_path)
    image, mask = (tmp_path / "train" / kind / "2.png" for kind in ("images", "masks"))

    Image.fromarray(images(6, 7)).save(image)
    with pytest.raises(DataError, match=r"0\.png is 6×8×1, /.*2\.png is 6×7×1"):
        load(config)
    Image.fromarray(images(6, 8)).save(image)
    Image.fromarray(images(6, 8, 3)).save(mask)
    with pytest.raises(DataError, match=r"masks/2\.png .*3 channels"):
        load(config)
    Image.fromarray(images(5, 8)).save(mask)
    with pytest.raises(DataError, match=r"masks/2\.png is 5×8"):
        load(config)
    mask.unlink()
    with pytest.raises(DataError, match=r"^data .*: 1 images in /.*/train .*2\.png"):
        load(config)
    image.write_bytes(half((tmp_path / "train" / "images" / "1.png").read_bytes()))
    mask.write_bytes((tmp_path / "train" / "masks" / "1.png").read_bytes())
    with pytest.raises(DataError, match=r"images/2\.png cannot be read"):
        load(config)


REAL = os.environ.get("SWEEP_TEST_DATA")


@pytest.mark.skipif(REAL is None, reason="needs SWEEP_TEST_DATA")
def test_nuclei_have_known_counts_and_shape():
    nuclei = load({"name": FOLDER, "root": str(Path(str(REAL)) / "dsb2018_256")})
    assert (len(nuclei.train_x), len(nuclei.test_x), nuclei.input_shape) == (270, 64, (1, 256, 256))
