"""Files of the user's own that would be passed over, because a shipped config has their name."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from orchestrator.composition.search_path import config_dir, folder_of


def shadowed(hydra: DictConfig) -> Iterator[str]:
    """A line for every choice made that is a file of the user's own, and of ours: Hydra would take ours.

    `hydra` is Hydra's own part of a composed config. A copy that says the same is no mistake.
    """
    folders = [folder for folder in map(folder_of, hydra.searchpath) if folder]
    for group, choice in hydra.runtime.choices.items():
        shipped = config_dir() / f"{group}/{choice}.yaml"
        for own in (folder / f"{group}/{choice}.yaml" for folder in folders if shipped.is_file()):
            if own.is_file() and own.read_bytes() != shipped.read_bytes():
                yield f"{group}={choice}: the shipped config of this name comes before {own}; give yours another name"
