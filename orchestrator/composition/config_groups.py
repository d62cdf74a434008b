"""The config groups and their choices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType

from orchestrator.composition.search_path import is_search_path, primary


class Groups:
    """The config groups and their choices, including the user's own on the search path."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self._search_path = [override for override in overrides if is_search_path(override)]

    @cached_property
    def names(self) -> list[str]:
        """The names of all groups. Makes Hydra read the primary config again, so call it only if needed."""
        return [name for name in self._listed("", ObjectType.GROUP) if name != "hydra"]

    def options(self, group: str) -> list[str]:
        """The choices in a group; those in its subfolders as `folder/choice`.

        A folder of the same name as a choice belongs to that choice.
        """
        own = self._listed(group, ObjectType.CONFIG)
        folders = [folder for folder in self._listed(group, ObjectType.GROUP) if folder not in own]
        return own + [
            f"{folder}/{name}" for folder in folders for name in self._listed(f"{group}/{folder}", ObjectType.CONFIG)
        ]

    def _listed(self, group: str, kind: ObjectType) -> list[str]:
        loader = GlobalHydra.instance().config_loader()
        return loader.get_group_options(group, kind, primary(), self._search_path)
