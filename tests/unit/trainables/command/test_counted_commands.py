"""Commands whose processes the hook counts: real processes with torch."""

import pytest

from sweeps.layout import Layout
from sweeps.trial import Batch
from trainables.command.training import train
from trainables.context import Context, UntrainedError

SCRIPT = """
import os, sys, time, json, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
group = "RANK" in os.environ and "alone" not in sys.argv
if group:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
trained = torch.nn.parallel.DistributedDataParallel(model) if group and "apart" not in sys.argv else model
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["SWEEP_LR"]))
data = TensorDataset(torch.randn(250, 64), torch.randint(0, 2, (250,)))
is_divided = group and "same" not in sys.argv
sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=False) if is_divided else None
batch = int(os.environ["SWEEP_DEVICE_BATCH_SIZE"])
def pairs(rows):
    return tuple(map(torch.stack, zip(*rows, *rows)))
workers = dict(num_workers=2, persistent_workers="kept" in sys.argv) if "workers" in sys.argv else {}
loader = DataLoader(data, batch, sampler=sampler, collate_fn=pairs if "pairs" in sys.argv else None, **workers)
held_out = DataLoader(data, 50)
frozen = torch.nn.Sequential(torch.nn.Linear(64, 64))
spent = counted = 0
for epoch in range(4):
    model.train()
    last = None
    for x, y in loader:
        optimizer.zero_grad()
        if "frozen" in sys.argv:
            frozen.eval()
        torch.nn.functional.cross_entropy(trained(x), y).backward()
        if "slow" in sys.argv:
            time.sleep(0.01)
        optimizer.step()
        now = time.perf_counter()
        if last is not None and epoch:
            spent, counted = spent + now - last, counted + 1
        last = now
        if "prints" in sys.argv:
            print("iter 1: loss 0.5, time 1.00ms, mfu 1.00%")
        if "dies" in sys.argv and rank and epoch == 2:
            os._exit(0)
    if "master" in sys.argv and rank:
        continue
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
            time.sleep(1 if "master" in sys.argv else 0.05 if "slow" in sys.argv else 0)
if rank == 0:
    torch.save(obj=model.state_dict(), f="last.pt")
time.sleep(3 if "lingers" in sys.argv and rank == 0 else 0)
if rank == 0:
    print(json.dumps({"truth": spent / counted}), flush=True)
"""
TORCHRUN = "{python} -m torch.distributed.run --nproc_per_node={gpus} --master_port={master_port} train.py"


def run(folder, argv, *, gpus=2, batch=10, **settings):
    (folder / "train.py").write_text(SCRIPT)
    (folder / "trial").mkdir(exist_ok=True)
    batches = Batch(global_batch_size=gpus * batch, shares=(gpus * batch,), parts_per_rank=gpus)
    context = Context.alone(
        trial_dir=folder / "trial",
        batch=batches,
        layout=Layout(strategy="own_ranks", replicas=gpus),
        threads=1,  # the threads of torch would wait for each other busily
        lr=0.01,
    )
    section = {"argv": argv, "source_dir": str(folder), "metrics": {"truth": None, "loss": None}} | settings
    train({"trainable": section, "budget": {"epochs": 4}}, context)
    return context


@pytest.mark.slow
def test_steps_are_timed_without_evaluation_and_first_epoch(tmp_path):
    """A frozen part of the model calls `eval` in each step, which leaves out none of them."""
    context = run(tmp_path, "{python} train.py slow frozen", gpus=1, batch=10, tokens_per_sample=64)
    metrics = context.metrics
    assert metrics["tokens_per_s"] == pytest.approx(64 * metrics["samples_per_s"])
    assert metrics["step_s"] == pytest.approx(
        metrics["truth"], rel=0.5
    )  # on a busy machine; evaluation would double it
    assert (metrics["steps"], metrics["samples"]) == (100, 1000) and metrics["window_steps"] > 50
    assert metrics["samples_per_s"] == pytest.approx(10 / metrics["step_s"]) and "workers" not in metrics
    assert context.remarks == []


@pytest.mark.slow
def test_all_times_of_a_preset_come_from_the_counted_steps(tmp_path):
    """The printed time is 1 ms, a tenth of a step's."""
    settings = {"metrics": "nanogpt", "tokens_per_sample": 64}
    metrics = run(tmp_path, "{python} train.py slow prints", gpus=1, **settings).metrics
    assert metrics["loss"] == 0.5 and metrics["step_s"] > 0.01
    assert metrics["tokens_per_s"] == pytest.approx(64 * 10 / metrics["step_s"])


@pytest.mark.slow
def test_time_in_which_ranks_wait_for_an_evaluation_of_one_does_not_count(tmp_path):
    metrics = run(tmp_path, f"{TORCHRUN} slow master", batch=2).metrics
    assert metrics["workers"] == 2 and metrics["window_steps"] > 50
    assert metrics["step_s"] == pytest.approx(metrics["truth"], rel=0.5)


IN_A_CHILD = """
import multiprocessing, runpy, sys
child = multiprocessing.get_context("fork").Process(target=runpy.run_path, args=(sys.argv[1],))
child.start(), child.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("argv", [("{python}", "train.py"), ("{python}", "-c", IN_A_CHILD, "train.py")])
def test_smaller_last_batches_count_with_their_samples(argv, tmp_path):
    """Four steps of 80, 80, 80 and 10, also in a child process, which ends without exit functions."""
    metrics = run(tmp_path, [*argv, "slow"], gpus=1, batch=80).metrics
    assert (metrics["steps"], metrics["samples"]) == (16, 1000)
    assert metrics["samples_per_s"] == pytest.approx(62.5 / metrics["step_s"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "workers", "workers kept"])
def test_a_pair_of_rows_is_one_sample(how, tmp_path):
    context = run(tmp_path, f"{{python}} train.py slow pairs {how}", gpus=1, batch=80)
    assert (context.metrics["steps"], context.metrics["samples"], context.remarks) == (16, 1000, [])
    assert "epoch_s" in context.metrics  # an iterator that workers keep alive begins anew


WRONG = {
    "flags of the launcher forgotten": "{python} train.py slow",
    "loaders are no workers": "{python} train.py slow workers",
    "one rank of a group": TORCHRUN.replace("{gpus}", "1") + " slow",
    "two ranks, each by itself": f"{TORCHRUN} slow alone",
    "the launcher's own variable ignored": ["bash", "-c", "WORLD={gpus} {python} {source_dir}/train.py slow"],
}


@pytest.mark.slow
@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG)
def test_too_few_processes_are_noticed(argv, tmp_path):
    context = run(tmp_path, argv)
    assert context.metrics["workers"] == 1 and len(context.remarks) >= 1


@pytest.mark.slow
def test_a_process_group_of_all_ranks_is_right(tmp_path):
    context = run(tmp_path, f"{TORCHRUN} slow workers")
    assert context.metrics["workers"] == 2 and context.remarks == []
    assert (context.metrics["steps"], context.metrics["samples"]) == (52, 1000)


@pytest.mark.slow
def test_ranks_that_exchange_no_gradients_are_one_worker(tmp_path):
    context = run(tmp_path, f"{TORCHRUN} slow apart")
    assert context.metrics["workers"] == 1 and "different weights" in context.remarks[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["same", "same apart"])
def test_ranks_with_the_same_samples_are_one_worker(how, tmp_path):
    """Without a distributed sampler; apart, their weights are the same, too."""
    context = run(tmp_path, f"{TORCHRUN} slow {how}")
    assert context.metrics["workers"] == 1 and "same samples" in context.remarks[0]
    assert (context.metrics["steps"], context.metrics["samples"]) == (100, 1000)


@pytest.mark.slow
def test_a_rank_may_work_alone_after_the_training(tmp_path):
    assert run(tmp_path, f"{TORCHRUN} slow lingers").metrics["workers"] == 2


@pytest.mark.slow
def test_values_that_the_training_did_not_use_are_remarked(tmp_path):
    context = run(tmp_path, "{python} train.py", gpus=1, env={"SWEEP_LR": "0.3", "SWEEP_DEVICE_BATCH_SIZE": "50"})
    batch, lr = (remark for remark in context.remarks if "epoch" not in remark)
    assert "50 samples" in batch and "0.3" in lr


def test_without_the_hook_nothing_is_counted(tmp_path):
    """The program prints whether it has the hook, and whether it has the user's own `sitecustomize`."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = True")
    code = "import sys; print('{{\"truth\": %d, \"loss\": %d}}' % (sys.mine, 'sweep_files' in sys.modules))"
    for adapter, is_hooked in (("off", False), ("auto", True)):
        metrics = run(tmp_path, ["{python}", "-c", code], gpus=1, adapter=adapter).metrics
        assert (metrics["truth"], metrics["loss"]) == (1, is_hooked)
        assert (tmp_path / "trial/hook").exists() is is_hooked


@pytest.mark.slow
def test_a_command_that_trains_nothing_fails(tmp_path):
    with pytest.raises(UntrainedError):
        run(tmp_path, ["{python}", "-c", "import torch; torch.optim.SGD([torch.zeros(1)], lr=0.1)"], gpus=1)
