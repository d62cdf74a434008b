"""A results directory with ended, disturbed and hostile trials, and the server of its page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.cli.watch_page import Server, WatchedSweep
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.secrets import Secrets
from sweeps.status import Status
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request

EVIL = "<script>alert('x')</script>"
SECRET = "correct horse battery staple"
RUNNING = "running-1"
CONFIG = "{gpus: 2, axes: {gpus: 2, seed: 0}, batch: {global_batch_size: 64, shares: [32, 32]}, lr: {rule: sqrt}}"


def write_sweep(journal: Journal, folder: ResultsFolder) -> None:
    """Journal four ended trials and one that runs, with the files of each."""
    journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {}, "planned": 6})
    journal.append(Kind.QUEUED, {"shares_s": {RUNNING: 5.0, "waiting-1": 5.0}})
    # Both cells have the same mean accuracy, so that both may lead.
    for gpus, seed, rate, accuracy in ((1, 0, 1000.0, 0.625), (2, 0, 1800.0, 0.5), (2, 1, 9000.0, 0.75)):
        metrics = {"samples_per_s": rate, "val_accuracy": accuracy, "foreign_cpu": 0.9 * seed, "epochs": 3}
        record = record_of(gpus, seed, metrics=metrics, note=EVIL if seed else "", axes={"model": EVIL})
        write_end(journal, folder, record.to_json() | {"trial_id": f"ok-{gpus}-{seed}"})
    failed = record_of(4, status=Status.FAILED, note=f"password={SECRET}", trial_id="failed-1")
    write_end(journal, folder, failed.to_json())
    journal.append(Kind.STARTED, {"trial_id": RUNNING, "attempt": 1})
    folder.trial(RUNNING).mkdir()
    folder.config(RUNNING).write_text(CONFIG)
    write_epochs(folder, 2)
    (folder.trial(RUNNING) / "rank0.log").write_text(f"{EVIL}\nkey {SECRET}\nlast line\n")


def write_end(journal: Journal, folder: ResultsFolder, record: dict[str, object]) -> None:
    journal.append(Kind.FINISHED, record)
    trial = folder.trial(str(record["trial_id"]))
    trial.mkdir()
    (trial / "metrics.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n{"epoch": 2, "loss": 1.0}\n')


def write_epochs(folder: ResultsFolder, epochs: int) -> None:
    rows = (f'{{"epoch": {epoch}, "loss": {1 / epoch}, "val_accuracy": 0.75}}\n' for epoch in range(1, epochs + 1))
    folder.metrics(RUNNING).write_text("".join(rows))


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Serve the page of the folder in a thread."""
    asked = request(results_dir=folder.parent, name=folder.name)
    with Server(WatchedSweep(asked, Secrets({SECRET: "<hidden>"}))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
