from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.backends.ray import workers as workers_module
from orchestrator.backends.ray.workers import WorkerGroup
from sweeps.layout import OWN_RANKS, Layout
from tests.unit.orchestrator.plan.planned import TRIALS


def test_ranks_on_several_nodes_are_named_with_their_hosts(monkeypatch):
    hosts = [{"NodeID": "a", "NodeManagerHostname": "left"}, {"NodeID": "b", "NodeManagerHostname": "right"}]
    monkeypatch.setattr(workers_module.ray, "nodes", lambda: hosts)
    workers = WorkerGroup("warm")
    workers.nodes = ["a", "a", "b", "lost"]
    assert workers.names(2) == ["rank 0", "rank 1"]
    assert workers.names(4)[1:] == ["rank 1 on left", "rank 2 on right", "rank 3 on lost"]


class FakeActor:
    def __init__(self):
        self.prepared: list[str] = []
        self.prepare = SimpleNamespace(remote=self.prepared.append)


@pytest.mark.parametrize(("bundles", "started", "prepared"), [(1, [0], 0), (2, [0, 1], 2)])
def test_ranks_of_a_kept_gang_start_together(monkeypatch, bundles, started, prepared):
    actors: dict[int, FakeActor] = {}

    def start(trial, rank, *_):
        return actors.setdefault(rank, FakeActor())

    table = {"bundles_to_node_id": {index: "a" for index in range(bundles)}}
    waits: list[int] = []
    monkeypatch.setattr(workers_module, "_start", start)
    monkeypatch.setattr(workers_module.ray.util, "get_current_placement_group", lambda: None)
    monkeypatch.setattr(workers_module.ray.util, "placement_group_table", lambda group: table)
    monkeypatch.setattr(workers_module.ray, "wait", lambda calls, num_returns, timeout: waits.append(num_returns))
    (trial,) = [trial for trial in TRIALS if trial.gang.ranks == 1][:1]
    workers = WorkerGroup("per_seed")
    assert workers.take(trial) == [actors[0]] and sorted(actors) == started
    assert sum(len(actor.prepared) for actor in actors.values()) == prepared
    workers.take(trial)
    assert waits == [2] * (bundles > 1)  # once


@pytest.mark.parametrize(("strategy", "kept"), [("ddp", False), (OWN_RANKS, True)])
def test_a_further_seed_gets_new_processes_unless_it_is_a_command(monkeypatch, strategy, kept):
    started: list[FakeActor] = []
    monkeypatch.setattr(workers_module, "_start", lambda *_: started.append(FakeActor()) or started[-1])
    monkeypatch.setattr(workers_module.ray, "kill", lambda actor: None)
    monkeypatch.setattr(workers_module.ray.util, "get_current_placement_group", lambda: None)
    table = {"bundles_to_node_id": {0: "a"}}
    monkeypatch.setattr(workers_module.ray.util, "placement_group_table", lambda group: table)
    trial = replace(TRIALS[0], gang=replace(TRIALS[0].gang, ranks=1), layout=Layout(strategy=strategy, replicas=1))
    workers = WorkerGroup("per_seed")
    first = workers.take(trial)
    assert (workers.take(replace(trial, seed=trial.seed + 1)) == first) is kept
