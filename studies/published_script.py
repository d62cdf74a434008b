"""CIFAR-10 trained like the published script of 2018: loader workers, image by image, the loss read in every step.

Rewritten from its description: ResNet with the stem for small images, SGD with momentum 0.9, weight decay 5e-4 and a
constant rate of 0.1, batch 128, crops and flips by torchvision, `loss.item()` and a count of hits in every step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from trainables import data, models


class Images(Dataset[tuple[Tensor, Tensor]]):
    """A data set of augmented images, one at a time."""

    def __init__(self, images: Tensor, labels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._images, self._labels = images, labels
        self._change = v2.Compose(
            [
                v2.RandomCrop(images.shape[-1], padding=4),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(mean, std),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._change(self._images[index]), self._labels[index]


def seconds_of_epochs(
    config: Mapping[str, Any], *, device: str, epochs: int, workers: int, model: str = "resnet18", batch: int = 128
) -> dict[str, Any]:
    """Return the seconds of each epoch's training, and the accuracies after each epoch of the second half.

    `epoch_s` is the median from the second epoch on, `accuracy` the mean accuracy: at a constant rate accuracies vary
    by several percent from epoch to epoch.
    """
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    dataset = data.load(config)
    assert isinstance(dataset, data.Dataset)
    net = models.build({"name": model}, input_shape=dataset.input_shape, num_classes=dataset.num_classes).to(device)
    images = Images(dataset.train_x, dataset.train_y, dataset.mean, dataset.std)
    loader = DataLoader(images, batch, shuffle=True, num_workers=workers, multiprocessing_context="fork")
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    times, accuracies = [], []
    for number in range(epochs):
        times.append(_epoch(net, loader, optimizer, device))
        if number >= epochs // 2:
            accuracies.append(_accuracy(net, dataset, device))
    figures = {"epochs_s": times, "epoch_s": median(times[1:] or times), "accuracies": accuracies}
    return figures | {"accuracy": fmean(accuracies)}


def _epoch(net: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, device: str) -> float:
    started, total, hits = time.perf_counter(), 0.0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = net(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        hits += outputs.argmax(1).eq(labels).sum().item()
    return time.perf_counter() - started


@torch.no_grad()
def _accuracy(net: nn.Module, dataset: data.Dataset, device: str) -> float:
    net.eval()
    mean, std = (torch.tensor(statistic)[:, None, None] for statistic in (dataset.mean, dataset.std))
    right = 0
    for images, labels in zip(dataset.test_x.split(500), dataset.test_y.split(500), strict=True):
        outputs = net(((images / 255 - mean) / std).to(device))
        right += int(outputs.argmax(1).cpu().eq(labels).sum())
    net.train()
    return right / len(dataset.test_x)
