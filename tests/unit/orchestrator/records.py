"""Records of trials that ended, made from what matters to a test."""

from typing import Any

from orchestrator.store.record import TrialRecord
from sweeps.status import Status


def record_of(
    gpus: float = 1,
    seed: int = 0,
    status: Status = Status.OK,
    *,
    batch: int = 32,
    axes: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    **fields: Any,
) -> TrialRecord:
    """A trial's record; batch axes follow the device batch."""
    asked = {"gpus": gpus, "device_batch_size": batch, "lr_rule": fields.get("lr_rule", "none"), **(axes or {})}
    cell_id = "-".join(str(value) for value in asked.values())
    given: dict[str, Any] = {
        "trial_id": f"{cell_id}-{seed}",
        "cell_id": cell_id,
        "sweep": "demo",
        "attempt": 1,
        "status": status,
        "note": "",
        "axes": asked | {"seed": seed},
        "gpus": gpus,
        "ranks": 1,
        "device": "cuda",
        "strategy": "ddp",
        "timing": "device",
        "global_batch_size": int(batch * gpus),
        "device_batch_size": batch,
        "grad_accum_steps": 1,
        "lr_rule": "none",
        "lr_multiplier": 1.0,
        "lr": 0.1,
        "seed": seed,
        "wall_s": 10.0,
        "finished_at": "2026-01-01T00:00:00+00:00",
        "metrics": metrics or {},
        "provenance": {"device_model": "NVIDIA H200"} if status is Status.OK else {},
    }
    return TrialRecord(**given | fields)
