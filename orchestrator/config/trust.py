"""Trust: which keys a config file may set, and which names in a config may run as code.

A config file may come from a stranger. The command line may set everything, and the shipped files are trusted. The
user's own primary config, in or below the working folder, may set some of Hydra's keys, and destinations on a network.
Any other file may set neither. Hydra calls `check_file` with what each file adds to a config, wherever its package puts
it, before it becomes part of that config.

The project's own trainables, which the shipped configs name, are trusted. The key `trusted_modules` adds modules:
on the command line any module, in a config file only modules of the user's own folder. So no file can make installed
code run (`os:system`, `torch.hub:load`).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import ipaddress
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.content_hashes import SHIPPED, is_installed, origin_of, parsed, source_file
from orchestrator.config.hydra_private import OWN_PLUGINS, Checks, ConfigFile
from orchestrator.config.hydra_private import parsed as parsed_overrides
from orchestrator.config.overrides import folder_of, key_of, literal
from orchestrator.config.search_path import PRIMARY, shipped_dirs
from orchestrator.store.secrets import NO_SECRETS
from sweeps.errors import ConfigError

KEY = "trusted_modules"

_HYDRAS_SOURCES = ("pkg://hydra.conf", "structured://")
_FROM_OWN_PRIMARY = frozenset({"callbacks", "help", "launcher", "run", "searchpath", "sweep", "verbose"})
"""Parts of Hydra's own section that a primary config may set: texts, folders, and plugins, whose code is checked."""

DESTINATIONS = (
    "cluster.address",
    "launch.options.hosts",
    "results_dir",
    "tracker.mlflow.uri",
    "tracker.tensorboard.dir",
    "tracker.wandb.entity",
    "tune.storage_path",
)
"""Keys whose values may name a machine or an account that receives code or results."""
_HOSTS = ("cluster.address", "launch.options.hosts")
"""Destinations that are the name of a host without a scheme; the others are folders then."""
_ACCOUNTS = ("tracker.wandb.entity",)
"""Destinations that are the name of an account, of which none is on this machine."""
_LOCAL_SCHEMES = ("", "file", "sqlite", "http", "https", "ray")


def check_file(file: ConfigFile) -> None:
    """Raise ConfigError if a config file sets what only the command line may set."""
    if file.is_typed and re.match(r"hydra\b", file.package):
        return
    errors = list(_errors_of_trusted(file) if _is_shipped(file) else _errors_of_file(file))
    if errors:
        raise ConfigError(f"{file.path or file.name}: {error}" for error in errors)


def _is_own(path: Path | None) -> bool:
    """Return whether a file lies in or below the working folder, and not in an installed package there."""
    if path is None:
        return False
    place = path.resolve()
    return place.is_relative_to(Path.cwd()) and not is_installed(place)


def _is_shipped(file: ConfigFile) -> bool:
    """Return whether a file is one of the project's or of Hydra's; `name` may lead out of its source by `..`."""
    if file.path is None:
        return file.source in _HYDRAS_SOURCES and ".." not in file.name
    place = file.path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in shipped_dirs())


def _errors_of_trusted(file: ConfigFile) -> Iterator[str]:
    """Yield an error if a defaults list places a shipped file, or one of Hydra's, into Hydra's own section."""
    if not isinstance(file.content, Mapping) or "hydra" not in file.content or file.name == PRIMARY:
        return
    group, _, choice = file.name.rpartition("/")
    if not group.startswith("hydra") or file.package not in ("hydra", group.replace("/", ".")):
        yield f"the package {file.package} may be given only on the command line"
    elif group == "hydra/sweeper" and choice != "basic":
        yield f"a sweeper may be chosen only on the command line: hydra/sweeper={choice}"


def _errors_of_file(file: ConfigFile) -> Iterator[str]:
    content = file.content if isinstance(file.content, Mapping) else {}
    is_own_primary = file.is_primary and file.name != PRIMARY and _is_own(file.path)
    if "hydra" in content:
        allowed = _FROM_OWN_PRIMARY if is_own_primary else frozenset()
        yield from _hydra_errors(content["hydra"], allowed)
    if KEY in content and not _is_own(file.path):
        yield f"{KEY} may be set only by a file in or below the working folder; type it: {KEY}={_typed(content[KEY])}"
    for key, value in _destinations(content) if not is_own_primary else ():
        yield (
            f"{key}={_typed(value)} is a destination on a network, which only the command line and your own primary"
            f" config may choose; to use it, type {key}={_typed(value)}"
        )


def _hydra_errors(section: Any, allowed: frozenset[str]) -> Iterator[str]:
    """Yield an error for each key of Hydra's own section outside `allowed`."""
    if not isinstance(section, Mapping):
        yield f"hydra must be a section, not {section!r}"
        return
    for key, value in section.items():
        if key in allowed:
            continue
        names = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) and value else [key]
        for name in names:
            yield f"hydra.{name} is set by a config file, which may not set it; the command line may: hydra.{name}=…"
    places = section.get("searchpath")
    # An interpolation or `pkg://module` would make Hydra import a module.
    for place in places if isinstance(places, list) else [places] if places else []:
        if not re.fullmatch(r"file://[^$]*|[^$:]*", str(place)):
            yield f"hydra.searchpath has {place!r}; a config file may add only folders (file://…)"


def _destinations(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each (key, value) that may lead to another machine; an interpolation may lead anywhere."""
    for key in DESTINATIONS:
        node: Any = content
        path: list[str] = []
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                break
            node = node[part]
            path.append(part)
        else:
            values = node if isinstance(node, list) else [node]
            is_set = any(value not in (None, "", "???") for value in values)
            if is_set and (key in _ACCOUNTS or not all(_is_local(value, is_host=key in _HOSTS) for value in values)):
                yield key, node
            continue
        # A section that is an interpolation as a whole may hold any value.
        if path and isinstance(node, str) and "${" in node:
            yield ".".join(path), node


def _is_local(value: Any, *, is_host: bool) -> bool:
    """Return whether a value certainly names no other machine."""
    if value in (None, "", "auto", "local", "???"):
        return True
    text = str(value)
    if "${" in text or "\\" in text:
        return False
    try:
        # `urlsplit` looks for a host only behind two slashes.
        parts = urlsplit(text if "://" in text or not is_host else f"//{text}")
    except ValueError:
        return False
    # An unusual scheme names a host elsewhere, or a module that Ray or MLflow would import.
    if is_host or parts.hostname:
        # Programs differ in where the name of a host ends before these signs.
        ends_here = not set("#?@%") & set(text) and not (is_host and parts.path)
        return ends_here and parts.scheme in _LOCAL_SCHEMES and _is_loopback(parts.hostname or "")
    return parts.scheme in ("", "file", "sqlite") and text not in ("databricks", "databricks-uc", "uc")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _typed(value: Any) -> str:
    return str(NO_SECRETS.value(literal(value) if isinstance(value, str | int | float | Sequence) else str(value)))


UNSET = "???"
"""The value of a key that the user must set."""

_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_LOGGERS = (
    *("logging.FileHandler", "logging.Formatter", "logging.NullHandler", "logging.StreamHandler"),
    *("logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler"),
)
_ALWAYS_CODE = ("_target_", "_check_", "_remarks_", "_partial_", "_args_", "_call_")
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


def check_hydra_part(hydra: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError if Hydra's own part of a composed config would make Hydra run code that is not trusted.

    Only the overrides can trust modules: a sweeper plugin, or the user's callbacks.
    """
    typed = parsed_overrides([override for override in overrides if override.startswith(f"{KEY}=")])
    values = [override.value() for override in typed]
    trusted = [str(module) for value in values if isinstance(value, list) for module in value]
    try:
        part = {name: OmegaConf.to_container(hydra[name], resolve=True) for name in _PLUGINS if hydra.get(name)}
    except OmegaConfBaseException as error:
        raise ConfigError([f"hydra: {error}".partition("\n")[0]]) from None
    # Files of logs are in a folder whose name is not known yet, so this part stays unresolved.
    part |= {name: OmegaConf.to_container(hydra[name]) for name in _LOGGING if hydra.get(name)}
    if errors := list(hydra_errors(part, trusted)):
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
    if isinstance(value, Mapping):
        for name, item in value.items():
            is_external = isinstance(item, str) and item.startswith("ext://") and item not in _STREAMS
            if str(name) in ("()", "class") or is_external:
                yield f"{key}.{name}", str(item)
            else:
                yield from _factories(item, f"{key}.{name}")


def named_code(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every (dotted key, name) in a config that names code: targets, and names with a colon."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            dotted = f"{key}.{name}" if key else str(name)
            if str(name) in _ALWAYS_CODE and item is not None:
                yield dotted, str(item)
            elif str(name) == "name" and isinstance(item, str) and ":" in item and dotted != "sweep.name":
                yield dotted, item
            else:
                yield from named_code(item, dotted)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from named_code(item, f"{key}[{index}]")


def _within(name: str, modules: Iterable[str]) -> bool:
    module = name.partition(":")[0]
    return any(module == trusted or module.startswith(f"{trusted}.") for trusted in modules)


def is_defined_there(name: str) -> bool:
    """Return whether a module defines a name, or imports it from its own package. Nothing is imported.

    `name` is `package.module:name` or `package.module.name`. A name that is not found in the Python files of an
    installed package counts as defined, because such a package may have code in other files.
    """
    module, colon, attribute = name.partition(":")
    if colon:
        path = attribute.split(".")
    else:
        parts = name.split(".")
        # The longest part that is a module; Python looks up the rest in it.
        lengths = [length for length in range(len(parts) - 1, 0, -1) if source_file(".".join(parts[:length]))]
        length = lengths[0] if lengths else len(parts) - 1
        module, path = ".".join(parts[:length]), parts[length:]
    verdict = _is_defined(module, path, module.partition(".")[0], frozenset())
    return not is_users_own(module) if verdict is None else verdict


def _is_defined(module: str, path: Sequence[str], package: str, seen: frozenset[tuple[str, str]]) -> bool | None:
    """Return whether `package` defines the first name of a path of attributes in a module; None if that is unknown."""
    file = source_file(module)
    place = (module, path[0]) if path else (module, "")
    if module.partition(".")[0] != package or not path or place in seen:
        return False
    if file is None:
        return None
    try:
        tree, _ = parsed(file)
    except SyntaxError:
        return None  # reported elsewhere
    seen |= {place}
    inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
    verdicts = [_is_own_binding(node, module, inside, path, package, seen) for node in _statements(tree.body)]
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and those inside its `if`, `try` and `with` statements."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            blocks = [getattr(node, block, []) for block in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            yield from _statements(statement for block in blocks for statement in block)


def _is_own_binding(
    node: ast.stmt, module: str, inside: str, path: Sequence[str], package: str, seen: frozenset[tuple[str, str]]
) -> bool | None:
    """Return whether a statement binds the first name of `path` to code of `package`; None if it binds another name."""
    name = path[0]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return True if node.name == name else None
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname == name:
                return _is_defined(alias.name, path[1:], package, seen)
            if alias.asname is None and alias.name.partition(".")[0] == name:
                return False
    if isinstance(node, ast.ImportFrom):
        origin = origin_of(node, inside.split(".") if inside else [])
        for alias in node.names:
            if alias.name == "*" and origin.partition(".")[0] == package:
                return _is_defined(origin, path, package, seen)
            if (alias.asname or alias.name) == name:
                if source_file(f"{origin}.{alias.name}"):  # a module
                    return _is_defined(f"{origin}.{alias.name}", path[1:], package, seen)
                return _is_defined(origin, [alias.name, *path[1:]], package, seen)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
        return None
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    while isinstance(value, ast.Attribute):
        value = value.value
    # An alias of something imported (`run = subprocess.run`) defines nothing.
    return _is_defined(module, [value.id], package, seen) if isinstance(value, ast.Name) else True


def is_users_own(module: str) -> bool:
    """Return whether the module is neither in the standard library nor installed, without importing it."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in SHIPPED:
        return False
    spec = importlib.util.find_spec(top)
    origins = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    places = [Path(origin) for origin in origins if origin and origin not in ("built-in", "frozen", "namespace")]
    return bool(places) and not any(map(is_installed, places))


def _check_hydra(hydra: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError if Hydra's section of a composed config names untrusted code, or does not fit this program."""
    check_hydra_part(hydra, overrides)
    errors = list(_shadowed(hydra))
    if hydra.job.chdir:
        errors.append("hydra.job.chdir=true: each trial runs in its folder anyway, and paths are relative to this one")
    if OmegaConf.is_dict(hydra.verbose):
        errors.append("hydra.verbose must be true, false, or names of loggers")
    if errors:
        raise ConfigError(errors)


CHECKS = Checks(file=check_file, hydra=_check_hydra, folders=shipped_dirs()[1:])
"""What every config passes that Hydra composes."""


def _shadowed(hydra: DictConfig) -> Iterator[str]:
    """Yield a line for every chosen config that exists in the user's folders and among ours: Hydra would take ours.

    Identical copies are allowed.
    """
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
