"""Which names in a config may run as code: the shipped ones, and those of modules that the user trusts.

The key `trusted_modules` lists these modules. A file may only list modules of the user's own folder.
No file can make installed code run (`os:system`, `torch.hub:load`).
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.content_hashes import (
    OWN_PACKAGES,
    is_installed,
    origin_of,
    parsed_module,
    source_file,
    spec_of,
)
from orchestrator.config.hydra_private import OWN_PLUGINS, parsed_overrides
from orchestrator.config.overrides import folder_of, key_of
from orchestrator.config.schema import OWN_SECTIONS
from orchestrator.config.search_path import shipped_dirs
from sweeps.errors import ConfigError

KEY = "trusted_modules"
UNSET = "???"  # the value of a key that the user must set

_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_LOGGERS = (
    *("logging.FileHandler", "logging.Formatter", "logging.NullHandler", "logging.StreamHandler"),
    *("logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler"),
)
_ALWAYS_CODE = frozenset({"_target_", "_check_", "_remarks_", "_partial_", "_args_", "_call_"})
_SHIPPED = re.compile(r"^\s*(?:_target_|_check_|_remarks_|name):\s*([\w.]+:\w+)\s*$", re.MULTILINE)
_MODULE = re.compile(r"(?!__main__)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@functools.cache
def registered(shipped: tuple[Path, ...]) -> frozenset[str]:
    """Return the dotted paths named in the shipped configs of trainables, models and data."""
    files = [file for folder in shipped for file in folder.glob("*/*.yaml")]
    return frozenset(name for file in files for name in _SHIPPED.findall(file.read_text()))


def trust_errors(config: Mapping[str, Any], arguments: Sequence[str], shipped: tuple[Path, ...]) -> Iterator[str]:
    """Yield a line for every name in a resolved config that would be run as code and is not trusted."""
    listed = config.get(KEY) or []
    if not isinstance(listed, list) or not all(
        isinstance(module, str) and _MODULE.fullmatch(module) for module in listed
    ):
        yield f"{KEY} must be a list of modules like [mypackage], not {listed!r}"
        return
    on_command_line = any(key_of(argument) == KEY for argument in arguments)
    for module in listed if not on_command_line else ():
        if not is_users_own(module):
            yield (
                f"{KEY}: {module!r} in a config file is not a module of your own folder; "
                f"to trust it, set it on the command line: {KEY}=[{module}]"
            )
    for key, name in named_code(config):
        if name == UNSET or name in registered(shipped):  # `cli.sweep_checks` reports what is not set
            continue
        module = name.partition(":")[0]
        if not _within(name, listed):
            top = module.partition(".")[0]
            yield f"{key}={name!r}: {module!r} is not trusted to be run; if it is your own code, add {KEY}=[{top}]"
        elif not is_defined_there(name):
            yield f"{key}={name!r}: {module!r} does not define it; name and trust the module that does"


def check_hydra(hydra: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError if Hydra's own part of a composed config names untrusted code, or does not fit this program."""
    # Only the overrides can trust modules: a sweeper plugin, or the user's callbacks.
    typed = parsed_overrides([override for override in overrides if override.startswith(f"{KEY}=")])
    values = [override.value() for override in typed]
    trusted = [str(module) for value in values if isinstance(value, list) for module in value]
    try:
        part = {name: OmegaConf.to_container(hydra[name], resolve=True) for name in _PLUGINS if hydra.get(name)}
    except OmegaConfBaseException as error:
        raise ConfigError([f"hydra: {error}".partition("\n")[0]]) from None
    # Files of logs are in a folder whose name is not known yet, so this part stays unresolved.
    part |= {name: OmegaConf.to_container(hydra[name]) for name in _LOGGING if hydra.get(name)}
    errors = [*hydra_errors(part, trusted), *_shadowed(hydra)]
    if hydra.job.chdir:
        errors.append("hydra.job.chdir=true: each trial runs in its folder anyway, and paths are relative to this one")
    if OmegaConf.is_dict(hydra.verbose):
        errors.append("hydra.verbose must be true, false, or names of loggers")
    if errors:
        raise ConfigError(errors)


_PLUGINS = ("launcher", "sweeper", "callbacks")
_LOGGING = ("job_logging", "hydra_logging")


def hydra_errors(hydra: Mapping[str, Any], trusted: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for each name in Hydra's resolved section that is neither Hydra's own nor in a trusted module."""
    for key, name in named_code({part: hydra.get(part) for part in _PLUGINS}, "hydra"):
        if name not in OWN_PLUGINS and not (_within(name, trusted) and is_defined_there(name)):
            top = name.partition(".")[0]
            yield f"{key}={name!r} is not Hydra's own; to trust it, set it on the command line: {KEY}=[{top}]"
    for key, name in _factories({part: hydra.get(part) for part in _LOGGING}, "hydra"):
        if name not in _LOGGERS:
            yield f"{key}={name!r}: only handlers and formatters of Python's logging module are allowed"


def _factories(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield every (dotted key, name) from which logging.config would create an object."""
    for dotted, names, item in _leaves(value, key):
        is_external = isinstance(item, str) and item.startswith("ext://") and item not in _STREAMS
        if {"()", "class"} & names or is_external:
            yield dotted, str(item)


def named_code(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every (dotted key, name) in a config that names code: targets, and a trainable's names with a colon."""
    for dotted, names, item in _leaves(value, key):
        is_name = "name" in names and dotted.endswith("name") and isinstance(item, str) and ":" in item
        is_own = dotted.partition(".")[0] in OWN_SECTIONS  # whose names are texts, such as sweep.name
        if (_ALWAYS_CODE & names and item is not None) or (is_name and not is_own):
            yield dotted, str(item)


def _leaves(value: Any, key: str, names: frozenset[str] = frozenset()) -> Iterator[tuple[str, frozenset[str], Any]]:
    """Yield each value of nested sections and lists, with its dotted key and the names in this key."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name), names | {str(name)})
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{key}[{index}]", names)
    else:
        yield key, names, value


def _within(name: str, modules: Iterable[str]) -> bool:
    module = name.partition(":")[0]
    return any(module == trusted or module.startswith(f"{trusted}.") for trusted in modules)


def is_defined_there(name: str) -> bool:
    """Return whether the package in `package.module:name` or `package.module.name` defines that name itself."""
    module, colon, _ = name.partition(":")
    # A name is no module itself, even if a module of a package has it.
    dots = module.count(".") + bool(colon)
    package = module.partition(".")[0]
    is_defined = _is_defined(name.replace(":", "."), package, frozenset(), longest=dots)
    # An installed package may have code in other files than Python's.
    return not is_users_own(package) if is_defined is None else is_defined


def _is_defined(dotted: str, package: str, seen: frozenset[str], longest: int | None = None) -> bool | None:
    """Return whether `package` defines what a dotted name stands for; None if that is unknown.

    At most the first `longest` parts are a module.
    """
    if dotted.partition(".")[0] != package or dotted in seen:
        return False
    parts = dotted.split(".")
    # The longest part that is a module; Python looks up the rest in it.
    modules = [".".join(parts[:length]) for length in range(longest or len(parts), 0, -1)]
    module = next((name for name in modules if source_file(name)), None)
    if module is None:
        return None
    path = dotted.removeprefix(module).split(".")[1:]
    if not path:  # a module is no code to call
        return False
    # After `from . import inner` the same dotted name comes again, this time as a module.
    asked = seen if longest else seen | {dotted}
    origins = [origin for name, origin in _bound(module) if name in (path[0], "*")]
    verdicts = [
        origin is None or _is_defined(".".join([origin.replace("*", path[0]), *path[1:]]), package, asked)
        for origin in origins
    ]
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def _bound(module: str) -> Iterator[tuple[str, str | None]]:
    """Yield each name (or `*`) that a module binds, and the dotted name that it stands for; None for its own code."""
    file = source_file(module)
    assert file is not None
    try:
        tree, _ = parsed_module(file)
    except SyntaxError:  # reported elsewhere
        return
    inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in _statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, None
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            origin = origin_of(node, inside.split(".") if inside else [])
            is_foreign = origin.partition(".")[0] != module.partition(".")[0]
            for alias in node.names:
                # It is unknown what a compiled module defines, and what a star imports from another package.
                places = [origin] if alias.name == "*" else [origin, f"{origin}.{alias.name}"]
                if alias.name != "*" if is_foreign else any(map(source_file, places)):
                    yield alias.asname or alias.name, f"{origin}.{alias.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            value = node.value
            while isinstance(value, ast.Attribute):
                value = value.value
            # An alias of something imported (`run = subprocess.run`) defines nothing.
            alias_of = f"{module}.{value.id}" if isinstance(value, ast.Name) else None
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, alias_of) for target in targets if isinstance(target, ast.Name))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and those inside its `if`, `try` and `with` statements."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            blocks = [getattr(node, block, []) for block in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            yield from _statements(statement for block in blocks for statement in block)


def is_users_own(module: str) -> bool:
    """Return whether the module is neither in the standard library nor installed, without importing it."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in OWN_PACKAGES:
        return False
    spec = spec_of(top)
    origins = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    places = [Path(origin) for origin in origins if origin and origin not in ("built-in", "frozen", "namespace")]
    return bool(places) and not any(map(is_installed, places))


def _shadowed(hydra: DictConfig) -> Iterator[str]:
    """Yield a line for every chosen config that the user's folders and ours have: Hydra would take ours."""
    folders = [folder for folder in map(folder_of, hydra.searchpath) if folder]
    for group, choice in hydra.runtime.choices.items():
        name = f"{group}/{choice}.yaml"
        shipped = next((folder / name for folder in shipped_dirs() if (folder / name).is_file()), None)
        if shipped is None:
            continue
        # Copies of a shipped file are common, and harmless while they are equal.
        for own in (folder / name for folder in folders):
            if own.is_file() and own.read_bytes() != shipped.read_bytes():
                yield f"{group}={choice}: the shipped config of this name comes before {own}; give yours another name"


_MOST_NESTED = 20  # Hydra's parser is recursive: deeper nesting would exhaust the stack


def is_data(argument: str) -> bool:
    """Return whether an override sets one plain value, which reads nothing from the environment."""
    # Nesting is measured before parsing, since the parser itself would fail.
    depth = deepest = 0
    for character in argument:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if "${" in argument or deepest > _MOST_NESTED:
        return False
    try:
        (override,) = parsed_overrides([argument])
    except HydraException:
        return False
    # Several values would start several sweeps, and a package moves the setting elsewhere.
    return not override.is_sweep_override() and not override.is_delete() and override.package is None
