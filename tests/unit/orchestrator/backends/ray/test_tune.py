import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial

from orchestrator.backends.ray import backend, private_tune
from orchestrator.backends.ray.backend import QueueSearch
from orchestrator.backends.ray.private_tune import KeptGangs, PolledPlacementGroups
from orchestrator.backends.ray.tune import Attempt, Bundles, Starting, _broken
from orchestrator.schedule.cluster import Footprint, Node, devices, units_of
from orchestrator.schedule.queue import Patience, TrialQueue
from orchestrator.store.record import TrialOutcome
from sweeps.layout import Gang
from sweeps.rank_exit import Cause
from sweeps.status import Status
from tests.contract.trials import trial


def test_supervisor_imports_no_slow_module():
    slow = {"ray.tune", "ray.train", "ray.data", "pandas", "pyarrow", "torch"}
    code = f"import sys, orchestrator.backends.ray.supervisor; print(sorted({slow} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Request:
    """Asks for a group that is the next of these."""

    def __init__(self, *groups):
        self._groups = iter(groups)

    def to_placement_group(self):
        return next(self._groups)


@pytest.fixture
def states(monkeypatch):
    """Return the states of the groups; a removed group has none."""
    known: dict[str, str] = {}
    monkeypatch.setattr(private_tune, "placement_group_table", lambda group: {"state": known[group]})
    monkeypatch.setattr(private_tune.ray, "util", SimpleNamespace(remove_placement_group=known.pop))
    return known


@pytest.fixture
def groups():
    return PolledPlacementGroups(update_interval_s=-1)


def test_group_is_ready_once_ray_created_it(groups, states):
    request = Request("one")
    states["one"] = "PENDING"
    groups.request_resources(request)
    assert not groups.has_resources_ready(request) and groups.get_resource_futures() == []
    states["one"] = "CREATED"
    assert groups.has_resources_ready(request)
    assert groups.acquire_resources(request).placement_group == "one"
    assert not groups.has_resources_ready(request)


def test_pending_group_is_cancelled_first(groups, states):
    request = Request("here", "pending")
    states.update({"here": "CREATED", "pending": "PENDING"})
    groups.request_resources(request)
    groups.request_resources(request)
    assert groups.has_resources_ready(request)
    groups.cancel_resource_request(request)
    assert set(states) == {"here"}
    groups.cancel_resource_request(request)
    assert not states and not groups.has_resources_ready(request)


A, B = (Node(name="host", cpus=4, gpus=2, node_id=name) for name in "ab")
ONE, TWO = (Bundles(Gang(ranks=ranks, gpus_per_rank=1, cpus_per_rank=1)) for ranks in (1, 2))


def turn(kept, *, force_all=False):
    return list(kept.flush_cached_objects(force_all=force_all))


PAIR = Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=1)
ON_A, ON_B, ON_BOTH = (Bundles(PAIR, nodes) for nodes in ([A, A], [B, B], [A, B]))


@pytest.mark.parametrize(
    "story",
    [
        # A gang is kept for one turn of the queue, and then ends for a waiting gang of another shape.
        [("want", TWO), ("keep", ONE, "a"), ("keep", ONE, "b"), [], ("want", ONE), ("take", ONE, "a"), ["b"], 0],
        # Each kept gang gets its turn.
        [("want", TWO), ("keep", ONE, "a"), [], ("keep", ONE, "b"), ["a"], ["b"]],
        # Wanted gangs are kept, and so are all while nothing waits.
        [("want", ONE), ("keep", ONE, "a"), ("keep", TWO, "b"), [], ["b"], [], 1],
        [("keep", ONE, "a"), ("keep", ONE, "b"), [], [], "end", ["a", "b"], 0],
        # A gang on nodes that no waiting gang needs is kept.
        [("want", ON_B), ("keep", ON_A, "a"), [], [], ("want", ON_BOTH), ["a"]],
        # Gangs that no trial can use end after their turn.
        [("keep", ONE, "a"), [], [], "unneeded", ("keep", ONE, "b"), ["a"], ["b"], 0],
    ],
)
def test_kept_gangs_end_once_another_needs_their_place(story):
    """Each list is what ends in a turn of the queue, each number how many gangs are kept."""
    words: set[str] = set()
    kept = KeptGangs(lambda: "unneeded" not in words)
    for event in story:
        match event:
            case ("want", shape):
                kept.increase_max(shape)
            case ("keep", shape, name):
                assert kept.cache_object(shape, name)
            case ("take", shape, name):
                assert kept.pop_cached_object(shape) == name
                kept.decrease_max(shape)
            case str():
                words.add(event)
            case int():
                assert kept.num_cached_objects == event
            case _:
                assert turn(kept, force_all="end" in words) == event


A_queue, B_queue = (Node(name="host", cpus=1, gpus=0, node_id=name) for name in "ab")


def test_bundle_i_is_for_rank_i():
    request = Bundles(Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=4))
    assert request.head_bundle_is_empty and request.strategy == "PACK"
    assert request.bundles == [{"CPU": 4.0, "GPU": 1.0}] * 2
    assert Bundles(Gang(ranks=1, gpus_per_rank=0.25, cpus_per_rank=1)).bundles == [{"CPU": 1.0, "GPU": 0.25}]


@pytest.mark.parametrize("gpus", [0, 0.25, 1, 4])
@pytest.mark.parametrize("timing", ["shared", "device", "exclusive"])
def test_ray_reserves_what_the_queue_takes_as_occupied(gpus, timing):
    gang = Gang(ranks=1, gpus_per_rank=gpus, cpus_per_rank=1)
    (bundle,) = Bundles(gang.occupying(timing)).bundles
    assert units_of(bundle.get("GPU", 0)) == devices(Footprint(gang=gang, timing=timing))
    assert bundle.get("GPU", 0) == (gpus if timing == "shared" else math.ceil(gpus))


def test_bundles_name_their_nodes_and_are_equal_for_one_shape_and_place():
    assert ON_BOTH._bound.arguments["bundle_label_selector"] == [{"ray.io/node-id": "a"}, {"ray.io/node-id": "b"}]
    assert ON_BOTH == Bundles(PAIR, [A, B]) != Bundles(PAIR, [B, A])
    assert Bundles(PAIR) == TWO != Bundles(Gang(ranks=1, gpus_per_rank=2, cpus_per_rank=2))


class Tried:
    """The part of a Tune trial that the queue reads."""

    def __init__(self, number, status=Trial.PENDING, outcome=None):
        self.trial_id, self.status, self.outcome = f"{number}", status, outcome
        self.is_retried = False

    def is_finished(self):
        return self.status == Trial.TERMINATED


@pytest.fixture
def alive():
    return [A_queue, B_queue]


@pytest.fixture
def queue(alive, monkeypatch, tmp_path):
    trial_queue = TrialQueue([trial("0", "quick"), trial("1", "quick")])
    queue = QueueSearch(trial_queue, lambda: list(alive), Starting(results_dir=tmp_path))
    queue.add_configurations([SimpleNamespace(spec={"run": "x"}, storage=None)])
    monkeypatch.setattr(backend, "Attempt", lambda name, spec, **known: Tried(int(spec.trial_id)))
    return queue


def _lost(alive, queue):
    """The other node is lost; what was given, by whether it was to begin there."""
    given = [queue.next_trial(), queue.next_trial()]
    there = {trial.trial_id: start.nodes[0] for trial, start in queue._given}
    alive.remove(B_queue)
    here = next(trial for trial in given if there[trial.trial_id] == A_queue)
    return SimpleNamespace(here=here, lost=next(trial for trial in given if trial is not here))


def test_supervisor_learns_which_process_drives_it(queue, monkeypatch):
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(backend, "Attempt", lambda name, spec, **known: given.append(known["given"]))
    queue.next_trial()
    assert given[0]["sampling"].driver_pid == os.getpid()
    assert given[0]["request"].trial_dir.parts[-2:] == ("trials", "0")


def test_stranded_trial_is_taken_back(alive, queue):
    of = _lost(alive, queue)
    assert queue.stranded() == []  # nobody has looked yet
    queue._looked_s = float("-inf")
    assert queue.next_trial() is None and queue.stranded() == [of.lost]
    of.lost.status = Trial.TERMINATED  # as Tune does with it
    assert queue.next_trial() is None  # there is one node, and it is taken
    of.here.status, of.here.outcome = Trial.TERMINATED, TrialOutcome(wall_s=1.0)
    assert queue.next_trial().trial_id == of.lost.trial_id


def test_nodes_are_read_again_after_a_loss(alive, queue):
    of = _lost(alive, queue)
    of.lost.status = Trial.TERMINATED
    of.lost.outcome = TrialOutcome(cause=Cause.NODE, wall_s=1.0)
    assert queue.next_trial() is None and queue._alive == [A_queue]


def test_stopping_sweep_starts_nothing(tmp_path):
    asked: list[bool] = []
    trial_queue = TrialQueue([trial("0", "quick")], patience=Patience(wait_s=1000.0))
    queue = QueueSearch(trial_queue, lambda: [], Starting(results_dir=tmp_path), stopping=lambda: bool(asked))
    assert queue.next_trial() is None and not queue.is_finished()  # nodes may come
    asked.append(True)
    assert queue.next_trial() is None and queue.is_finished()


def test_last_node_is_still_named_in_bundles(alive, tmp_path, monkeypatch):
    asked: list[tuple[Node, ...]] = []
    monkeypatch.setattr("orchestrator.backends.ray.backend.Bundles", lambda place, nodes: asked.append(tuple(nodes)))
    monkeypatch.setattr("orchestrator.backends.ray.backend.Attempt", lambda *given, **named: Tried(0))
    queue = QueueSearch(TrialQueue([trial("0", "quick")]), lambda: list(alive), Starting(results_dir=tmp_path))
    queue.add_configurations([SimpleNamespace(spec={"run": "x"}, storage=None)])
    alive.remove(B_queue)
    queue._looked_s = float("-inf")
    assert queue.next_trial() is not None and asked == [(A_queue,)]


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
        (KILLED, "SIGKILL"),
        (WITHOUT_NODE, "its node was lost"),
        ("Traceback\nRuntimeError: of our own", "RuntimeError: of our own"),
        ("", "no reason known"),
        (None, "no reason known"),
        ("The actor never ran - it was cancelled.", "RAY_AUTH_MODE=disabled"),
    ],
)
def test_supervisor_failure_is_summarised(account, note, tmp_path):
    (tmp_path / "error.txt").write_text(account or "")
    outcome = _broken(None if account is None else str(tmp_path / "error.txt"), 1.0)
    assert (outcome.status, outcome.cause, outcome.trace) == (Status.FAILED, Cause.NODE, account or "")
    assert "supervisor" in outcome.note and note in outcome.note


def test_attempt_keeps_its_latest_result_and_no_statistics_of_metrics():
    attempt = Attempt("gang", trial("0", "quick"), given={}, shown={}, stub=True)
    attempt.update_last_result({"loss": 0.5, "training_iteration": 1})
    metadata = attempt.run_metadata
    assert attempt.last_result["loss"] == 0.5
    assert (metadata.metric_analysis, metadata.metric_n_steps) == ({}, {})
