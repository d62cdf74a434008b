from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.on_ray.attempt import Bundles, Starting
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.unplaced import Patience
from orchestrator.journal.outcome import Cause, Outcome
from orchestrator.scheduling.node import Node
from sweeps.status import Status
from sweeps.trial import Gang
from tests.contract.trials import trial

A, B = (Node(name="host", cpus=1, gpus=0, node_id=name) for name in "ab")


def test_a_gang_is_reserved_as_a_whole_with_rank_i_in_bundle_i() -> None:
    request = Bundles(Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=4))
    assert request.head_bundle_is_empty and request.strategy == "PACK"
    assert request.bundles == [{"CPU": 4.0, "GPU": 1.0}] * 2
    assert Bundles(Gang(ranks=1, gpus_per_rank=0.25, cpus_per_rank=1)).bundles == [{"CPU": 1.0, "GPU": 0.25}]


def test_gangs_of_one_shape_make_equal_requests() -> None:
    shape = Gang(ranks=2, gpus_per_rank=0, cpus_per_rank=1)
    assert Bundles(shape) == Bundles(Gang(ranks=2, gpus_per_rank=0, cpus_per_rank=1))
    assert Bundles(shape) != Bundles(Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=2))


def test_on_several_nodes_each_rank_is_told_its_node() -> None:
    pair = Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=1)
    nodes = [Node(name="a", cpus=2, gpus=1, node_id="01"), Node(name="b", cpus=2, gpus=1, node_id="02")]
    told = Bundles(pair, nodes)._bound.arguments["bundle_label_selector"]
    assert told == [{"ray.io/node-id": "01"}, {"ray.io/node-id": "02"}]
    assert Bundles(pair, nodes) == Bundles(pair, list(nodes)) != Bundles(pair, nodes[::-1])


class Tried:
    """What the queue looks at in a trial of Tune's."""

    def __init__(self, number: int, status: str = Trial.PENDING, outcome: Outcome | None = None) -> None:
        self.trial_id, self.status, self.outcome = f"{number}", status, outcome

    def is_finished(self) -> bool:
        return self.status == Trial.TERMINATED


@pytest.fixture
def alive() -> list[Node]:
    return [A, B]


@pytest.fixture
def queue(alive: list[Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TrialQueue:
    agenda = Agenda([trial("0", "quick"), trial("1", "quick")])
    queue = TrialQueue(agenda, lambda: list(alive), Starting(results_dir=tmp_path))
    monkeypatch.setattr(queue, "_trial", lambda spec, asked: Tried(int(spec.trial_id)))
    return queue


def _lost(alive: list[Node], queue: TrialQueue) -> SimpleNamespace:
    """The other node is lost; what was given, by whether it was to begin there."""
    given = [queue.next_trial(), queue.next_trial()]
    there = {each.trial_id: start.nodes[0] for each, start in queue._given}
    alive.remove(B)
    here = next(each for each in given if there[each.trial_id] == A)
    return SimpleNamespace(here=here, lost=next(each for each in given if each is not here))


def test_a_trial_whose_node_is_lost_before_it_begins_is_taken_back(alive: list[Node], queue: TrialQueue) -> None:
    of = _lost(alive, queue)
    assert queue.stranded() == []  # nobody has looked yet
    queue._looked_s = float("-inf")
    assert queue.next_trial() is None and queue.stranded() == [of.lost]
    of.lost.status = Trial.TERMINATED  # as Tune does with it
    assert queue.next_trial() is None  # there is one node, and it is taken
    of.here.status, of.here.outcome = Trial.TERMINATED, Outcome(status=Status.OK, wall_s=1.0)
    assert queue.next_trial().trial_id == of.lost.trial_id


def test_after_a_lost_node_the_cluster_is_looked_at_before_anything_starts(
    alive: list[Node], queue: TrialQueue
) -> None:
    of = _lost(alive, queue)
    of.lost.status = Trial.TERMINATED
    of.lost.outcome = Outcome(status=Status.FAILED, cause=Cause.NODE, wall_s=1.0)
    assert queue.next_trial() is None and queue._alive == [A]


def test_a_sweep_that_is_to_end_starts_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    asked: list[bool] = []
    agenda = Agenda([trial("0", "quick")], patience=Patience(wait_s=1000.0))
    queue = TrialQueue(agenda, lambda: [], Starting(results_dir=tmp_path), stopping=lambda: bool(asked))
    assert queue.next_trial() is None and not queue.is_finished()  # nodes may come
    asked.append(True)
    assert queue.next_trial() is None and queue.is_finished()


def test_a_gang_that_is_kept_on_the_last_node_is_asked_for_by_the_same_name(
    alive: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Node, ...]] = []
    monkeypatch.setattr("orchestrator.backends.on_ray.queue.Bundles", lambda place, nodes: asked.append(tuple(nodes)))
    monkeypatch.setattr("orchestrator.backends.on_ray.queue.Attempt", lambda *given, **named: Tried(0))
    queue = TrialQueue(Agenda([trial("0", "quick")]), lambda: list(alive), Starting(results_dir=tmp_path))
    queue.add_configurations([SimpleNamespace(spec={"run": "x"}, storage=None)])
    alive.remove(B)
    queue._looked_s = float("-inf")
    assert queue.next_trial() is not None and asked == [(A,)]
