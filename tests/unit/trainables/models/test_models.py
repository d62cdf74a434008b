import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainables.component_registry import MODELS, OF_TOKENS
from trainables.models import build, mismatch
from trainables.models.batch_norm import GhostBatchNorm2d, convert_batch_norm

DIGITS, CIFAR = (1, 8, 8), (3, 32, 32)


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("config", "input_shape", "num_classes", "count"),
    [
        ({"name": "resnet9"}, CIFAR, 10, 6_573_120),
        ({"name": "resnet18"}, CIFAR, 10, 11_173_962),
        ({"name": "resnet50"}, CIFAR, 10, 23_520_842),
        ({"name": "resnet101"}, CIFAR, 10, 42_512_970),
        ({"name": "small_cnn"}, DIGITS, 10, 160 + 4_640 + 5_130),
        ({"name": "mlp", "hidden": [32]}, DIGITS, 10, 65 * 32 + 33 * 10),
        ({"name": "torchvision", "arch": "resnet18"}, (3, 64, 64), 1000, 11_689_512),
        ({"name": "torchvision", "arch": "resnet18"}, (1, 64, 64), 1000, 11_689_512 - 2 * 64 * 49),
    ],
)
def test_parameter_counts(config, input_shape, num_classes, count):
    with torch.device("meta"):
        assert parameters(build(config, input_shape=input_shape, num_classes=num_classes)) == count


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"torchvision", *OF_TOKENS}))
def test_classifiers_follow_channels_and_classes(name, channels):
    with torch.device("meta"):
        module = build({"name": name}, input_shape=(channels, 32, 32), num_classes=7)
        assert module(torch.empty(2, channels, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("arch", "device"),
    [("mobilenet_v3_small", "cpu"), ("regnet_x_400mf", "cpu"), ("vit_b_16", "meta"), ("googlenet", "meta")],
)
def test_torchvision_models_follow_channels_and_classes(arch, device):
    with torch.device(device):
        module = build({"name": "torchvision", "arch": arch}, input_shape=(1, 64, 64), num_classes=7)
        assert module.training
        assert module.eval()(torch.rand(1, 1, 64, 64)).shape == (1, 7)


def test_the_seed_decides_the_weights():
    def weights():
        torch.manual_seed(3)
        return list(build({"name": "small_cnn"}, input_shape=DIGITS, num_classes=10).parameters())

    assert all(map(torch.equal, weights(), weights()))


@pytest.mark.parametrize(
    ("config", "input_shape", "message"),
    [
        ({"name": "resnet19"}, CIFAR, r"'resnet19' .*small_cnn, .*package\.module:factory"),
        ({"name": "mlp", "hiden": [3]}, CIFAR, r"'mlp' has no key hiden; .*: hidden"),
        ({"name": "torchvision"}, CIFAR, r"'torchvision' .*arch"),
        ({"name": "torchvision", "arch": "resnet19"}, CIFAR, r"arch 'resnet19'; .*alexnet, "),
        ({"name": "torchvision", "arch": "alexnet"}, CIFAR, r"'alexnet' .*3×32×32: .* too small"),
        ({"name": "torchvision", "arch": "vit_b_16"}, (3, 40, 40), r"'vit_b_16' .*3×40×40: .*patch"),
        ({"name": "small_cnn"}, (1, 8, 7), r"'small_cnn' .*8×8 pixels, not 8×7"),
        ({"name": "absent.module:factory"}, CIFAR, r"'absent\.module:factory' cannot be imported"),
        ({"name": "math:pi"}, CIFAR, r"'math:pi' is a float"),
        ({"name": f"{__name__}:no_module"}, CIFAR, r"type str, .*torch\.nn\.Module"),
        ({"name": "resnet9", "batch_norm": "ghost:0"}, CIFAR, r"'ghost:0' .*replica, sync, ghost:SIZE"),
        ({"name": "small_cnn", "batch_norm": "sync"}, CIFAR, r"batch_norm 'sync'"),
    ],
)
def test_an_invalid_model_is_refused_in_one_line(config, input_shape, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(config, input_shape=input_shape, num_classes=10)
    assert "\n" not in str(caught.value)


def test_a_user_model_receives_the_arguments_that_it_takes():
    plain = build({"name": f"{__name__}:PlainModel", "hidden": 3}, input_shape=DIGITS, num_classes=10)
    assert [tuple(parameter.shape) for parameter in plain.parameters()] == [(3, 64), (3,), (10, 3), (10,)]
    whole = build({"name": f"{__name__}:own_model", "scale": 2}, input_shape=DIGITS, num_classes=4)
    assert [tuple(parameter.shape) for parameter in whole.parameters()] == [(8, 64), (8,)]


def test_a_factory_of_any_keys_gets_those_that_it_can_use():
    built = build({"name": f"{__name__}:any_keys", "arch": "plain"}, input_shape=(3, 4, 4), num_classes=5)
    assert [tuple(parameter.shape) for parameter in built.parameters()] == [(5, 48), (5,)]
    given = {"name": f"{__name__}:any_keys", "arch": "plain", "num_classes": 7}
    assert build(given, input_shape=(3, 4, 4), num_classes=5)[1].out_features == 7  # type: ignore[index, union-attr]
    with pytest.raises(TypeError, match="colour"):
        build({"name": f"{__name__}:any_keys", "arch": "plain", "colour": 1}, input_shape=(3, 4, 4), num_classes=5)


def test_a_model_that_returns_an_object_gives_its_logits():
    built = build({"name": f"{__name__}:WithLogits"}, input_shape=(3, 4, 4), num_classes=5)
    assert built(torch.ones(2, 3, 4, 4)).tolist() == [48.0, 48.0]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("own_model", ""),
        ("PlainModel", ""),
        ("any_keys", ""),
        ("few_classes", "logits of 2×10 are needed, and the model returns 2×3"),
        ("of_colours", "does not fit the data's images N×C×H×W = 2×1×8×8: RuntimeError"),
        ("of_tokens", "does not fit the data's images N×C×H×W = 2×1×8×8: RuntimeError"),
        ("unfinished", ""),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_found_by_shapes(name, fault):
    model = {"name": f"{__name__}:{name}"} | ({"arch": "plain"} if name == "any_keys" else {})
    message = mismatch({"model": model, "data": {"name": "digits"}})
    assert fault in message if fault else message == ""


def test_a_segmentation_of_another_size_does_not_fit():
    data = {"name": "synthetic", "dense": True, "shape": [1, 8, 8], "num_classes": 3, "train_size": 4}
    message = mismatch({"model": {"name": f"{__name__}:halved"}, "data": data})
    assert message.endswith("logits of 2×3×8×8 are needed, and the model returns 2×3×4×4")


def any_keys(arch, **options):
    return of_options(**options)


def of_options(*, num_classes, in_chans=3, img_size=(8, 8)):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * math.prod(img_size), num_classes))


class WithLogits(nn.Module):
    main_input_name = "pixel_values"

    def forward(self, pixel_values):
        return SimpleNamespace(logits=pixel_values.flatten(1).sum(1))


def halved():
    return nn.Conv2d(1, 3, 2, stride=2)


def few_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def of_colours():
    return nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten())


def of_tokens(num_classes):
    return nn.Embedding(num_classes, num_classes)


def unfinished():
    return nn.Linear(int(torch.ones(1).sum().item()), 1)


class PlainModel(nn.Sequential):
    def __init__(self, hidden=2):
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def no_module(*, input_shape, num_classes):
    return "nothing"


def own_model(*, input_shape, num_classes, scale=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), scale * num_classes))


def test_ghost_batch_norm_normalises_each_ghost_batch():
    x = torch.randn(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    plain = nn.BatchNorm2d(3)
    ghost = convert_batch_norm(nn.Sequential(nn.BatchNorm2d(3)), "ghost:4")
    assert isinstance(ghost[0], GhostBatchNorm2d)
    expected = torch.cat([plain(x[:4]), plain(x[4:8]), plain(x[8:])])
    assert torch.equal(ghost(x), expected)
    assert torch.equal(ghost.eval()(x), plain.eval()(x))


def test_ghost_batch_norm_keeps_options():
    options = {"eps": 1e-3, "momentum": 0.3, "affine": False, "track_running_stats": False}
    plain = nn.BatchNorm2d(3, **options)  # type: ignore[arg-type]
    (ghost,) = convert_batch_norm(nn.Sequential(nn.BatchNorm2d(3, **options)), "ghost:8")  # type: ignore[arg-type]
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ghost(x), plain(x)) and (ghost.momentum, dict(ghost.state_dict())) == (0.3, {})


def test_batch_norm_conversion_keeps_parameters():
    module = build({"name": "resnet9"}, input_shape=CIFAR, num_classes=10)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    for kind in ("ghost:8", "sync"):
        after = convert_batch_norm(module, kind).state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
