import pytest
import torch
from torch.nn import functional

from trainables.models import build

MNIST, CIFAR, NUCLEI = (1, 28, 28), (3, 32, 32), (1, 256, 256)


def built(name, input_shape, num_classes=10, **options):
    return build({"name": f"studies.models:{name}"} | options, input_shape=input_shape, num_classes=num_classes)


@pytest.mark.parametrize(
    ("name", "options", "input_shape", "num_classes", "count"),
    [
        ("mnist_cnn", {}, MNIST, 10, 1_199_882),
        ("cnn10", {}, CIFAR, 10, 1_925_258),
        ("cnn10", {"bias": False}, CIFAR, 10, 1_925_258 - 3 * (64 + 128 + 256)),
        ("wrn28_10", {}, CIFAR, 10, 36_479_194),
        ("vgg", {}, CIFAR, 10, 14_728_266),
        ("unet", {}, NUCLEI, 2, 31_036_546),
    ],
)
def test_parameter_counts(name, options, input_shape, num_classes, count):
    with torch.device("meta"):
        model = built(name, input_shape, num_classes, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["mnist_cnn", "cnn10", "wrn28_10", "vgg"])
def test_classifiers_follow_channels_and_classes(name, channels):
    with torch.device("meta"):
        model = built(name, (channels, 32, 32), 7)
        assert model(torch.empty(2, channels, 32, 32)).shape == (2, 7)


def test_unet_gives_logits_per_pixel_and_all_layers_learn():
    model = built("unet", (1, 32, 16), 2, width=4, depth=2)
    logits = model(torch.rand(2, 1, 32, 16))
    assert logits.shape == (2, 2, 32, 16)
    functional.cross_entropy(logits, torch.ones(2, 32, 16, dtype=torch.int64)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "input_shape", "message"),
    [
        ("vgg", {}, (1, 8, 8), r"'vgg' .*32×32 pixels, not 8×8"),
        ("vgg", {"depth": 12}, CIFAR, r"'vgg' .*11, 13, 16, 19, not 12"),
        ("unet", {}, (1, 24, 32), r"'unet' .*16, not 24×32"),
    ],
)
def test_unfit_images_are_refused(name, options, input_shape, message):
    with pytest.raises(ValueError, match=message):
        built(name, input_shape, **options)
