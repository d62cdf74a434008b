import os
import subprocess
from typing import Any

import pytest
import torch

from tests.unit.trainables.ranks import Processes, request, run, without_times
from trainables import isolation

AFTERWARDS = {
    "a different model": request(config={"model": {"name": "small_cnn"}, "budget": {"steps": 2}}),
    "half precision": request(
        config={"trainable": {"precision": "bf16", "window_s": 0.0, "window_steps": 1, "warmup_s": 0.0}}
    ),
    "a failing trial": request("tests.unit.trainables.polluters:fail"),
    "one that diverges": request(lr=1e30),
    "one that changes every flag": request("tests.unit.trainables.polluters:change_flags"),
}


@pytest.fixture(scope="module")
def ones():
    """A process of this module's own, so that its first trial is one in a fresh process."""
    processes = Processes(1)
    yield processes
    processes.close()


@pytest.mark.slow
def test_trial_is_bitwise_the_same_after_any_other(ones):
    [fresh] = ones.call(run, (request(),))
    [state] = ones.call(run, (request("tests.unit.trainables.polluters:state"),))
    assert fresh["status"] == "ok" and fresh["metrics"]["accuracy"] > 0.2
    for name, other in AFTERWARDS.items():
        ones.call(run, (other,))
        assert without_times(ones.call(run, (request(),))[0]) == without_times(fresh), name
        ones.call(run, (other,))
        assert ones.call(run, (request("tests.unit.trainables.polluters:state"),))[0]["rows"] == state["rows"], name


def test_state_is_that_of_a_new_process(ones):
    [answer] = ones.call(run, (request("tests.unit.trainables.polluters:state", threads=2),))
    [state] = answer["rows"]
    assert (state["dtype"], state["device"], state["grad"]) == ("torch.float32", "cpu", True)
    assert (state["threads"], state["collects"], state["precision"]) == (2, True, "highest")
    assert state["denormal"] > 0


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compilers_are_reset_only_if_used(fullgraph, monkeypatch):
    dynamo: Any = pytest.importorskip("torch._dynamo")
    isolation.leave()  # whatever earlier tests have compiled
    forgotten: list[None] = []
    reset = dynamo.reset
    monkeypatch.setattr(dynamo, "reset", lambda: forgotten.append(reset()))
    isolation.leave()
    assert not forgotten
    compiled = torch.compile(lambda x: x + 1, backend="eager", fullgraph=fullgraph)
    assert compiled(torch.ones(1)) == 2
    isolation.leave()
    isolation.leave()
    assert len(forgotten) == 1


def test_idle_threads_of_a_compiler_do_not_outlive_a_trial():
    """Else every compiled trial would need a new process, which imports and compiles everything again."""
    compilers: Any = pytest.importorskip("torch._inductor.async_compile")
    isolation.leave()
    before = isolation.BackgroundWork.now()
    compilers.AsyncCompile.pool().submit(int).result()
    assert isolation.BackgroundWork.now().grown_since(before)
    isolation.leave()
    assert not isolation.BackgroundWork.now().grown_since(before)


def test_a_child_that_has_ended_is_no_background_work():
    before = isolation.BackgroundWork.now()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert isolation.BackgroundWork.now().grown_since(before)
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert not isolation.BackgroundWork.now().grown_since(before)
