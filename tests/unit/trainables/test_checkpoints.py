import io
import json
import logging
import os
import pickle
import stat
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.trainables.ranks import request, run
from trainables import checkpoints
from trainables.checkpoints import CheckpointPace
from trainables.context import Context


def context(folder, rank=0, world_size=1, **other):
    return Context.alone(trial_dir=folder, rank=rank, world_size=world_size, **other)


def files(folder):
    return sorted(path.name.partition("-")[0] for path in (folder / "checkpoint").iterdir())


def test_checkpoint_restores_state_and_report(tmp_path):
    trial = context(tmp_path)
    assert trial.restored() is None
    trial.report({"epoch": 1, "loss": np.float32(0.5)})
    trial.summarize({"accuracy": torch.tensor(0.25)})
    trial.remark("by the way")
    weights = {"a": torch.arange(3.0), "b": torch.tensor([1], dtype=torch.bfloat16)}
    trial.checkpoint({"epoch": 1, "weights": weights}, {"noise": [1.5, None]})
    trial.report({"epoch": 2, "loss": 0.1})

    rows: list[dict[str, Any]] = []
    again = context(tmp_path, emit=rows.append)
    state = again.restored()
    assert state["epoch"] == 1 and state["noise"] == [1.5, None]
    assert torch.equal(state["weights"]["a"], weights["a"]) and torch.equal(state["weights"]["b"], weights["b"])
    assert rows == [{"epoch": 1, "loss": 0.5}] and again.remarks == ["by the way"]
    assert again.metrics == {"epochs": 1, "loss": 0.5, "accuracy": 0.25}


def test_two_generations_are_kept_without_code(tmp_path):
    trial = context(tmp_path)
    for epoch in range(4):
        trial.checkpoint({"epoch": epoch})
    assert files(tmp_path) == ["00000003", "00000004"]
    for path in (tmp_path / "checkpoint").iterdir():
        assert torch.load(path, weights_only=True)["state"]["epoch"] in (2, 3)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


class Evil:
    """An object whose unpickling calls `os.mkdir`."""

    def __init__(self, witness):
        self._witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self._witness),)


def test_hostile_file_with_right_digest_runs_no_code(tmp_path):
    witness, content = tmp_path / "witness", io.BytesIO()
    torch.save({"owner": ["alone", 1], "state": {}, "own": {}, "reported": Evil(witness)}, content)
    checkpoints.Generations(folder=tmp_path / "checkpoint", rank=0, world_size=1).write(1, content.getvalue())
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        context(tmp_path).restored()
    assert not witness.exists()


@pytest.mark.parametrize("damage", [lambda content: content[:-7], lambda content: content[:99] + b"\0" + content[100:]])
def test_damaged_checkpoint_is_skipped_with_a_remark(tmp_path, damage, caplog):
    trial = context(tmp_path)
    for epoch in (1, 2):
        trial.checkpoint({"epoch": epoch, "text": "x" * 300})
    newest = max((tmp_path / "checkpoint").iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    with caplog.at_level(logging.WARNING):
        again = context(tmp_path)
        state = again.restored()
    assert state["epoch"] == 1
    assert len(again.remarks) == 1 and newest.name in again.remarks[0]
    again.checkpoint({"epoch": 2})
    assert context(tmp_path).restored() == {"epoch": 2}


def test_a_pipe_is_a_damaged_checkpoint(tmp_path):
    context(tmp_path).checkpoint({"epoch": 1})
    (written,) = (tmp_path / "checkpoint").iterdir()
    written.unlink()
    os.mkfifo(written)
    assert checkpoints.Generations(folder=tmp_path / "checkpoint", rank=0, world_size=1).damaged() == [written.name]


def test_crash_while_writing_leaves_the_previous_generation(tmp_path, monkeypatch):
    trial = context(tmp_path)
    trial.checkpoint({"epoch": 1})

    def crash(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        trial.checkpoint({"epoch": 2})
    assert context(tmp_path).restored() == {"epoch": 1} and files(tmp_path) == ["00000001"]


def test_full_disk_is_a_remark(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    trial = context(tmp_path)
    for epoch in (1, 2):
        trial.checkpoint({"epoch": epoch})
    assert len(trial.remarks) == 1 and os.strerror(28) in trial.remarks[0]
    assert context(tmp_path).restored() is None


def test_ranks_restore_the_last_common_generation(tmp_path):
    ranks = [context(tmp_path, rank, 2) for rank in range(2)]
    for epoch in (1, 2):
        for rank in ranks:
            rank.checkpoint({"epoch": epoch}, {"mine": (epoch, rank.rank)})
    ranks[0].checkpoint({"epoch": 3}, {"mine": (3, 0)})  # and the other was killed before
    for rank in (1, 0):
        assert context(tmp_path, rank, 2).restored() == {"epoch": 2, "mine": (2, rank)}


def test_checkpoint_of_another_trial_is_ignored(tmp_path):
    context(tmp_path).checkpoint({"epoch": 1})
    assert context(tmp_path, trial_id="another").restored() is None


@pytest.mark.parametrize("value", [object(), np.float64(1.0), {1: {2: print}}])
def test_values_that_cannot_be_read_back_are_refused(tmp_path, value):
    with pytest.raises(TypeError, match=r"state\['state'\]\['value'\]"):
        context(tmp_path).checkpoint({"value": value})


def test_without_folder_nothing_is_kept():
    context(None).checkpoint({"value": object()})
    assert context(None).restored() is None


def test_failed_trial_keeps_its_checkpoint(tmp_path):
    asked = request("tests.unit.trainables.polluters:keep_and_fail", trial_dir=str(tmp_path))
    assert run(asked)["status"] == "failed" and files(tmp_path) == ["00000001"]


def test_looking_for_a_checkpoint_imports_no_torch(tmp_path):
    code = (
        "import sys; from pathlib import Path; from trainables.context import Context\n"
        "trial = Context.alone(trial_dir=Path(sys.argv[1]))\n"
        "assert trial.restored() is None\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"


@pytest.mark.parametrize(("cost_s", "due_s"), [(0.0, 30.0), (0.2, 30.0), (0.5, 50.0)])
def test_checkpoints_take_one_percent_of_the_time(cost_s, due_s):
    pace = CheckpointPace(every_s=30.0)
    assert not pace.due(29.9) and pace.due(30.0)
    pace.kept(31.0, cost_s)
    assert not pace.due(31.0 + due_s - 0.1) and pace.due(31.0 + due_s)
