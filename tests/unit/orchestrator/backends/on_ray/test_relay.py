"""What is told of a gang whose supervisor failed: Ray's account of it, without its advice."""

from pathlib import Path

import pytest

from orchestrator.backends.on_ray.relay import _broken
from orchestrator.journal.outcome import Cause
from sweeps.status import Status

KILLED = (
    "ray.exceptions.ActorDiedError: The actor died.\nThe actor is dead because its worker process has died."
    " Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2."
    " End of file. Some common causes include: (1) the process was killed by the OOM killer, (2) …"
)
WITHOUT_NODE = (
    "The actor is dead because its owner has died. Owner Ip address: 192.0.2.2 Owner worker exit type: SYSTEM_ERROR"
    " Worker exit detail: Owner's node has crashed."
)


@pytest.mark.parametrize(
    ("account", "note"),
    [
        (KILLED, "killed from outside, as by SIGKILL or the kernel's out-of-memory killer"),
        (WITHOUT_NODE, "its node was lost"),
        ("Traceback\nRuntimeError: of our own", "RuntimeError: of our own"),
        ("", "no reason known"),
        (
            "The actor never ran - it was cancelled.",
            "The actor never ran - it was cancelled."
            " If the cluster was started without a token, set RAY_AUTH_MODE=disabled",
        ),
    ],
)
def test_a_gang_whose_supervisor_failed_says_why_in_short(account: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text(account)
    outcome = _broken(str(tmp_path / "error.txt"), 1.0)
    assert (outcome.status, outcome.cause, outcome.trace) == (Status.FAILED, Cause.NODE, account)
    assert outcome.note == f"the gang's supervisor failed: {note}"


def test_where_tune_left_no_account_there_is_no_reason() -> None:
    assert _broken(None, 1.0).note.endswith("no reason known")
