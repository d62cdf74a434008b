"""Extensions for users of Ray Tune: their callbacks, and a place for Tune's copy of the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name

from ray.tune import Callback

from orchestrator.config.settings import TuneSection
from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Extensions:
    """The extensions for one run of Tune."""

    callbacks: Sequence[Callback] = ()
    storage_path: str | None = None  # a folder or URI; None: Tune's copy goes to a scratch folder
    secrets: Secrets = NO_SECRETS  # values hidden from the callbacks and the copy

    @staticmethod
    def of(section: TuneSection, secrets: Secrets = NO_SECRETS) -> Extensions:
        """Create them from the config's section `tune`. Raises ConfigError with everything that fails."""
        callbacks: list[Callback] = []
        errors: list[str] = []
        for index, given in enumerate(section.callbacks):
            key = f"tune.callbacks[{index}]"
            try:
                made = resolve_name(given["_target_"])(**{name: v for name, v in given.items() if name != "_target_"})
            except Exception as error:
                errors.append(f"{key}={given['_target_']!r}: {type(error).__name__}: {error}")
                continue
            callbacks.append(made)
            if not isinstance(made, Callback):
                errors.append(f"{key}={given['_target_']!r} makes a {type(made).__name__}, not a ray.tune.Callback")
        if errors:
            raise ConfigError(errors)
        storage_path = section.storage_path
        if storage_path and "://" not in storage_path:  # Tune needs an absolute path or a URI
            storage_path = str(Path(storage_path).expanduser().absolute())
        return Extensions(callbacks=callbacks, storage_path=storage_path, secrets=secrets)

    def name(self, results_dir: Path) -> str:
        """The name of Tune's experiment; if Tune's copy is kept, each run of the sweep has its own."""
        return f"{results_dir.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}" if self.storage_path else "sweep"
