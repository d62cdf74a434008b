"""A config section handed to what it configures: its keys are the keyword arguments of a factory."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from trainables.context import RequestError

PLUGINS: Mapping[str, str] = {
    "model": "sweep_orchestrator.models",
    "data": "sweep_orchestrator.data",
    "optimizer": "sweep_orchestrator.optimizers",
    "schedule": "sweep_orchestrator.schedules",
}
"""The entry points' groups, by what they offer."""


def _plugins(subject: str) -> dict[str, str]:
    """The paths of what installed packages offer, by name."""
    return {each.name: each.value for each in entry_points(group=PLUGINS[subject])} if subject in PLUGINS else {}


def path_of(families: Mapping[str, str], name: object, *, subject: str) -> str:
    """The dotted path behind a family's name or a plugin's, or the name if it is one; ValueError where it is none."""
    path = families.get(str(name)) or _plugins(subject).get(str(name)) or str(name)
    if ":" not in path:
        choices = ", ".join([*families, *_plugins(subject)])
        raise ValueError(f"{subject} {name!r} is not one of {choices}, nor package.module:factory")
    return path


def choose(families: Mapping[str, str], name: object, *, subject: str) -> Callable[..., Any]:
    """The factory behind a family's name, a plugin's, or a dotted path `package.module:factory`; imported only now.

    A plugin is an entry point of an installed package, in the group that `PLUGINS` has for the subject. Raises
    ValueError with the valid choices where there is none, RequestError where its module cannot be imported.
    """
    path = path_of(families, name, subject=subject)
    try:
        factory = pkgutil.resolve_name(path)
    except Exception as error:  # whatever somebody's module does when it is imported
        raise RequestError(f"{subject} {name!r} cannot be imported: {error}") from error
    if not callable(factory):
        raise RequestError(f"{subject} {name!r} is a {type(factory).__name__}, not a function or class")
    return factory  # type: ignore[no-any-return]


def taken(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that the factory takes by name."""
    parameters = inspect.signature(factory).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {key: value for key, value in given.items() if takes_all or key in parameters}


def check_keys(
    factory: Callable[..., Any], options: Mapping[str, Any], *, subject: str, given: tuple[str, ...]
) -> None:
    """Raise RequestError where `options` holds keys that the factory does not take, or lacks keys that it needs.

    `given` names the arguments that come from elsewhere than the config.
    """
    check_options(inspect.signature(factory), options, subject=subject, given=given)


def check_options(
    signature: inspect.Signature, options: Mapping[str, Any], *, subject: str, given: tuple[str, ...]
) -> None:
    """The same of a factory of which only the signature is known."""
    parameters = signature.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    own = {key: parameter for key, parameter in parameters.items() if key not in given}
    unknown = sorted(set(options) - set(own))
    if unknown:
        # Under the name of somebody's own code stand the keys of the choice whose place it took.
        section = subject.partition(" ")[0]
        hint = f"; left out by {' '.join(f'~{section}.{key}' for key in unknown)}" if ":" in subject else ""
        raise RequestError(f"{subject} has no key {', '.join(unknown)}; its keys are: {', '.join(own) or 'none'}{hint}")
    missing = ", ".join(
        key for key, parameter in own.items() if parameter.default is parameter.empty and key not in options
    )
    if missing:
        raise RequestError(f"{subject} needs a value for {missing}")
