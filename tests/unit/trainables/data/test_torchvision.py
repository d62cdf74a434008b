import functools
import gzip
import hashlib
import http.server
import pickle
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.unit.trainables.data.test_local import cut, images
from trainables.data import DataError, load


def idx(array):
    """Encode a uint8 array in the format of MNIST's files."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return header + array.tobytes()


def mnist_files():
    return {
        "train-images-idx3-ubyte": idx(images(5, 28, 28)),
        "train-labels-idx1-ubyte": idx(np.arange(5, dtype=np.uint8)),
        "t10k-images-idx3-ubyte": idx(images(2, 28, 28)),
        "t10k-labels-idx1-ubyte": idx(np.array([9, 0], dtype=np.uint8)),
    }


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files_are_read(tmp_path, name, folder):
    config = {"name": name, "root": str(tmp_path)}
    with pytest.raises(DataError, match=rf"no {folder} in /.*/{folder}/raw: .*data\.root.*data\.download="):
        load(config)
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    files = mnist_files()
    for file, content in files.items():
        (raw / file).write_bytes(content)
    dataset = load(config)
    assert dataset.input_shape == (1, 28, 28)
    assert dataset.train_y.tolist() == [0, 1, 2, 3, 4]
    assert dataset.test_y.tolist() == [9, 0]
    assert dataset.train_x.numpy().tobytes() == files["train-images-idx3-ubyte"][16:]
    for damaged in (cut(files["train-images-idx3-ubyte"]), b"", b"?" * 40):
        (raw / "train-images-idx3-ubyte").write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{folder}/raw is incomplete or corrupt"):
            load(config)


class Mirror(NamedTuple):
    """A folder, and the local URL that serves it."""

    folder: Path
    url: str


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Mirror(folder, f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
        thread.join()


def test_a_download_happens_once_and_only_if_wanted(tmp_path, mirror, monkeypatch):
    resources = []
    for file, content in mnist_files().items():
        packed = gzip.compress(content)
        (mirror.folder / f"{file}.gz").write_bytes(packed)
        resources.append((f"{file}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", [mirror.url])
    monkeypatch.setattr("torchvision.datasets.MNIST.resources", resources)
    config = {"name": "mnist", "root": str(tmp_path / "new" / "data"), "download": True}
    dataset = load(config)
    assert len(dataset.train_x) == 5
    for file in mirror.folder.iterdir():
        file.unlink()
    assert load(config) is dataset
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", [f"{tmp_path.as_uri()}/nowhere/"])
    with pytest.raises(DataError, match=r"MNIST to /.*/other/MNIST/raw: "):
        load(config | {"root": str(tmp_path / "other")})


def test_cifar_files_are_read(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = images(4, 3, 32, 32)
    batch = pickle.dumps({"data": pixels.reshape(4, -1), "labels": [3, 1, 2, 9]})
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (folder / "batch").write_bytes(batch)
    (folder / "meta").write_bytes(meta)
    for parts in ("train_list", "test_list"):
        monkeypatch.setattr(f"torchvision.datasets.CIFAR10.{parts}", [["batch", hashlib.md5(batch).hexdigest()]])
    names = {"filename": "meta", "key": "label_names", "md5": hashlib.md5(meta).hexdigest()}
    monkeypatch.setattr("torchvision.datasets.CIFAR10.meta", names)
    dataset = load({"name": "cifar10", "root": str(tmp_path)})
    assert np.array_equal(dataset.train_x.numpy(), pixels)
    assert dataset.test_y.tolist() == [3, 1, 2, 9]
    (folder / "batch").write_bytes(cut(batch))
    with pytest.raises(DataError, match=r"cifar-10-batches-py is incomplete"):
        load({"name": "cifar10", "root": str(tmp_path)})


def save_classes(root, *, test="val"):
    """Save two training images and one test image of two classes, 12 pixels high and 8 wide."""
    for split, count in (("train", 2), (test, 1)):
        for level, name in ((50, "cat"), (200, "dog")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.full((12, 8, 3), level + index, dtype=np.uint8)
                pixels[:2] = pixels[-2:] = 0  # outside of the square in the middle
                Image.fromarray(pixels).save(folder / f"{index}.png")


@pytest.mark.parametrize("test", ["val", "test"])
def test_images_in_folders_of_classes_are_read(tmp_path, test):
    save_classes(tmp_path, test=test)
    dataset = load({"name": "imagefolder", "path": str(tmp_path), "size": 8})
    assert dataset.input_shape == (3, 8, 8) and dataset.num_classes == 2
    assert dataset.train_y.tolist() == [0, 0, 1, 1] and dataset.test_y.tolist() == [0, 1]
    assert dataset.train_x[:, :, 0, 0].tolist() == [[50] * 3, [51] * 3, [200] * 3, [201] * 3]
    assert load({"name": "imagefolder", "path": str(tmp_path), "size": 4}).input_shape == (3, 4, 4)


def test_malformed_folders_of_classes_are_refused(tmp_path):
    config = {"name": "imagefolder", "path": str(tmp_path), "size": 8}
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"no folder .*/test: data\.path holds train/CLASS"):
        load(config)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match="class"):
        load(config)
    for folder in ("train", "val"):
        (tmp_path / folder).rmdir()
    save_classes(tmp_path)
    (tmp_path / "val" / "dog").rename(tmp_path / "val" / "wolf")
    with pytest.raises(DataError, match="different classes: dog, wolf"):
        load(config)
    (tmp_path / "val" / "wolf").rename(tmp_path / "val" / "dog")
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/1\.png cannot be read"):
        load(config)
