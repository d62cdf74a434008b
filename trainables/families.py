"""What can be had by name, as dotted paths: known without importing what computes."""

from __future__ import annotations

from collections.abc import Mapping

MODELS: Mapping[str, str] = {
    "small_cnn": "trainables.models.small_cnn:small_cnn",
    "mlp": "trainables.models.mlp:mlp",
    "mnist_cnn": "trainables.models.mnist_cnn:mnist_cnn",
    "cnn10": "trainables.models.cnn10:cnn10",
    "vgg": "trainables.models.vgg:vgg",
    "resnet9": "trainables.models.resnet9:resnet9",
    "resnet18": "trainables.models.resnet:resnet18",
    "resnet50": "trainables.models.resnet:resnet50",
    "resnet101": "trainables.models.resnet:resnet101",
    "wrn28_10": "trainables.models.wide_resnet:wrn28_10",
    "unet": "trainables.models.unet:unet",
    "conv2d": "trainables.models.conv2d:conv2d",
    "torchvision": "trainables.models.from_torchvision:from_torchvision",
}

OF_PIXELS = ("unet", "conv2d")
"""Models of ours with a class for every pixel; all others have one for each image."""

DATA: Mapping[str, str] = {
    "digits": "trainables.data.digits:Digits",
    "mnist": "trainables.data.from_torchvision:MNIST",
    "fashion_mnist": "trainables.data.from_torchvision:FashionMNIST",
    "cifar10": "trainables.data.from_torchvision:CIFAR10",
    "cifar100": "trainables.data.from_torchvision:CIFAR100",
    "npz": "trainables.data.npz:Npz",
    "segmentation": "trainables.data.segmentation:SegmentationFolder",
    "synthetic": "trainables.data.synthetic:Synthetic",
}

OPTIMIZERS: Mapping[str, str] = {
    "sgd": "torch.optim:SGD",
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "adadelta": "torch.optim:Adadelta",
    "lars": "trainables.optimizers.lars:LARS",
    "lamb": "trainables.optimizers.lamb:LAMB",
}

SCHEDULES: Mapping[str, str] = {
    name: f"trainables.optimizers.schedules:{name}"
    for name in ("constant", "step", "increase_batch", "cosine", "onecycle")
}

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "model": MODELS,
    "data": DATA,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
"""By the section of the config whose `name` it is."""
