"""All uses of Hydra's private and undocumented names, as of Hydra 1.3 (hydra-core >=1.3.8,<1.4).

Hydra offers no public way to list config groups, to add a config folder before the primary config is read, to keep the
state of a program that uses Hydra itself, to parse overrides, or to parse its own flags. A test checks each name here.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

PLUGINS = "hydra._internal.core_plugins."
"""The prefix of Hydra's own launchers and sweepers."""

PLAIN_SWEEPER = f"{PLUGINS}basic_sweeper.BasicSweeper"
"""The sweeper that runs every combination."""


def flags_parser() -> ArgumentParser:
    """Return the parser of Hydra's own flags."""
    return get_args_parser()


def flag_names() -> list[str]:
    """Return all of Hydra's flags: `--cfg`, `-c`, …"""
    return [flag for action in get_args_parser()._actions for flag in action.option_strings]


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar. Raises HydraException."""
    return OverridesParser.create().parse_overrides(list(overrides))


@contextmanager
def initialised_at(folder: Path, own: Path | None) -> Iterator[None]:
    """Context with Hydra initialised for a config folder, and for `own` before it, as with Hydra's `--config-dir`.

    Restores the state of a program that uses Hydra itself.
    """
    others, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(folder), version_base="1.3", job_name="orchestrator"):
            if own is not None:  # the primary config is looked up before any override is read
                loader = cast(ConfigLoaderImpl, GlobalHydra.instance().config_loader())
                places = loader.config_search_path
                places.prepend(provider="command-line", path=f"file://{own}", anchor=SearchPathQuery(provider="schema"))
                loader.repository.initialize_sources(places)
            yield
    finally:
        GlobalHydra.instance().hydra = others


def groups_in(group: str, primary: str, search_path: list[str]) -> list[str]:
    """Return the names of the groups inside a group."""
    return GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.GROUP, primary, search_path)


def choices_in(group: str, primary: str, search_path: list[str]) -> list[str]:
    """Return the names of the configs inside a group."""
    return GlobalHydra.instance().config_loader().get_group_options(group, ObjectType.CONFIG, primary, search_path)


def overrides_of_this_job() -> tuple[list[str], list[str]]:
    """Return the overrides of the sweep that Hydra is running now: the config's and Hydra's own."""
    now = HydraConfig.get().overrides
    return list(now.task), list(now.hydra)
