"""One attempt at a trial of ours, which Tune calls a trial: what Tune may know of it, and what it may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial

from orchestrator.backends.conduct import Conduct
from orchestrator.backends.quarantine import Quarantine
from orchestrator.journal.outcome import Outcome
from orchestrator.storage.secrets import NO_SECRETS, Secrets
from sweeps.trial import TrialSpec

_CONFIGS = ("config", "_Trial__unresolved_config")
"""Where a trial of Tune's has its config."""


@dataclass(frozen=True, kw_only=True)
class Starting:
    """What is the same for all attempts of one run, until a GPU is lost."""

    results_dir: Path
    """Absolute."""
    conduct: Conduct = field(default_factory=Conduct)
    quarantine: Quarantine = field(default_factory=Quarantine)
    secrets: Secrets = NO_SECRETS

    def given(self, spec: TrialSpec) -> dict[str, Any]:
        """The config of the supervisor of such an attempt."""
        return {
            "trial": spec,
            "trial_dir": str(self.results_dir / "trials" / spec.trial_id),
            "conduct": self.conduct,
            "lost": sorted(self.quarantine.devices),
        }


class Attempt(Trial):  # type: ignore[misc]
    """Tune, its state on a disk and its callbacks know the trial by what is `shown`, and by figures.

    What the gang is started with may hold secrets: a config's values from the environment. It is gone from here once
    the gang has it.
    """

    def __init__(self, name: str, spec: TrialSpec, *, given: Mapping[str, Any], shown: Mapping[str, Any], **known: Any):
        """`name` is that of Tune's trainable, `given` the supervisor's config; `known` are Tune's own."""
        self.spec = spec
        self.rows: Sequence[Mapping[str, Any]] = ()
        """Those of the latest result."""
        self.outcome: Outcome | None = None
        """How it ended, once the supervisor has said so."""
        self._shown = dict(shown)
        creators = {"trial_name_creator": attrgetter("spec.label"), "trial_dirname_creator": attrgetter("trial_id")}
        super().__init__(name, config={**given, **shown}, **creators, **known)

    def taken(self) -> None:
        """The gang has its config."""
        self.__dict__.update(dict.fromkeys(_CONFIGS, self._shown))

    def __getstate__(self) -> dict[str, Any]:
        """What Tune writes down."""
        state: dict[str, Any] = super().__getstate__()
        kept = {key: value for key, value in state.items() if key not in ("spec", "rows", "outcome", "_shown")}
        return kept | dict.fromkeys(_CONFIGS, self._shown)
