import functools
import gzip
import hashlib
import http.server
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from trainables.data import DataError, load

RANDOM = np.random.default_rng(0)


def images(*shape: int) -> np.ndarray:
    return RANDOM.integers(256, size=shape, dtype=np.uint8)


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    given = {
        "x_train": images(6, 4, 5, 3),
        "y_train": np.arange(6) % 3,
        "x_test": images(3, 4, 5, 3),
        "y_test": np.arange(3),
    }
    return {key: value for key, value in (given | changes).items() if value is not None}


def test_npz_of_colour_images(tmp_path: Path) -> None:
    stored = arrays(y_train=(np.arange(6, dtype=np.uint8) % 3)[:, None])
    np.savez(tmp_path / "set.npz", **stored)
    found = load({"name": "npz", "path": str(tmp_path / "set.npz")})
    assert found.num_classes == 3
    assert torch.equal(found.train_x, torch.from_numpy(stored["x_train"].transpose(0, 3, 1, 2).copy()))
    assert found.train_x.is_contiguous()
    assert found.train_y.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.version.startswith("npz-")


def test_npz_of_grey_images(tmp_path: Path) -> None:
    stored = arrays(x_train=images(6, 4, 5), x_test=images(3, 4, 5))
    np.savez_compressed(tmp_path / "set.npz", **stored)
    found = load({"name": "npz", "path": str(tmp_path / "set.npz"), "num_classes": 7})
    assert found.num_classes == 7
    assert torch.equal(found.test_x[:, 0], torch.from_numpy(stored["x_test"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, r"set\.npz cannot be read: it lacks x_test"),
        ({"x_train": np.zeros((6, 4, 5, 3))}, r"x_train is float64, not uint8"),
        ({"y_test": np.array([0.0, 1.0, 2.0])}, r"y_test is float64, not integers"),
        ({"y_train": np.arange(5)}, r"training labels are torch\.int64 of shape \(5,\), for images of \(6, 3, 4, 5\)"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, r"training labels go from -1 to 2"),
        ({"x_train": images(6, 4)}, r"images have shape \(6, 4\), not N×H×W or N×H×W×C"),
        ({"x_test": images(3, 4, 4, 3)}, r"training and test images differ in shape: 3×4×5 and 3×4×4"),
        ({"y_test": np.array([{}, 1, 2], dtype=object)}, r"set\.npz cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_npz_that_is_wrong(tmp_path: Path, changes: Mapping[str, Any], message: str) -> None:
    np.savez(tmp_path / "set.npz", **arrays(**changes))
    with pytest.raises(DataError, match=message) as caught:
        load({"name": "npz", "path": str(tmp_path / "set.npz")})
    assert "\n" not in str(caught.value)


def test_npz_with_more_classes_than_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **arrays())
    with pytest.raises(DataError, match="training labels go from 0 to 2, not within 0 to 1"):
        load({"name": "npz", "path": str(tmp_path / "set.npz"), "num_classes": 2})


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 3
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flip_a_bit, lambda content: b"", lambda content: b"no archive"])
def test_npz_that_is_corrupt_or_absent(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "set.npz"
    with pytest.raises(DataError, match=r"there is no file /.*/set\.npz: set data\.path to an archive with x_train, "):
        load({"name": "npz", "path": str(path)})
    np.savez(path, **arrays())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"set\.npz cannot be read: ") as caught:
        load({"name": "npz", "path": str(path)})
    assert "\n" not in str(caught.value)


def save_pairs(root: Path, mode: str = "L", size: tuple[int, int] = (8, 6)) -> None:
    """Three training pairs and a validation pair, width × height, masks with instances 0, 1, 2."""
    for split, count in (("train", 3), ("val", 1)):
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            Image.fromarray(images(size[1], size[0], 3)).convert(mode).save(root / split / "images" / f"{index}.png")
            mask = np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[::-1]) % 3
            Image.fromarray(mask).save(root / split / "masks" / f"{index}.png")


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 3)])
def test_segmentation_folder(tmp_path: Path, mode: str, channels: int) -> None:
    save_pairs(tmp_path, mode)
    found = load({"name": "segmentation", "root": str(tmp_path)})
    assert found.input_shape == (channels, 6, 8)
    assert (len(found.train_x), len(found.test_x), found.num_classes) == (3, 1, 2)
    assert torch.equal(found.train_y[2], (torch.arange(48).reshape(6, 8) % 3 > 0).long())
    with Image.open(tmp_path / "train" / "images" / "1.png") as image:
        expected = np.atleast_3d(np.asarray(image.convert("RGB" if channels == 3 else "L")))
    assert np.array_equal(found.train_x[1].permute(1, 2, 0).numpy(), expected)


def test_segmentation_that_is_wrong(tmp_path: Path) -> None:
    config = {"name": "segmentation", "root": str(tmp_path)}
    with pytest.raises(DataError, match=r"there is no folder /.*/train/images: data\.root holds"):
        load(config)
    save_pairs(tmp_path)
    image, mask = (tmp_path / "train" / kind / "2.png" for kind in ("images", "masks"))

    Image.fromarray(images(6, 7)).save(image)
    with pytest.raises(DataError, match=r"images of mixed sizes: /.*0\.png is 6×8×1, /.*2\.png is 6×7×1"):
        load(config)
    Image.fromarray(images(6, 8)).save(image)
    Image.fromarray(images(6, 8, 3)).save(mask)
    with pytest.raises(DataError, match=r"masks/2\.png is a mask of 3 channels, not one"):
        load(config)
    Image.fromarray(images(5, 8)).save(mask)
    with pytest.raises(DataError, match=r"images of mixed sizes: .*masks/2\.png is 5×8"):
        load(config)
    mask.unlink()
    with pytest.raises(DataError, match=r"1 images in /.*/train lack a mask, or masks an image: 2\.png"):
        load(config)
    image.write_bytes(cut((tmp_path / "train" / "images" / "1.png").read_bytes()))
    mask.write_bytes((tmp_path / "train" / "masks" / "1.png").read_bytes())
    with pytest.raises(DataError, match=r"images/2\.png cannot be read: "):
        load(config)


def idx(array: np.ndarray) -> bytes:
    """An array of uint8 in the format of MNIST's files."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return header + array.tobytes()


def mnist_files() -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx(images(5, 28, 28)),
        "train-labels-idx1-ubyte": idx(np.arange(5, dtype=np.uint8)),
        "t10k-images-idx3-ubyte": idx(images(2, 28, 28)),
        "t10k-labels-idx1-ubyte": idx(np.array([9, 0], dtype=np.uint8)),
    }


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_files(tmp_path: Path, name: str, folder: str) -> None:
    config = {"name": name, "root": str(tmp_path)}
    told = rf"no {folder} in /.*/{folder}/raw: set data\.root to the folder that holds {folder}/raw, or data\.download="
    with pytest.raises(DataError, match=told):
        load(config)
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    files = mnist_files()
    for file, content in files.items():
        (raw / file).write_bytes(content)
    found = load(config)
    assert found.input_shape == (1, 28, 28)
    assert found.train_y.tolist() == [0, 1, 2, 3, 4]
    assert found.test_y.tolist() == [9, 0]
    assert found.train_x.numpy().tobytes() == files["train-images-idx3-ubyte"][16:]
    for damaged in (cut(files["train-images-idx3-ubyte"]), b"", b"?" * 40):
        (raw / "train-images-idx3-ubyte").write_bytes(damaged)
        with pytest.raises(DataError, match=r"MNIST/raw is incomplete or corrupt \(.*\); remove it and fetch it again"):
            load(config)


class Mirror(NamedTuple):
    """A folder, and where a web server on the loopback serves it."""

    folder: Path
    url: str


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Mirror(folder, f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
        thread.join()


def test_a_download_happens_once_and_only_when_told(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = []
    for file, content in mnist_files().items():
        packed = gzip.compress(content)
        (mirror.folder / f"{file}.gz").write_bytes(packed)
        resources.append((f"{file}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [mirror.url])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    config = {"name": "mnist", "root": str(tmp_path / "new" / "data"), "download": True}
    found = load(config)
    assert len(found.train_x) == 5
    for file in mirror.folder.iterdir():
        file.unlink()
    assert load(config) is found
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"{tmp_path.as_uri()}/nowhere/"])
    with pytest.raises(DataError, match=r"cannot download MNIST to /.*/other/MNIST/raw: "):
        load(config | {"root": str(tmp_path / "other")})


def test_cifar_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = images(4, 3, 32, 32)
    batch = pickle.dumps({"data": pixels.reshape(4, -1), "labels": [3, 1, 2, 9]})
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (folder / "batch").write_bytes(batch)
    (folder / "meta").write_bytes(meta)
    for parts in ("train_list", "test_list"):
        monkeypatch.setattr(torchvision.datasets.CIFAR10, parts, [["batch", hashlib.md5(batch).hexdigest()]])
    names = {"filename": "meta", "key": "label_names", "md5": hashlib.md5(meta).hexdigest()}
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "meta", names)
    found = load({"name": "cifar10", "root": str(tmp_path)})
    assert np.array_equal(found.train_x.numpy(), pixels)
    assert found.test_y.tolist() == [3, 1, 2, 9]
    (folder / "batch").write_bytes(cut(batch))
    with pytest.raises(DataError, match=r"cifar-10-batches-py is incomplete or corrupt"):
        load({"name": "cifar10", "root": str(tmp_path)})


REAL = os.environ.get("SWEEP_TEST_DATA")


@pytest.mark.skipif(REAL is None, reason="SWEEP_TEST_DATA does not name a folder of real data sets")
@pytest.mark.parametrize(
    ("config", "counts", "input_shape", "mean"),
    [
        ({"name": "mnist", "root": "mnist"}, (60_000, 10_000), (1, 28, 28), 0.1307),
        ({"name": "fashion_mnist", "root": "fashion_mnist"}, (60_000, 10_000), (1, 28, 28), 0.2860),
        ({"name": "npz", "path": "cifar10.npz"}, (50_000, 10_000), (3, 32, 32), 0.491),
        ({"name": "segmentation", "root": "dsb2018_256"}, (270, 64), (1, 256, 256), None),
    ],
)
def test_real_data(
    config: dict[str, str], counts: tuple[int, int], input_shape: tuple[int, int, int], mean: float | None
) -> None:
    located = {key: value if key == "name" else str(Path(str(REAL)) / value) for key, value in config.items()}
    found = load(located)
    assert (len(found.train_x), len(found.test_x)) == counts
    assert found.input_shape == input_shape
    assert mean is None or found.mean[0] == pytest.approx(mean, abs=1e-3)
