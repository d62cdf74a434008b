"""Test a command on several nodes: a thread for the rank of each, all with one folder, as on shared storage."""

import json
import sys
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sweeps.layout import Layout
from sweeps.trial import Batch
from tests.unit.trainables.command.test_hook_files import counts
from trainables.command.failure import CommandError
from trainables.command.hook.sweep_files import STOP_FILE
from trainables.command.invocation import launcher_variables
from trainables.command.training import train
from trainables.context import Context

PYTHON = [sys.executable, "-S"]


class Mail:
    """The mailboxes of all ranks."""

    def __init__(self, ranks):
        self.boxes: list[deque[Mapping[str, Any]]] = [deque() for _ in range(ranks)]


class Box:
    """The mailbox of one rank."""

    def __init__(self, mail, rank):
        self._mail, self._rank = mail, rank

    def send(self, rank, message):
        self._mail.boxes[rank].append(message)

    def received(self):
        box = self._mail.boxes[self._rank]
        return [box.popleft() for _ in range(len(box))]


def contexts(folder, nodes, *, gpus=4, **other):
    (folder / "trial").mkdir(exist_ok=True)
    mail = Mail(nodes)
    given = {
        "world_size": nodes,
        "rendezvous": "tcp://10.0.0.7:23456",
        "layout": Layout(strategy="own_ranks", replicas=gpus),
        "batch": Batch(global_batch_size=64, shares=(64,), parts_per_rank=gpus),
        "trial_dir": folder / "trial",
    }
    return [Context.alone(**given | other, rank=rank, mailbox=Box(mail, rank)) for rank in range(nodes)]


def run(folder, code, ranks, **settings):
    """Run the code on all nodes; return the error of each rank."""
    section = {"argv": [*PYTHON, "-c", code.replace("{", "{{").replace("}", "}}"), "{node_rank}", "{gpus_per_node}"]}
    config = {"trainable": section | {"source_dir": str(folder), "grace_s": 0.5} | settings, "budget": {"epochs": 2}}

    def error_of(context):
        try:
            train(config, context)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(error_of, ranks))


def test_each_node_has_its_place_and_its_own_logs(tmp_path, monkeypatch):
    monkeypatch.setenv("PET_NODE_RANK", "7")  # of the session
    monkeypatch.setenv("SLURM_NNODES", "4")
    ranks = contexts(tmp_path, 2)
    assert run(tmp_path, "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))", ranks) == [None, None]
    logs = [tmp_path / "trial" / name for name in ("stdout.log", "stdout.node1.log")]
    for node, log in enumerate(logs):
        folder, environment = json.loads(log.read_text())
        assert folder == str(tmp_path / "trial" / "work") and "SLURM_NNODES" not in environment
        place = {"SWEEP_NODES": "2", "SWEEP_GPUS_PER_NODE": "2", "SWEEP_GPUS": "4", "SWEEP_DEVICES": "0,1"}
        launcher = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "23456", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}
        ranked = dict.fromkeys(("SWEEP_NODE_RANK", "NODE_RANK", "PET_NODE_RANK"), str(node))
        assert environment | place | launcher | ranked == environment


def test_one_node_gets_only_a_port_for_its_launcher():
    place = {"nodes": 1, "node_rank": 0, "gpus_per_node": 4, "master_addr": "127.0.0.1", "master_port": 25000}
    variables = launcher_variables(place)
    assert variables == {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "25000", "PET_MASTER_PORT": "25000"}


PRINTING = """
import json, sys, time
if int(sys.argv[1]) in {speakers}:
    time.sleep(2 * {speakers}.index(int(sys.argv[1])))  # one after the other, however long they took to start
    for epoch in (1, 2):
        print(json.dumps(dict(epoch=epoch, loss=10.0 * int(sys.argv[1]) + epoch)), flush=True)
"""


@pytest.mark.parametrize(
    ("speakers", "losses"), [((0, 1), [1, 2]), ((1, 2), [11, 12]), ((2,), [21, 22]), ((1, 0), [11, 12])]
)
def test_the_first_node_that_prints_metrics_is_heard(tmp_path, speakers, losses):
    rows: list[dict[str, Any]] = []
    ranks = contexts(tmp_path, 3, gpus=3, emit=rows.append)
    code = PRINTING.replace("{speakers}", str(speakers))
    assert run(tmp_path, code, ranks, metrics={"loss": None}) == [None] * 3
    assert [row["loss"] for row in rows] == losses == [row["loss"] for row in ranks[0].rows]
    assert ranks[0].metrics["loss"] == losses[-1]
    assert not any("no figure" in remark for remark in ranks[0].remarks)


def counting(folder, worlds):
    """Return code that writes the counts of a node's processes as the hook would, given their (rank, world)."""
    texts = [[counts(rank, world).to_json() for rank, world in node] for node in worlds]
    (folder / "counts.json").write_text(json.dumps(texts))
    return f"""
import json, os, sys
for number, text in enumerate(json.load(open({str(folder / "counts.json")!r}))[int(sys.argv[1])]):
    path = os.path.join(os.environ["SWEEP_HOOK"], str(number) + ".json")
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)    # whole or not at all, as the hook does
"""


TOGETHER = [[(0, 4), (1, 4)], [(2, 4), (3, 4)]]


@pytest.mark.parametrize(
    ("worlds", "workers", "marked"),
    [
        (TOGETHER, 4, False),
        ([[(0, 2), (1, 2)], [(0, 2), (1, 2)]], 2, True),  # no rendezvous over the nodes
        ([[(0, 1)], [(0, 1)]], 1, True),
        ([[(0, 4), (1, 4)], []], 2, True),
    ],
)
def test_processes_of_all_nodes_are_counted(tmp_path, worlds, workers, marked):
    ranks = contexts(tmp_path, 2)
    assert run(tmp_path, counting(tmp_path, worlds), ranks) == [None, None]
    assert ranks[0].metrics["workers"] == workers
    assert any("processes" in remark or "ranks" in remark for remark in ranks[0].remarks) == marked
    assert "workers" not in ranks[1].metrics


def test_a_failed_node_keeps_no_other_waiting(tmp_path):
    ranks = contexts(tmp_path, 2)
    first, second = run(tmp_path, "import sys; sys.exit(int(sys.argv[1]))", ranks)
    assert first is None and isinstance(second, CommandError)


def test_nodes_wait_for_one_another_until_the_trial_stops(tmp_path):
    (first, _) = contexts(tmp_path, 2, stop_requested=lambda **_: True)
    assert run(tmp_path, "print('never')", [first]) == [None]
    assert not (tmp_path / "trial/stdout.log").exists()


def test_all_nodes_stop_at_the_step_of_the_first(tmp_path):
    """The frameworks' callbacks stop at the step in the file, which here the processes wait for."""
    code = counting(tmp_path, TOGETHER).replace(".write(text)", '.write(text.replace(\'"framework": ""\', FRAMEWORK))')
    code = 'FRAMEWORK = \'"framework": "lightning"\'' + code
    code += f"""
import time
path = os.path.join(os.environ["SWEEP_HOOK"], {STOP_FILE!r})
while not os.path.exists(path):
    time.sleep(0.02)
print(open(path).read(), flush=True)
"""

    def stop_requested(**_):
        return len([*tmp_path.glob("trial/hook*/*.json")]) == 4

    assert run(tmp_path, code, contexts(tmp_path, 2, stop_requested=stop_requested), grace_s=20) == [None, None]
    steps = [(tmp_path / "trial" / name).read_text() for name in ("stdout.log", "stdout.node1.log")]
    assert steps[0] == steps[1] and int(steps[0]) > 100
