"""Records of trials that ended, made from what matters to a test."""

from pathlib import Path
from typing import Any

from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind, TrialRecord
from orchestrator.store.results_folder import ResultsFolder
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


def write_results(root: Path, *arguments: str, fingerprint: Any = None, sweep: str = "demo") -> None:
    """A folder of results of three trials on one GPU and three on two; `arguments` are the recorded command line."""
    folder = ResultsFolder(root)
    folder.create()
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": fingerprint or {}, "driver": {"arguments": list(arguments)}})
        for gpus in (1, 2):
            for seed in range(3):
                metrics = {"samples_per_s": 100.0 * gpus + seed, "samples": 1000, "val_accuracy": 0.9, "accuracy": 0.9}
                journal.append(Kind.FINISHED, record_of(gpus, seed, metrics=metrics, sweep=sweep).to_json())
