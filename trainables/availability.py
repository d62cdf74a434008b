"""Checks whether the files of a config's data set exist where its trials will run, without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.cluster_address import cluster_address
from trainables.component_registry import DATA, TEXTS

ARRAYS = ("x_train", "y_train", "x_test", "y_test")  # arrays in an .npz archive

FOLDERS: Mapping[str, str] = {
    "MNIST": "MNIST/raw",
    "FashionMNIST": "FashionMNIST/raw",
    "CIFAR10": "cifar-10-batches-py",
    "CIFAR100": "cifar-100-python",
}
"""{torchvision's data set: its folder within `data.root`}"""


def absent(data: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield a line if the data of this section are neither on this machine nor to be downloaded, or a model is not."""
    if (model or {}).get("name") == "hf" and isinstance(folder := (model or {}).get("path"), str):
        if not (_path(folder) / "config.json").is_file():
            yield f"model 'hf': there is no {_path(folder) / 'config.json'}: model.path is what save_pretrained writes"
    name, subject = data.get("name"), f"data {data.get('name')!r}"
    if isinstance(path := data.get("path"), str) and name == "npz" and not _path(path).is_file():
        yield f"{subject}: {no_archive(_path(path))}"
    if name == "imagefolder" and isinstance(path, str):
        yield from (f"{subject}: {line}" for line in no_classes(_path(path)))
    if name in TEXTS and isinstance(path, str) and not _path(path).exists():
        yield f"{subject}: there is no file or folder {_path(path)}: data.path has {TEXTS[str(name)]}"
    if not isinstance(root := data.get("root"), str):
        return
    source = DATA.get(str(name), "").partition(":")[2]
    folder = _path(root) / FOLDERS.get(source, "")
    if source in FOLDERS and not data.get("download") and not folder.is_dir():
        yield f"{subject}: {no_set(source, folder)}"


def _path(path: str) -> Path:
    return Path(path).expanduser().resolve()


def no_archive(path: Path) -> str:
    """Return the message for a missing .npz."""
    return f"there is no file {path}: set data.path to an archive with {', '.join(ARRAYS)}"


def class_folders(root: Path) -> tuple[Path, Path]:
    """Return the folders of the training and the test images of an ImageFolder."""
    return root / "train", root / ("val" if (root / "val").is_dir() else "test")


def no_classes(root: Path) -> Iterator[str]:
    """Yield the message for a missing folder of images by class."""
    for folder in class_folders(root):
        if not folder.is_dir():
            yield f"there is no folder {folder}: data.path holds train/CLASS/*.jpg and val/CLASS/*.jpg"
            return


def no_set(source: str, folder: Path) -> str:
    """Return the message for a missing torchvision data set."""
    inside = FOLDERS[source]
    return (
        f"no {source} in {folder}: set data.root to the folder that holds {inside}, or data.download=true to fetch it"
    )


def runs_here(config: Mapping[str, Any]) -> bool:
    """Return whether this machine will run the trials, so that their files must be here.

    A plan may be made anywhere, and the nodes of a cluster may have other files.
    """
    return config.get("mode") in ("run", "settle") and not _cluster(config)


def not_here(config: Mapping[str, Any], lacks: Iterable[str]) -> Iterator[str]:
    """Yield the missing files and programs as remarks on a plan, for which they are not an error."""
    remark = "the nodes need it" if _cluster(config) else "mode=run would refuse that"
    yield from (f"{line} (as seen from this machine; {remark})" for line in lacks)


def _cluster(config: Mapping[str, Any]) -> str:
    """Return the address of the cluster that runs the trials; empty if this machine does."""
    _, address = cluster_address(config.get("backend"), (config.get("cluster") or {}).get("address"))
    return address
