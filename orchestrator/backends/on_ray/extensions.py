"""Extensions for users of Ray Tune: their callbacks, and a place for Tune's own copy of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from orchestrator.storage.secrets import NO_SECRETS, Secrets
from sweeps.mistakes import MistakesError

if TYPE_CHECKING:
    from ray.tune import Callback


@dataclass(frozen=True, kw_only=True)
class Extensions:
    """The extensions for one run of Tune."""

    callbacks: Sequence[Callback] = ()
    storage_path: str | None = None
    """A folder or URI; None: Tune's copy goes to a scratch folder."""
    secrets: Secrets = NO_SECRETS
    """Values hidden from the callbacks and the copy."""

    @staticmethod
    def of(section: Mapping[str, Any], secrets: Secrets = NO_SECRETS) -> Extensions:
        """Create them from the config's section `tune`. Raises MistakesError with everything that fails."""
        callbacks, mistakes = list["Callback"](), list[str]()
        for index, given in enumerate(section["callbacks"]):
            key = f"tune.callbacks[{index}]"
            try:
                made = resolve_name(given["_target_"])(**{name: v for name, v in given.items() if name != "_target_"})
            except Exception as error:
                mistakes.append(f"{key}={given['_target_']!r}: {type(error).__name__}: {error}")
                continue
            from ray.tune import Callback

            callbacks.append(made)
            if not isinstance(made, Callback):
                mistakes.append(f"{key}={given['_target_']!r} makes a {type(made).__name__}, not a ray.tune.Callback")
        if mistakes:
            raise MistakesError(mistakes)
        return Extensions(callbacks=callbacks, storage_path=_place(section["storage_path"]), secrets=secrets)

    def name(self, results_dir: Path) -> str:
        """The name of Tune's experiment; if Tune's copy is kept, each run of the sweep has its own."""
        return f"{results_dir.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}" if self.storage_path else "sweep"


def _place(path: str | None) -> str | None:
    """The path as Tune needs it: absolute, or a URI."""
    return path if path is None or "://" in path else str(Path(path).expanduser().absolute())
