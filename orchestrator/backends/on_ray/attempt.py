"""One attempt at a trial, which to Tune is a trial: the bundles it needs, and what Tune may know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from orchestrator.backends.conduct import Conduct
from orchestrator.backends.on_ray.cluster_spec import NODE_ID
from orchestrator.backends.quarantine import Quarantine
from orchestrator.journal.outcome import Outcome
from orchestrator.scheduling.node import Node
from orchestrator.storage.secrets import NO_SECRETS, Secrets
from sweeps.trial import Gang, TrialSpec

_CONFIGS = ("config", "_Trial__unresolved_config")
"""Attributes in which a Tune trial holds its config."""


class Bundles(PlacementGroupFactory):  # type: ignore[misc]
    """A gang's placement group, reserved as a whole or not at all; the supervisor's empty bundle comes first."""

    def __init__(self, gang: Gang, nodes: Sequence[Node] = ()) -> None:
        """`nodes` has the node of each rank; without them Ray chooses."""
        each = {"CPU": gang.cpus_per_rank, "GPU": gang.gpus_per_rank}
        chosen = {"bundle_label_selector": [{NODE_ID: node.node_id} for node in nodes]} if nodes else {}
        super().__init__([{}] + [each] * gang.ranks, strategy="PACK", **chosen)
        self._node_ids = frozenset(node.node_id for node in nodes)

    def may_hold(self, other: Bundles) -> bool:
        """Whether this gang might occupy a node that the other one needs."""
        mine, others = self._node_ids, other._node_ids
        return not mine or not others or not mine.isdisjoint(others)


@dataclass(frozen=True, kw_only=True)
class Starting:
    """What all attempts of one run have in common."""

    results_dir: Path
    """Absolute."""
    conduct: Conduct = field(default_factory=Conduct)
    quarantine: Quarantine = field(default_factory=Quarantine)
    secrets: Secrets = NO_SECRETS

    def given(self, spec: TrialSpec) -> dict[str, Any]:
        """The supervisor's config for an attempt at this trial."""
        return {
            "trial": spec,
            "trial_dir": str(self.results_dir / "trials" / spec.trial_id),
            "conduct": self.conduct,
            "lost": sorted(self.quarantine.devices),
        }


class Attempt(Trial):  # type: ignore[misc]
    """A Tune trial that shows Tune, its saved state and its callbacks nothing but `shown` and numbers.

    The config that the gang is started with may contain secrets from the environment; it is removed from here as soon
    as the gang has it.
    """

    def __init__(self, name: str, spec: TrialSpec, *, given: Mapping[str, Any], shown: Mapping[str, Any], **known: Any):
        """`name` is the name of Tune's trainable, `given` the supervisor's config; `known` are Tune's arguments."""
        self.spec = spec
        self.rows: Sequence[Mapping[str, Any]] = ()
        """The rows of the latest result."""
        self.outcome: Outcome | None = None
        """How it ended; None until the supervisor has reported that."""
        self._shown = dict(shown)
        creators = {"trial_name_creator": attrgetter("spec.label"), "trial_dirname_creator": attrgetter("trial_id")}
        super().__init__(name, config={**given, **shown}, **creators, **known)

    def taken(self) -> None:
        """Remove the config, which the gang has by now."""
        self.__dict__.update(dict.fromkeys(_CONFIGS, self._shown))

    def __getstate__(self) -> dict[str, Any]:
        """The state that Tune saves."""
        state: dict[str, Any] = super().__getstate__()
        kept = {key: value for key, value in state.items() if key not in ("spec", "rows", "outcome", "_shown")}
        return kept | dict.fromkeys(_CONFIGS, self._shown)
