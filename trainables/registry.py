"""Models, data sets, optimizers and schedules by name, and checks of a config section against a factory's arguments.

Names are dotted paths, so that a config can be checked without importing torch. The arguments of the user's own factory
are read from its source: checking must not run the user's code.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, TypeGuard

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
OF_IMAGES_TOO = ("hf",)
"""Those of OF_TOKENS that are image classifiers where the data are images."""
TEXTS: Mapping[str, str] = {"tokens": ".bin files of tokens", "text": "texts"}
"""{shipped data set of texts: its files}"""

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


def _plugins(subject: str) -> dict[str, str]:
    """Return {name: dotted path} of the plugins in installed packages."""
    return {each.name: each.value for each in entry_points(group=PLUGINS[subject])} if subject in PLUGINS else {}


def path_of(names: Mapping[str, str], name: object, *, subject: str) -> str:
    """Return the dotted path of a shipped name or a plugin, or the name itself if it is one. Raises ValueError."""
    path = names.get(str(name)) or _plugins(subject).get(str(name)) or str(name)
    if ":" not in path:
        choices = ", ".join([*names, *_plugins(subject)])
        raise ValueError(f"{subject} {name!r} is not one of {choices}, nor package.module:factory")
    return path


def choose(names: Mapping[str, str], name: object, *, subject: str) -> Callable[..., Any]:
    """Import the factory of a shipped name, a plugin, or a dotted path `package.module:factory`.

    A plugin is an entry point of an installed package, in the group `PLUGINS[subject]`. Raises ValueError with the
    valid choices for an unknown name, RequestError if the module cannot be imported.
    """
    path = path_of(names, name, subject=subject)
    try:
        factory = pkgutil.resolve_name(path)
    except Exception as error:  # the user's module may raise anything
        raise RequestError(f"{subject} {name!r} cannot be imported: {error}") from error
    if not callable(factory):
        raise RequestError(f"{subject} {name!r} is a {type(factory).__name__}, not a function or class")
    return factory  # type: ignore[no-any-return]


def taken(factory: Callable[..., Any], given: Mapping[str, Any], *, named: bool = True) -> dict[str, Any]:
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
    check_options(inspect.signature(factory), options, subject=subject, given=given)


def check_options(
    signature: inspect.Signature, options: Mapping[str, Any], *, subject: str, given: tuple[str, ...]
) -> None:
    """Check a factory by its signature alone: see `check_keys`."""
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    own = {key: parameter for key, parameter in parameters.items() if key not in given}
    unknown = sorted(set(options) - set(own))
    if unknown:
        # With the user's own code, the section still has the keys of the choice that it replaces.
        section = subject.partition(" ")[0]
        hint = f"; left out by {' '.join(f'~{section}.{key}' for key in unknown)}" if ":" in subject else ""
        raise RequestError(f"{subject} has no key {', '.join(unknown)}; its keys are: {', '.join(own) or 'none'}{hint}")
    missing = ", ".join(
        key for key, parameter in own.items() if parameter.default is parameter.empty and key not in options
    )
    if missing:
        raise RequestError(f"{subject} needs a value for {missing}")


def written_signature(path: str) -> Signature | None:
    """Return the signature of a function, or of a class's `__init__`, as its source has it; defaults become `...`.

    Returns None if the source does not say: a file that is not here; a name that is imported, defined twice or inside
    another statement; a decorated function; a class that inherits `__init__`.
    """
    module, _, name = path.partition(":")
    file = _source(module)
    if file is None:
        return None
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError):  # reported when it is imported
        return None
    named = [each for each in tree.body if name in _bound(each)]
    function = _constructor(named[0]) if len(named) == 1 else None
    return Signature(list(_parameters(function, named[0]))) if function else None


def _source(module: str) -> Path | None:
    """Return the module's file, found without importing it."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a loaded module without a spec, such as __main__
        return None
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    places = [root.joinpath(*rest) for root in roots]
    # Like an import: a package before a module of the same name.
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    if spec and not roots and not rest:
        files = [Path(spec.origin or "")]
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement, or anything inside it, assigns or defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    aliases = {(each.asname or each.name) for each in ast.walk(statement) if isinstance(each, ast.alias)}
    stored = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    defined = {each.name for each in ast.walk(statement) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    return aliases | stored | defined


def _constructor(statement: ast.stmt) -> ast.FunctionDef | None:
    """Return the function itself or a class's `__init__`; None if it is decorated or inherited."""
    if isinstance(statement, ast.ClassDef) and not statement.decorator_list and not statement.keywords:
        inside = [each for each in statement.body if {"__init__", "__new__"} & _bound(each)]
        statement = inside[0] if len(inside) == 1 else statement
        if not (isinstance(statement, ast.FunctionDef) and statement.name == "__init__"):
            return None
    return statement if isinstance(statement, ast.FunctionDef) and not statement.decorator_list else None


def _parameters(function: ast.FunctionDef, owner: ast.stmt) -> Iterator[Parameter]:
    given = function.args
    positional = [
        *((each, Parameter.POSITIONAL_ONLY) for each in given.posonlyargs),
        *((each, Parameter.POSITIONAL_OR_KEYWORD) for each in given.args),
    ]
    first_default = len(positional) - len(given.defaults)
    for place, (each, kind) in enumerate(positional):
        if place or owner is function:  # not `self`
            yield Parameter(each.arg, kind, default=... if place >= first_default else Parameter.empty)
    if given.vararg:
        yield Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL)
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield Parameter(each.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else ...)
    if given.kwarg:
        yield Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number; 1.0 is not."""
    return is_number(value) and isinstance(value, int)
