"""Reading of config files with OmegaConf: fast, and with limits to what a small text may stand for.

Its private names are those of omegaconf 2.3, each checked by a test.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import omegaconf._utils
import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container, Metadata
from omegaconf.errors import OmegaConfBaseException
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Context in which an attribute of a class or module has another value; a class may have inherited it so far."""
    before = {key: own for key, own in vars(owner).items() if key == name}
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        for key, own in before.items():
            setattr(owner, key, own)


_loaded: dict[str, DictConfig | ListConfig] = {}  # configs by the text of their files


def _load_once(file_: str | Path | IO[Any]) -> DictConfig | ListConfig:
    """Return the config in an open file, parsed only the first time; raises what `OmegaConf.load` raises."""
    file = cast(IO[Any], file_)  # Hydra's readers have opened it
    text = file.read()
    if text not in _loaded:
        file.seek(0)
        try:
            # A composition reads a dozen files: with the pure parser, that is a quarter of its time.
            with replaced(omegaconf._utils, "get_yaml_loader", _yaml_loader):
                _loaded[text] = OmegaConf.load(file)
        except AssertionError:  # a text that YAML reads as a number, when OmegaConf parses it once more: '1'
            raise yaml.YAMLError(f"{file.name} has a single value, not a section") from None
    # Hydra changes what it has loaded. A copy takes less than half of the time of parsing.
    return copy.deepcopy(_loaded[text])


def copied_metadata(metadata: Metadata, memo: Mapping[int, object]) -> Metadata:
    """Return a copy of what OmegaConf knows about a node, which has hardly anything but names and types."""
    # OmegaConf copies a config many times in a composition, and the generic copy of metadata is a third of that time.
    copied = object.__new__(type(metadata))
    cache = metadata.resolver_cache
    own = {"flags": dict(metadata.flags or {}), "resolver_cache": copy.deepcopy(cache) if cache else defaultdict(dict)}
    vars(copied).update({**vars(metadata), **own})
    return copied


class LoadingOnce(OmegaConf):
    """OmegaConf as Hydra's readers of config files see it; a user's code has its own."""

    load = staticmethod(_load_once)


_pure_yaml_loader = omegaconf._utils.get_yaml_loader


@functools.cache
def _yaml_loader() -> type:
    """Return OmegaConf's YAML loader with libyaml's parser, which is several times faster; the pure one without it."""

    class Plain(_pure_yaml_loader()):  # type: ignore[misc]
        """Reads values that JSON has, too."""

        def construct_document(self, node: yaml.Node) -> Any:
            # OmegaConf copies what an alias names: nine lines can stand for a thousand million values.
            if _size(node, {}) > _MOST_VALUES:
                raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values, with those that aliases repeat")
            try:
                return super().construct_document(node)
            except (AttributeError, KeyError, TypeError) as error:
                raise yaml.YAMLError(f"a tag such as !!bool does not fit its value: {error}") from error

    Plain.add_constructor("tag:yaml.org,2002:binary", SafeConstructor.construct_undefined)
    if not yaml.__with_libyaml__:
        return Plain
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class Loader(CParser, Plain):
        """Parses with libyaml, then resolves and constructs as OmegaConf does: floats, duplicate keys."""

        def __init__(self, stream: Any) -> None:
            CParser.__init__(self, stream)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

    return Loader


_MOST_VALUES = 100_000  # the most values of a config file


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Return the number of values in a node, with all repetitions by aliases; infinite if it contains itself."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # for an alias within the node
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in (*items, *itertools.chain(*pairs)))
    return sizes[id(node)]


_MOST_INTERPOLATIONS = 1000  # the most of a config; 40 lines can stand for a thousand million


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed config as plain values. Raises OmegaConfBaseException, also for too many interpolations."""
    resolve, count = Container._resolve_interpolation_from_parse_tree, itertools.count(1)

    def counted(*given: Any, **options: Any) -> Any:
        if next(count) > _MOST_INTERPOLATIONS:
            raise OmegaConfBaseException(f"more than {_MOST_INTERPOLATIONS:,} interpolations")
        return resolve(*given, **options)

    # OmegaConf resolves what an interpolation names each time anew.
    with replaced(Container, "_resolve_interpolation_from_parse_tree", counted):
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
