import pytest

from orchestrator.agenda import Agenda
from orchestrator.backend import Outcome
from sweeps.feasibility import Node
from sweeps.limit import Limit
from sweeps.status import Status
from tests.contract.trials import trial

ONE = Node(name="a", cpus=2, gpus=0)
TWO = Node(name="b", cpus=2, gpus=0)


def trials(count, ranks=1):
    return [trial(str(number), "quick", ranks=ranks) for number in range(count)]


def on(agenda, *nodes, now_s=0.0):
    agenda.on(nodes, now_s)
    return agenda


def ids(left_out):
    return [(each.trial_id, outcome.status) for each, outcome in left_out]


def test_trials_start_as_others_end():
    agenda = on(Agenda(trials(2)), ONE)
    assert agenda.next(0.0).trial.trial_id == "0" and agenda.next(0.0) is None and len(agenda) == 1
    agenda.ended("0", 5.0, Outcome(status=Status.OK, wall_s=5.0))
    assert agenda.next(5.0).trial.trial_id == "1" and len(agenda) == 0 and not agenda.left_out


@pytest.mark.parametrize(
    ("limit", "spent_gpu_s", "note"),
    [
        (Limit(gpu_hours=1.0), 3595.0, "sweep.budget.gpu_hours=1 was used up"),
        (Limit(wall_s=5.0), 0.0, "sweep.budget.wall_s=5 was used up"),
        (Limit(cost=3.0, price_per_gpu_hour=3.0), 3595.0, "sweep.budget.cost=3 was used up"),
    ],
)
def test_no_trial_starts_once_a_budget_is_used_up(limit, spent_gpu_s, note):
    agenda = on(Agenda(trials(3), limit=limit, spent_gpu_s=spent_gpu_s), ONE)
    assert agenda.next(0.0) is not None
    agenda.ended("0", 5.0, Outcome(status=Status.OK, wall_s=5.0))
    assert agenda.next(5.0) is None and len(agenda) == 0
    assert [(outcome.status, outcome.note, outcome.skipped_by) for _, outcome in agenda.left_out] == [
        (Status.SKIPPED, note, "budget")
    ] * 2


def test_what_runs_counts_for_the_budget():
    agenda = on(Agenda([trial("pair", "quick", ranks=2), trial("next", "quick")]), ONE)
    assert agenda.next(0.0) is not None
    assert agenda.gpu_s(10.0) == 20.0


def test_a_trial_without_nodes_waits_only_so_long():
    agenda = on(Agenda(trials(1, ranks=3), wait_s=10.0), ONE)
    assert agenda.next(0.0) is None and len(agenda) == 1
    assert len(on(agenda, ONE, now_s=9.0)) == 1
    assert len(on(agenda, ONE, now_s=10.0)) == 0
    assert ids(agenda.left_out) == [("0", Status.INFEASIBLE)]


def test_a_trial_starts_when_its_nodes_have_come():
    agenda = on(Agenda(trials(1, ranks=3), wait_s=10.0), ONE)
    start = on(agenda, ONE, TWO, now_s=9.0).next(9.0)
    assert start is not None and {node.name for node in start.nodes} == {"a", "b"}


def test_a_lost_trial_waits_once_more_and_before_others():
    agenda = on(Agenda(trials(3)), ONE, TWO)
    first, second = agenda.next(0.0), agenda.next(0.0)
    survivor = next(node for node in (ONE, TWO) if node not in first.nodes)
    on(agenda, survivor, now_s=1.0)
    agenda.again(first.trial.trial_id, 1.0)
    assert agenda.next(1.0) is None
    agenda.ended(second.trial.trial_id, 2.0)
    assert agenda.next(2.0).trial is first.trial


def test_durations_of_ended_trials_decide_who_is_next():
    repeats = [trial(str(number), "quick", timing="shared", cell=number) for number in range(2)]
    agenda = on(Agenda(repeats), Node(name="a", cpus=1, gpus=0))
    agenda.next(0.0)
    agenda.ended("0", 7.0, Outcome(status=Status.OK, wall_s=7.0))
    assert agenda._durations.expected_s(repeats[0]) == 7.0
