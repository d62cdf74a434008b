"""Where data sets lie, and what is said of one that is not there: known without reading it, or what computes.

Where the trials of a config will run, as far as its own files and programs are concerned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainables.registry import DATA

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""What an archive holds."""

FOLDERS: Mapping[str, str] = {
    "MNIST": "MNIST/raw",
    "FashionMNIST": "FashionMNIST/raw",
    "CIFAR10": "cifar-10-batches-py",
    "CIFAR100": "cifar-100-python",
}
"""Within `data.root`, as torchvision has it, by torchvision's name of the set."""


def absent(data: Mapping[str, Any]) -> Iterator[str]:
    """A line if the data of this section of the config are neither on this machine nor to be fetched."""
    name, subject = data.get("name"), f"data {data.get('name')!r}"
    if isinstance(path := data.get("path"), str) and name == "npz" and not _there(path).is_file():
        yield f"{subject}: {no_archive(_there(path))}"
    if not isinstance(root := data.get("root"), str):
        return
    source = DATA.get(str(name), "").partition(":")[2]
    folder = _there(root) / FOLDERS.get(source, "")
    if source in FOLDERS and not data.get("download") and not folder.is_dir():
        yield f"{subject}: {no_set(source, folder)}"
    if name == "segmentation":
        needed = [_there(root) / split / kind for split in ("train", "val") for kind in ("images", "masks")]
        yield from (f"{subject}: {no_images(each)}" for each in needed if not each.is_dir())


def _there(path: str) -> Path:
    return Path(path).expanduser().resolve()


def no_archive(path: Path) -> str:
    """Said of an .npz that is not there."""
    return f"there is no file {path}: set data.path to an archive with {', '.join(ARRAYS)}"


def no_set(source: str, folder: Path) -> str:
    """Said of a set of torchvision's that is not there."""
    inside = FOLDERS[source]
    return (
        f"no {source} in {folder}: set data.root to the folder that holds {inside}, or data.download=true to fetch it"
    )


def no_images(folder: Path) -> str:
    """Said of a folder of images or masks that is not there."""
    return f"there is no folder {folder}: data.root holds {{train,val}}/{{images,masks}}/*.png"


def runs_here(config: Mapping[str, Any]) -> bool:
    """Whether this machine will run them: then what they need must be here.

    A plan may be made anywhere, and the nodes of a cluster may have what this one lacks.
    """
    return config.get("mode") == "run" and not _cluster(config)


def not_here(config: Mapping[str, Any], lacks: Iterable[str]) -> Iterator[str]:
    """What this machine lacks, said of a plan: nothing fails of it yet."""
    remark = "the nodes need it" if _cluster(config) else "mode=run would refuse that"
    yield from (f"{each} (as seen from this machine; {remark})" for each in lacks)


def _cluster(config: Mapping[str, Any]) -> Any:
    return (config.get("cluster") or {}).get("address") or os.environ.get("RAY_ADDRESS")
