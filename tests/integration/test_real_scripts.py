"""Test public scripts, unchanged, with the commands of docs/how-to/real-scripts.md.

The scripts are not part of this project. FOREIGN_SCRIPTS names a folder with clones of their repositories (or of the
folders that the page names): vision, nanoGPT and pytorch-lightning. Data are generated; nothing is downloaded.
"""

import importlib.util
import os
import pickle
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator import load_results
from orchestrator.cli.app import main
from tests.docs.commands import ROOT, blocks

GIVEN = os.environ.get("FOREIGN_SCRIPTS", "")
PAGE = ROOT / "docs/how-to/real-scripts.md"
SMALL = ("backend=inprocess", "sweep.axes.gpus=[1]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def command_of(name):
    """Return the words of the page's command for this folder of a repository, after `python -m`."""
    for block in blocks(PAGE):
        (_, folder), words = list(block.commands())
        if folder.startswith(name):
            return folder, words[3:]
    raise AssertionError(f"{PAGE} has no command for {name}")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Copy the folder that the page names, and go there; skip if there is none."""

    def copied(name):
        folder, words = command_of(name)
        if not (Path(GIVEN) / folder).is_dir() or not GIVEN:
            pytest.skip(f"FOREIGN_SCRIPTS={GIVEN!r} has no {folder}; {PAGE.name} says where it is from")
        shutil.copytree(Path(GIVEN) / folder, tmp_path / folder)
        monkeypatch.chdir(tmp_path / folder)
        return tmp_path / folder, words

    return copied


def swept(words, *changes):
    """Run the page's command with some words changed; return its only trial."""
    old, new = changes[::2], changes[1::2]
    for before, after in zip(old, new, strict=True):
        assert any(before in word for word in words), before
        words = [word.replace(before, after) for word in words]
    assert main([*words, *SMALL]) == 0
    name = next(word for word in words if word.startswith("sweep.name=")).partition("=")[2]
    results = load_results(f"results/{name}")
    (trial,) = results.trials.to_dict("records")
    assert trial["status"] == "ok", trial["note"]
    assert trial["samples_per_s"] > 0 and trial["samples_per_s"] == pytest.approx(
        trial["device_batch_size"] / trial["step_s"]
    )
    return trial, results.curves()


def test_torchvision_reference_is_swept(place):
    folder, words = place("vision")
    generator = random.Random(0)
    for part, count in (("train", 8), ("val", 2)):
        for shade in (0, 40, 80, 120, 160, 200):  # it tells of the best five
            (folder / "imagenet" / part / f"grey{shade}").mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (40, 40), (shade + generator.randrange(40),) * 3)
                image.save(folder / "imagenet" / part / f"grey{shade}" / f"{index}.png")
    on_cpu = "{python} train.py --device cpu -j 0 --print-freq 1"
    on_cpu += " --train-crop-size 32 --val-resize-size 36 --val-crop-size 32"
    trial, curves = swept(
        words,
        "torchrun --nproc_per_node={gpus} train.py",
        on_cpu,
        "device_batch_size=[64,256]",
        "device_batch_size=[8]",
    )
    assert len(curves) == 3 and curves.loss.notna().all()
    assert 0 <= trial["accuracy"] == trial["val_accuracy"] <= 1 and trial["window_steps"] == 3 * 6 - 1


def test_nanogpt_is_swept(place):
    folder, words = place("nanoGPT")
    text = "".join(f"{a} and {b} make {a + b}. " for a in range(40) for b in range(40))
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) for letter in text], dtype=np.uint16)
    codes[: len(codes) * 9 // 10].tofile(folder / "data/shakespeare_char/train.bin")
    codes[len(codes) * 9 // 10 :].tofile(folder / "data/shakespeare_char/val.bin")
    with (folder / "data/shakespeare_char/meta.pkl").open("wb") as file:
        pickle.dump({"vocab_size": len(letters)}, file)
    small = "--device=cpu --compile=False --n_layer=2 --n_embd=64 --n_head=2 --eval_iters=2"
    trial, curves = swept(
        words,
        *("torchrun --nproc_per_node={gpus} train.py", "{python} train.py", "--eval_iters=20", small),
        *("device_batch_size=[16,64]", "device_batch_size=[16]", "budget.steps=200", "budget.steps=60"),
        *("--eval_interval=100", "--eval_interval=20"),
    )
    assert len(curves) == 4 and curves.val_loss.iloc[-1] < curves.val_loss.iloc[0]
    assert trial["val_loss"] == curves.val_loss.iloc[-1] and trial["tokens_per_s"] == 64 * trial["samples_per_s"]
    assert trial["window_steps"] >= 40 and (folder / "results/nanogpt/trials").is_dir()


def test_lightning_cli_is_swept(place):
    if not importlib.util.find_spec("lightning"):
        pytest.skip("lightning is not installed")
    folder, words = place("pytorch-lightning")
    for root in (folder / "data", folder.parents[1] / "Datasets"):
        mnist_of_noise(root / "MNIST/raw")
    cpu = "--trainer.accelerator=cpu --trainer.limit_train_batches=60 --trainer.limit_val_batches=5"
    cpu += " --trainer.limit_test_batches=5"
    trial, curves = swept(
        words,
        *("--trainer.devices={gpus}", f"--trainer.devices={{gpus}} {cpu} --trainer.limit_predict_batches=1"),
        *("device_batch_size=[32,128]", "device_batch_size=[32]"),
    )
    assert len(curves) == 3 and trial["window_steps"] > 60 and trial["test_loss"] > 0


def mnist_of_noise(folder):
    """Write MNIST's four files, of its size, with random images."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        images = np.repeat(labels * 25, 28 * 28).astype(np.uint8)
        for kind, code, array, shape in (
            ("images-idx3", 3, images, (count, 28, 28)),
            ("labels-idx1", 1, labels, (count,)),
        ):
            head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, code, *shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + array.tobytes())
