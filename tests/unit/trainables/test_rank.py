import errno
import pickle
import subprocess
import sys

import pytest
import torch

from sweeps.trial import Batch
from tests.unit.trainables import polluters
from tests.unit.trainables.ranks import context_of, request, run
from trainables import rank
from trainables.context import Context, DivergedError, GivenUpError, PortInUseError, RequestError
from trainables.rank import exit_by, rank_environment


def test_a_noop_of_one_rank_imports_no_torch():
    code = (
        "import pickle, sys; from trainables.rank import run\n"
        "answer = run(pickle.loads(bytes.fromhex(sys.argv[1])), print, lambda: False)\n"
        "assert answer.status == 'ok' and answer.reusable, answer\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    asked = pickle.dumps(request("trainables.noop:train")).hex()
    subprocess.run([sys.executable, "-c", code, asked], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.mark.parametrize(
    ("trainable", "status", "note"),
    [
        ("tests.unit.trainables.polluters:fail", "failed", "RuntimeError: on purpose"),
        ("tests.unit.trainables.polluters:run_out_of_memory", "oom", "can't allocate memory"),
        ("tests.unit.trainables.polluters:exit_early", "failed", "SystemExit: enough"),
        ("tests.unit.trainables.polluters:say_an_object", "failed", "'accuracy' is a object"),
        ("tests.unit.trainables.polluters:absent", "failed", "absent"),
        ("no_such_module:train", "failed", "no_such_module"),
        ("tests.unit.trainables.unimportable:train", "failed", "ZeroDivisionError: division by zero"),
        ("tests.unit.trainables.polluters:take_nothing", "failed", "train(config"),
        ("tests", "failed", "package.module:function"),
        ("tests.unit.trainables.polluters:STARTED", "failed", "not a function"),
    ],
)
def test_any_error_becomes_an_answer(trainable, status, note):
    answer = run(request(trainable))
    assert answer["status"] == status
    assert note in answer["note"] and "\n" not in answer["note"]
    assert "Traceback" in answer["trace"] and not answer["reusable"]


def test_a_diverged_loss_is_a_result():
    answer = run(request(lr=1e30))
    assert answer["status"] == "diverged" and "learning rate 1" in answer["note"]


def test_metrics_become_json_without_nan():
    arrays = {"of_classes": [0.25, 1.0], "norms": {"layers": [1.0, 1.0]}, "one": 1.0}
    assert run(request("tests.unit.trainables.polluters:say_nan"))["metrics"] == {"loss": 0.5, "epochs": 3} | arrays


def test_a_last_loss_that_is_not_finite_is_divergence():
    assert run(request("tests.unit.trainables.polluters:diverge_late"))["status"] == "diverged"


def test_the_last_row_gives_metrics_of_the_trial():
    context = Context.alone()
    for epoch in (1, 2):
        context.report({"epoch": epoch, "val_loss": 3.0 / epoch, "samples": 8 * epoch})
    assert context.metrics == {"epochs": 2, "val_loss": 1.5}


@pytest.mark.parametrize("leave", ["leave_a_thread", "leave_a_child"])
def test_background_work_makes_a_process_not_reusable(leave):
    try:
        answer = run(request(f"tests.unit.trainables.polluters:{leave}"))
        assert answer["status"] == "ok" and not answer["reusable"]
        assert run(request("tests.unit.trainables.polluters:say_nan"))["reusable"]
    finally:
        polluters.end_what_was_left()


def test_the_context_follows_the_request():
    asked = request(rank=1, shares=(3, 2), grad_accum_steps=2, trial_dir="/some/where")
    context = context_of(asked, print, lambda: True)
    assert (context.rank, context.world_size, context.device) == (1, 2, "cpu")
    assert (context.batch.global_batch_size, context.batch.shares) == (10, (3, 2))
    assert (context.lr.value, context.lr.warmup_epochs) == (0.05, 1.0)
    assert context.should_stop() and str(context.trial_dir) == "/some/where"
    assert context.devices == ("cpu",)


@pytest.mark.parametrize(("gpus", "devices"), [(1, ("cuda:0",)), (0.25, ("cuda:0",)), (2, ("cuda:0", "cuda:1"))])
def test_a_rank_counts_its_gpus_from_0(gpus, devices):
    context = context_of(request(device="cuda", gpus_per_rank=gpus))
    assert (context.device, context.devices) == ("cuda:0", devices)


def test_remarks_are_the_note_of_an_ok_trial():
    answer = run(request("tests.unit.trainables.polluters:remark"))
    assert (answer["status"], answer["note"].split("; ")) == ("ok", ["slower than others", "and old"])


def test_provenance_is_reported():
    about = run(request("tests.unit.trainables.polluters:say_nan"))["provenance"]
    assert {"host", "python", "torch", "cpu_cores", "cpu_model", "device_model"} <= set(about)


def test_a_sticky_device_error_does_not_hide_the_trial_error(monkeypatch):
    def sticky():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(rank.isolation, "leave", sticky)
    answers = [run(request(f"tests.unit.trainables.polluters:{name}")) for name in ("fail", "say_nan")]
    assert [(answer["status"], answer["reusable"]) for answer in answers] == [("failed", False)] * 2
    assert [answer["note"].partition(": ")[2][:10] for answer in answers] == ["on purpose", "CUDA error"]


def test_returned_metrics_are_summarized():
    assert run(request("tests.unit.trainables.polluters:return_figures"))["metrics"] == {"accuracy": 0.5}


def test_an_accuracy_in_percent_is_remarked():
    answer = run(request("tests.unit.trainables.polluters:report_percent"))
    assert answer["status"] == "ok" and answer["note"].startswith("val_accuracy=92.5")
    assert "scale: 0.01" in answer["note"]


def wrapped(error):
    outer = ValueError("the compiler failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "oom", "device_memory"),
        (RuntimeError("CUDA error: out of memory"), "oom", "device_memory"),
        (RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate()`"), "oom", "device_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom", "host_memory"),
        (MemoryError(), "oom", "host_memory"),
        (MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), "oom", "device_memory"),
        (wrapped(torch.OutOfMemoryError("CUDA out of memory")), "oom", "device_memory"),
        (DivergedError("the loss is nan"), "diverged", "diverged"),
        (GivenUpError("too far behind"), "skipped", "given_up"),
        (RequestError("model has no key width"), "failed", "request"),
        (wrapped(ModuleNotFoundError("No module named 'x'")), "failed", "request"),
        (SyntaxError("what"), "failed", "request"),
        (ArithmeticError("division"), "failed", "error"),
        (ValueError("the text says out of memory, but it is no runtime error"), "failed", "error"),
        (RuntimeError("Connection closed by peer"), "failed", "error"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "failed", "device"),
        (wrapped(RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")), "failed", "device"),
        (RuntimeError("CUDA error: device-side assert triggered"), "failed", "error"),
        (ValueError("GPU is lost"), "failed", "error"),
        *((OSError(number, "no"), "failed", "disk") for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)),
        *((wrapped(OSError(number, "no")), "failed", "disk") for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)),
        (OSError(errno.EADDRINUSE, "Address already in use"), "failed", "port"),
        (wrapped(RuntimeError("port: 12355, code: -98, name: EADDRINUSE")), "failed", "port"),
        (PortInUseError("12355"), "failed", "port"),
        (OSError(errno.ENOENT, "no"), "failed", "error"),
        (wrapped(OSError(errno.ENOENT, "no")), "failed", "error"),
    ],
)
def test_exceptions_give_status_and_cause(error, status, cause):
    assert (exit_by(error, 0).status, exit_by(error, 0).cause) == (status, cause)


def test_a_note_is_one_short_line():
    rank_exit = exit_by(RuntimeError("first " + "long " * 200 + "\nsecond"), 0)
    assert (
        len(rank_exit.note) == 300 and rank_exit.note.startswith("RuntimeError: first") and "second" in rank_exit.trace
    )


def test_a_note_omits_the_module_of_our_errors():
    assert exit_by(DivergedError("the loss is nan"), 0).note == "DivergedError: the loss is nan"
    assert exit_by(torch.OutOfMemoryError("CUDA"), 0).note == "torch.OutOfMemoryError: CUDA"


def test_the_note_of_a_syntax_error_names_error_and_place():
    with pytest.raises(SyntaxError) as caught:
        compile("def train(config, context)\n    pass\n", "/somewhere/my_training.py", "exec")
    assert exit_by(caught.value, 0).note == "SyntaxError: expected ':' (my_training.py, line 1)"


def test_each_rank_has_local_rank_0():
    batch = Batch(global_batch_size=64, shares=(32, 32))
    context = Context.alone(rank=1, world_size=2, batch=batch, rendezvous="tcp://10.0.0.1:1234")
    env = rank_environment(context)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["NODE_RANK"]) == ("1", "2", "0", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "1234")


def test_a_single_rank_has_no_variables():
    assert rank_environment(Context.alone()) == {}


@pytest.mark.parametrize("rendezvous", [None, "file:///tmp/x", "tcp://host"])
def test_several_ranks_need_a_rendezvous(rendezvous):
    with pytest.raises(ValueError, match="tcp://host:port"):
        rank_environment(Context.alone(world_size=2, rendezvous=rendezvous))
