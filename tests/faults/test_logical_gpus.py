"""Tests of which GPUs trials get; Ray's GPUs are logical here."""

from dataclasses import replace

import pytest

from orchestrator.backends.ray.backend import RayBackend
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.queue import TrialQueue
from sweeps.layout import Gang
from sweeps.rank_exit import Cause
from sweeps.status import Status
from tests.contract.trials import Recorder, request, trial

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def backend():
    ray_backend = RayBackend(request(), Node(name="here", cpus=2, gpus=2))
    yield ray_backend
    ray_backend.close()


def on_gpu(name, *, gpus=1, timing="shared", **config):
    gang = Gang(ranks=1, gpus_per_rank=gpus, cpus_per_rank=1)
    return replace(trial(name, "on_gpus", timing=timing, **config), gang=gang)


@pytest.mark.parametrize(("timing", "gpus"), [("device", {"0", "1"}), ("shared", {"0"})])
def test_timed_halves_have_a_gpu_each(backend, tmp_path, timing, gpus):
    recorder, together = Recorder(), tmp_path / "together"
    together.mkdir()
    (tmp_path / "trials").mkdir()
    halves = [on_gpu(name, gpus=0.5, timing=timing, together=str(together)) for name in ("one", "two")]
    backend.run(TrialQueue(halves), tmp_path, recorder)
    assert [outcome.note for outcome in recorder.outcomes.values()] == ["", ""]
    assert {outcome.metrics["found"] for outcome in recorder.outcomes.values()} == gpus


def test_a_lost_gpu_is_quarantined(backend, tmp_path):
    first, second = Recorder(), Recorder()
    (tmp_path / "trials").mkdir()
    backend.run(TrialQueue([on_gpu("one", broken="0"), on_gpu("two", broken="0")]), tmp_path, first)
    (struck,) = [outcome for outcome in first.outcomes.values() if outcome.cause is Cause.DEVICE]
    assert struck.status is Status.FAILED and "uncorrectable ECC" in struck.note and "quarantine: GPU 0" in struck.note
    assert [node.gpus for node in backend.nodes()] == [1]
    backend.run(TrialQueue([on_gpu(f"again {number}", broken="0") for number in range(3)]), tmp_path, second)
    assert [outcome.note for outcome in second.outcomes.values() if outcome.status is not Status.OK] == []
    assert {outcome.metrics["found"] for outcome in second.outcomes.values()} == {"1"}
