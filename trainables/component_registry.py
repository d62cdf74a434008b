"""Models, data sets, optimizers and schedules by name, and checks of a config section against a factory's arguments.

Names are dotted paths, so that a config can be checked without importing torch.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from trainables.context import RequestError

MODELS: Mapping[str, str] = {
    "small_cnn": "trainables.models.images:small_cnn",
    "mlp": "trainables.models.images:mlp",
    "resnet9": "trainables.models.images:resnet9",
    "resnet18": "trainables.models.images:resnet18",
    "resnet50": "trainables.models.images:resnet50",
    "resnet101": "trainables.models.images:resnet101",
    "torchvision": "trainables.models.images:from_torchvision",
    "gpt": "trainables.models.transformer:gpt",
    "llama": "trainables.models.transformer:llama",
    "hf": "trainables.models.hf:from_transformers",
}

OF_TOKENS = ("gpt", "llama", "hf")
"""Shipped models that predict the next token of texts; others predict a class for each image."""
OF_IMAGES_TOO = ("hf",)  # those of OF_TOKENS that are image classifiers where the data are images
TEXTS: Mapping[str, str] = {"tokens": ".bin files of tokens", "text": "texts"}  # {shipped data set of texts: its files}

DATA: Mapping[str, str] = {
    "digits": "trainables.data.local:Digits",
    "mnist": "trainables.data.torchvision:MNIST",
    "fashion_mnist": "trainables.data.torchvision:FashionMNIST",
    "cifar10": "trainables.data.torchvision:CIFAR10",
    "cifar100": "trainables.data.torchvision:CIFAR100",
    "imagefolder": "trainables.data.torchvision:ImageFolder",
    "npz": "trainables.data.local:Npz",
    "synthetic": "trainables.data.local:Synthetic",
    "tokens": "trainables.tokens:TokenFiles",
    "text": "trainables.tokens:Text",
}

OPTIMIZERS: Mapping[str, str] = {
    "sgd": "torch.optim:SGD",
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "adadelta": "torch.optim:Adadelta",
    "lars": "trainables.optimizers.optimizers:LARS",
    "lamb": "trainables.optimizers.optimizers:LAMB",
    "muon": "trainables.optimizers.optimizers:Muon",
}

SCHEDULES: Mapping[str, str] = {
    name: f"trainables.optimizers.schedules:{name}"
    for name in ("constant", "step", "increase_batch", "cosine", "onecycle", "wsd")
}

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "model": MODELS,
    "data": DATA,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
"""{config section: its names}"""

PLUGINS: Mapping[str, str] = {
    "model": "sweep_orchestrator.models",
    "data": "sweep_orchestrator.data",
    "optimizer": "sweep_orchestrator.optimizers",
    "schedule": "sweep_orchestrator.schedules",
}
"""{config section: entry point group of installed plugins}"""


GIVEN: Mapping[str, tuple[str, ...]] = {
    "model": ("input_shape", "num_classes"),
    "data": (),
    "optimizer": ("params", "module", "lr"),
    "schedule": ("progress",),
}
"""{config section: the arguments that its factory receives besides the section's keys}"""

NOT_PASSED: Mapping[str, tuple[str, ...]] = {
    "model": ("name", "batch_norm"),
    "data": ("name", "subset", "mean", "std", "augment"),
    "optimizer": ("name", "lr"),
    "schedule": ("name",),
}
"""{config section: its keys that its factory does not receive}"""


def path_of(section: str, name: object) -> str:
    """Return the dotted path of a shipped name or a plugin, or the name itself if it is one. Raises ValueError."""
    if str(name) in FAMILIES[section]:
        return FAMILIES[section][str(name)]
    # To find plugins, all installed packages are read, which takes a tenth of the time of a composition.
    plugins = {plugin.name: plugin.value for plugin in entry_points(group=PLUGINS[section])}
    path = plugins.get(str(name), str(name))
    if ":" not in path:
        choices = ", ".join([*FAMILIES[section], *plugins])
        raise ValueError(f"{section} {name!r} is not one of {choices}, nor package.module:factory")
    return path


def factory_of(section: str, config: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the factory that a config section names, and the options for it, which are keys of the section.

    The name is a shipped one, that of a plugin, or a dotted path `package.module:factory`. A plugin is an entry point
    of an installed package, in the group `PLUGINS[section]`. Raises ValueError with the valid choices for an unknown
    name, RequestError if the module cannot be imported or the factory does not take the options.
    """
    subject = f"{section} {config['name']!r}"
    path = path_of(section, config["name"])
    try:
        factory = pkgutil.resolve_name(path)
    except Exception as error:  # the user's module may raise anything
        raise RequestError(f"{subject} cannot be imported: {error}") from error
    if not callable(factory):
        raise RequestError(f"{subject} is a {type(factory).__name__}, not a function or class")
    options = {key: value for key, value in config.items() if key not in NOT_PASSED[section]}
    check_keys(factory, options, subject=subject, given=GIVEN[section])
    return factory, options


def accepted(factory: Callable[..., Any], given: Mapping[str, Any], *, named: bool = True) -> dict[str, Any]:
    """Return those of the arguments that the factory takes by name, or by `**kwargs`; not `named`: only the latter."""
    parameters = inspect.signature(factory).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {key: value for key, value in given.items() if takes_all or (named and key in parameters)}


def check_keys(
    factory: Callable[..., Any], options: Mapping[str, Any], *, subject: str, given: tuple[str, ...]
) -> None:
    """Raise RequestError if `options` has keys that the factory does not take, or lacks keys that it needs.

    `given` names the arguments that do not come from the config.
    """
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    own = {key: parameter for key, parameter in parameters.items() if key not in given}
    if unknown := sorted(set(options) - set(own)):
        # With the user's own code, the section still has the keys of the choice that it replaces.
        section = subject.partition(" ")[0]
        hint = f"; left out by {' '.join(f'~{section}.{key}' for key in unknown)}" if ":" in subject else ""
        raise RequestError(f"{subject} has no key {', '.join(unknown)}; its keys are: {', '.join(own) or 'none'}{hint}")
    needed = [key for key, parameter in own.items() if parameter.default is parameter.empty]
    if missing := [key for key in needed if key not in options]:
        raise RequestError(f"{subject} needs a value for {', '.join(missing)}")
