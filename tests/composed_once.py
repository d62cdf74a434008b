"""Composing with Hydra in tests: the same shipped files are looked up and merged only once in a process."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hydra._internal.defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import AnyNode, DictConfig

from orchestrator.config.search_path import shipped_dirs
from orchestrator.config.yaml_private import copied_metadata, replaced

LIST = hydra_defaults._create_defaults_list
MERGE = ConfigLoaderImpl._compose_config_from_defaults_list


def _copied_value(node: AnyNode, memo: dict[int, Any]) -> AnyNode:
    copied = object.__new__(AnyNode)
    metadata = copied_metadata(node._metadata, memo)
    vars(copied).update({**vars(node), "_metadata": metadata, "_flags_cache": None})
    return copied


def _copied_section(section: DictConfig, memo: dict[int, Any]) -> DictConfig:
    copied = object.__new__(DictConfig)
    content = vars(section)["_content"]
    if isinstance(content, dict):  # and neither missing nor an interpolation
        content = {key: copy.deepcopy(node, memo) for key, node in content.items()}
        for node in content.values():
            vars(node)["_parent"] = copied
    metadata = copied_metadata(section._metadata, memo)
    vars(copied).update({**vars(section), "_metadata": metadata, "_content": content, "_flags_cache": None})
    return copied


@contextmanager
def composed_once() -> Iterator[None]:
    """Context in which choices of shipped files have the defaults list, and the merged config, of the time before."""
    # These are three quarters of the time of a composition, of which the tests make thousands.
    shipped = {"pkg://hydra.conf", "structured://", *(f"file://{folder}" for folder in shipped_dirs())}
    lists: dict[Any, Any] = {}
    merged: dict[Any, DictConfig] = {}

    def places(repo: Any) -> tuple[str, ...]:
        """Return where Hydra looks for files; nothing where a user has files, which a test may change."""
        sources = tuple(source.full_path() for source in repo.get_sources())
        return sources if {*sources} <= shipped else ()

    def listed(repo: Any, config_name: Any, overrides: Any, prepend_hydra: bool, skip_missing: bool) -> Any:
        choices = (overrides.append_group_defaults, overrides.override_choices, overrides.deletions)
        key = (places(repo), config_name, prepend_hydra, skip_missing, repr(choices))
        if not key[0]:
            return LIST(repo, config_name, overrides, prepend_hydra, skip_missing)
        if key not in lists:
            lists[key] = LIST(repo, config_name, overrides, prepend_hydra, skip_missing), overrides
        result, before = lists[key]
        for name in ("known_choices", "known_choices_per_group", "override_metadata", "deletions"):
            setattr(overrides, name, copy.deepcopy(getattr(before, name)))
        return result

    def merge(loader: Any, defaults: Any, repo: Any) -> DictConfig:
        # The checks of files depend on the choices in Hydra's own section that the command line names. Hydra's own
        # loader, which a test may use, has no checks.
        key = (places(repo), *((one.config_path, one.package, one.is_self, one.primary) for one in defaults))
        typed = getattr(loader, "_typed", {"hydra"})
        if not key[0] or any(name.startswith("hydra") for name in typed):
            return MERGE(loader, defaults, repo)
        if key not in merged:
            merged[key] = MERGE(loader, defaults, repo)
        return copy.deepcopy(merged[key])

    with (
        # As OmegaConf does, but without the constructors, which take half of the time of a copy.
        replaced(AnyNode, "__deepcopy__", _copied_value),
        replaced(DictConfig, "__deepcopy__", _copied_section),
        replaced(hydra_defaults, "_create_defaults_list", listed),
        replaced(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge),
    ):
        yield
