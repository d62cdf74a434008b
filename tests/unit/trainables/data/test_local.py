import os
from pathlib import Path

import numpy as np
import pytest
import torch

from trainables.data import DataError, load

RANDOM = np.random.default_rng(0)


def images(*shape):
    return RANDOM.integers(256, size=shape, dtype=np.uint8)


def arrays(**changes):
    given = {
        "x_train": images(6, 4, 5, 3),
        "y_train": np.arange(6) % 3,
        "x_test": images(3, 4, 5, 3),
        "y_test": np.arange(3),
    }
    return {key: value for key, value in (given | changes).items() if value is not None}


def test_npz_of_colour_images_is_read(tmp_path):
    stored = arrays(y_train=(np.arange(6, dtype=np.uint8) % 3)[:, None])
    np.savez(tmp_path / "set.npz", **stored)
    dataset = load({"name": "npz", "path": str(tmp_path / "set.npz")})
    assert dataset.num_classes == 3
    assert torch.equal(dataset.train_x, torch.from_numpy(stored["x_train"].transpose(0, 3, 1, 2).copy()))
    assert dataset.train_x.is_contiguous()
    assert dataset.train_y.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.version.startswith("npz-")


def test_npz_of_grey_images_is_read(tmp_path):
    stored = arrays(x_train=images(6, 4, 5), x_test=images(3, 4, 5))
    np.savez_compressed(tmp_path / "set.npz", **stored)
    dataset = load({"name": "npz", "path": str(tmp_path / "set.npz"), "num_classes": 7})
    assert dataset.num_classes == 7
    assert torch.equal(dataset.test_x[:, 0], torch.from_numpy(stored["x_test"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, r"set\.npz .*x_test"),
        ({"x_train": np.zeros((6, 4, 5, 3))}, r"x_train is float64"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, r"y_test is float64"),
        ({"y_train": np.arange(5)}, r"\(5,\).*\(6, 3, 4, 5\)"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, r"-1 to 2"),
        ({"x_train": images(6, 4)}, r"images have shape \(6, 4\)"),
        ({"x_test": images(3, 4, 4, 3)}, r"3×4×5 and 3×4×4"),
        ({"y_test": np.array([{}, 1, 2], dtype=object)}, r"set\.npz .*Object arrays"),
    ],
)
def test_malformed_npz_is_refused(tmp_path, changes, message):
    np.savez(tmp_path / "set.npz", **arrays(**changes))
    with pytest.raises(DataError, match=message) as caught:
        load({"name": "npz", "path": str(tmp_path / "set.npz")})
    assert "\n" not in str(caught.value)


def test_npz_with_too_many_classes_is_refused(tmp_path):
    np.savez(tmp_path / "set.npz", **arrays())
    with pytest.raises(DataError, match="0 to 2, .*0 to 1"):
        load({"name": "npz", "path": str(tmp_path / "set.npz"), "num_classes": 2})


def cut(content):
    return content[: len(content) // 2]


def flip_a_bit(content):
    middle = len(content) // 3
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flip_a_bit, lambda content: b"", lambda content: b"no archive"])
def test_corrupt_or_missing_npz_is_refused(tmp_path, damage):
    path = tmp_path / "set.npz"
    with pytest.raises(DataError, match=r"/set\.npz: .*data\.path.*x_train, "):
        load({"name": "npz", "path": str(path)})
    np.savez(path, **arrays())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"set\.npz cannot be read") as caught:
        load({"name": "npz", "path": str(path)})
    assert "\n" not in str(caught.value)


REAL = os.environ.get("SWEEP_TEST_DATA")


@pytest.mark.skipif(REAL is None, reason="needs SWEEP_TEST_DATA")
@pytest.mark.parametrize(
    ("config", "counts", "input_shape", "mean"),
    [
        ({"name": "mnist", "root": "mnist"}, (60_000, 10_000), (1, 28, 28), 0.1307),
        ({"name": "fashion_mnist", "root": "fashion_mnist"}, (60_000, 10_000), (1, 28, 28), 0.2860),
        ({"name": "npz", "path": "cifar10.npz"}, (50_000, 10_000), (3, 32, 32), 0.491),
    ],
)
def test_real_data_have_known_counts_and_shape(config, counts, input_shape, mean):
    located = {key: value if key == "name" else str(Path(str(REAL)) / value) for key, value in config.items()}
    dataset = load(located)
    assert (len(dataset.train_x), len(dataset.test_x)) == counts
    assert dataset.input_shape == input_shape
    assert mean is None or dataset.mean[0] == pytest.approx(mean, abs=1e-3)
