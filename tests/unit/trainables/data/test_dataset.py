import dataclasses
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from trainables.data import DataError, Dataset, load
from trainables.data.dataset import channel_statistics
from trainables.models import build


def dataset(**changes):
    """Return two training images and a test image of 1×2×3 pixels and two classes, with changes."""
    given: dict[str, Any] = {
        "train_x": torch.zeros(2, 1, 2, 3, dtype=torch.uint8),
        "train_y": torch.tensor([0, 1]),
        "test_x": torch.zeros(1, 1, 2, 3, dtype=torch.uint8),
        "test_y": torch.tensor([1]),
        "num_classes": 2,
        "mean": (0.5,),
        "std": (0.5,),
        "version": "1",
    }
    return Dataset(**given | changes)


def test_a_dataset_has_a_shape_and_is_frozen():
    assert dataset().input_shape == (1, 2, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset().version = "2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_x": torch.zeros(2, 1, 2, 3)}, r"training images are torch\.float32"),
        ({"test_x": torch.zeros(1, 2, 3, dtype=torch.uint8)}, r"test images .*\(1, 2, 3\)"),
        ({"train_y": torch.tensor([0, 1], dtype=torch.int32)}, r"training labels are torch\.int32"),
        ({"train_y": torch.tensor([0, 1, 1])}, r"training labels .*\(3,\).*\(2, "),
        ({"train_y": torch.tensor([0, 2])}, r"training labels .*0 to 2"),
        ({"test_y": torch.tensor([-1])}, r"test labels .*-1 to -1"),
        ({"test_x": torch.zeros(1, 1, 3, 3, dtype=torch.uint8)}, r"1×2×3 and 1×3×3"),
        (
            {"test_x": torch.zeros(0, 1, 2, 3, dtype=torch.uint8), "test_y": torch.zeros(0, dtype=torch.int64)},
            r"there are no test images",
        ),
        ({"mean": (0.5, 0.5)}, r"mean and std .*1 channels"),
        ({"std": (0.0,)}, r"std above 0"),
    ],
)
def test_inconsistent_data_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        dataset(**changes)


@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 3))
def test_channel_statistics_are_exact(seed, channels):
    images = torch.randint(256, (5, channels, 3, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    mean, std = channel_statistics(images)
    scaled = images.double() / 255
    assert mean == pytest.approx(scaled.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist(), abs=1e-12)


def test_a_constant_channel_has_deviation_1():
    assert channel_statistics(torch.full((2, 1, 2, 2), 51, dtype=torch.uint8)) == ((pytest.approx(0.2),), (1.0,))


def test_digits_equal_those_of_scikit_learn():
    from sklearn.datasets import load_digits  # slow to import

    digits = load({"name": "digits"})
    images, labels = load_digits(return_X_y=True)
    expected = {
        (tuple((image * 255 / 16).round().astype(int)), label) for image, label in zip(images, labels, strict=True)
    }
    parts = [(digits.train_x, digits.train_y), (digits.test_x, digits.test_y)]
    samples = [{(tuple(x.flatten().tolist()), int(y)) for x, y in zip(*part, strict=True)} for part in parts]
    assert samples[0] | samples[1] == expected
    assert not samples[0] & samples[1]
    assert (len(digits.train_x), len(digits.test_x), digits.num_classes) == (1437, 360, 10)
    counts = torch.bincount(digits.test_y) / torch.bincount(torch.cat([digits.train_y, digits.test_y]))
    assert counts == pytest.approx([0.2] * 10, abs=0.005)


@pytest.fixture
def one_thread():
    """More would wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_small_cnn_learns_the_digits():
    digits = load({"name": "digits"})
    train_x, test_x = ((x / 255 - digits.mean[0]) / digits.std[0] for x in (digits.train_x, digits.test_x))
    torch.manual_seed(0)
    module = build({"name": "small_cnn"}, input_shape=digits.input_shape, num_classes=10)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(8):
        for index in torch.randperm(len(train_x)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(module(train_x[index]), digits.train_y[index]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (module(test_x).argmax(1) == digits.test_y).double().mean()
    assert accuracy >= 0.97


def test_subsets_of_one_seed_are_nested():
    small, large, other = (
        load({"name": "digits", "subset": {"train": count, "seed": seed}})
        for count, seed in ((10, 3), (50, 3), (50, 4))
    )
    assert torch.equal(small.train_x, large.train_x[:10])
    assert torch.equal(small.train_y, large.train_y[:10])
    assert len(small.test_x) == 360
    assert not torch.equal(large.train_x, other.train_x)
    assert len({small.version, large.version, other.version}) == 3


def test_mean_and_std_may_be_given():
    dataset = load({"name": "digits", "mean": [0.25], "std": [2]})
    assert (dataset.mean, dataset.std) == ((0.25,), (2,))


def save(path, count=4):
    images = np.arange(count * 12, dtype=np.uint8).reshape(count, 2, 2, 3)
    labels = np.arange(count) % 2
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)


def test_a_data_set_is_decoded_once_until_its_file_changes(tmp_path):
    path = tmp_path / "set.npz"
    config = {"name": "npz", "path": str(path)}
    save(path)
    first = load(config | {"augment": {"flip": True}})
    assert load(config) is first
    os.utime(path, ns=(1, 1))
    touched = load(config)
    assert touched is not first
    assert touched.version == first.version
    save(path, count=6)
    assert load(config).version != first.version


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "digts"}, r"'digts' .*digits, mnist, "),
        ({"name": "digits", "sub": 3}, r"'digits' has no key sub"),
        ({"name": "npz"}, r"'npz' .* path"),
        ({"name": "digits", "subset": {"train": 0}}, r"data 'digits': .* 0 .*1437"),
        ({"name": "digits", "subset": {"test": 361}}, r" 361 .*360"),
        ({"name": "digits", "subset": {"tran": 1}}, r"subset .*no key tran; .*: train, test"),
    ],
)
def test_an_invalid_config_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        load(config)


SMALL = {"name": "synthetic", "shape": [2, 9, 11], "num_classes": 3, "train_size": 200, "test_size": 50}


def test_only_synthetic_data_are_made_on_the_device():
    with pytest.raises((RuntimeError, AssertionError)):
        load(SMALL, device="cuda:99")
    assert load({"name": "digits"}, device="cuda:99") is load({"name": "digits"})


@pytest.mark.parametrize("dense", [False, True])
def test_synthetic_data_follow_their_seed(dense):
    first, other = (load(SMALL | {"dense": dense, "seed": seed}) for seed in (0, 1))
    assert first.input_shape == (2, 9, 11)
    assert first.train_y.shape == ((200, 9, 11) if dense else (200,))
    assert first.train_y.unique().tolist() == [0, 1, 2]
    assert first.version == load(SMALL | {"dense": dense, "mean": [0.5, 0.5]}).version
    assert first.version != other.version


def test_synthetic_labels_can_be_learned():
    made = load(SMALL)
    centres = torch.stack([made.train_x[made.train_y == label].double().mean(0) for label in range(3)])
    distances = torch.cdist(made.test_x.double().flatten(1), centres.flatten(1))
    assert (distances.argmin(1) == made.test_y).double().mean() >= 0.95


def test_synthetic_patches_can_be_learned():
    made = load(SMALL | {"dense": True, "num_classes": 2})
    pixels, labels = made.train_x.double().permute(0, 2, 3, 1), made.train_y
    means = torch.stack([pixels[labels == label].mean(0) for label in range(2)])
    assert (means[0] - means[1]).abs().max() > 10


def test_synthetic_data_need_a_shape():
    with pytest.raises(DataError, match=r"shape \[8, 8\]"):
        load(SMALL | {"shape": [8, 8]})
