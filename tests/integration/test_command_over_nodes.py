"""Test commands on two raylets as nodes: one training over both, one on each alone, and a lost node."""

import os
import re
import sys
import time

import psutil
import pytest

from tests.drivers.place import wait_for
from tests.integration.test_several_nodes import raylets as raylets  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = '''
"""DDP on random data, of which each rank has its part, in the same order for any number of ranks."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

device_batch, steps, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(device_batch * world * 8, 16)
targets = inputs.sum(1, keepdim=True)
losses = []
for step in range(steps):
    start = (step % 8 * world + rank) * device_batch
    loss = torch.nn.functional.mse_loss(model(inputs[start:start + device_batch]), targets[start:start + device_batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(pause_s)
    whole = loss.detach() / world
    dist.all_reduce(whole)
    losses.append(float(whole))
    open(f"{os.environ['SWEEP_TRIAL_DIR']}/beat{rank}-{os.environ['SWEEP_NODE_RANK']}", "w").write(str(step))
if rank == 0:
    print(json.dumps({"epoch": 1, "loss": losses[-1], "val_loss": sum(losses) / len(losses)}), flush=True)
dist.destroy_process_group()
'''

TORCHRUN = "{python} -m torch.distributed.run --nproc_per_node={gpus_per_node} train.py {device_batch_size}"


def start(nodes, argv, *more):
    (nodes.folder / "train.py").write_text(SCRIPT)
    metrics = "trainable.metrics={loss: null, val_loss: null}"
    axes = ("sweep.axes.gpus=[4]", "sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]")
    own = (f"trainable.argv={argv!r}", f"trainable.python={sys.executable}", "trainable.optimizer=sgd", metrics)
    fixed = ("sweep.name=over", "sweep.axes.seed=[0]", "warmup_epochs=0", "rerun_invalid=0", "report.metric=val_loss")
    return nodes.start("sweep=batch_scaling", "trainable=command", *own, *axes, *fixed, *more)


def rows(nodes):
    return nodes.trials("over").to_dict("records")


@pytest.mark.parametrize("raylets", [4], indirect=True)
def test_a_training_over_nodes_equals_that_on_one(raylets):
    driver = start(raylets, f"{TORCHRUN} 200 0", "sweep.axes.nodes=[1,2,3]")
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 0, out + err
    one, two, three = sorted(rows(raylets), key=lambda row: row["nodes"])
    assert (one["status"], two["status"], three["status"]) == ("ok", "ok", "infeasible")
    assert (one["ranks"], two["ranks"], one["workers"], two["workers"]) == (1, 2, 4, 4)
    assert abs(one["val_loss"] - two["val_loss"]) < 1e-5 and abs(one["loss"] - two["loss"]) < 1e-5
    assert two["steps"] == 200 and two["samples_per_s"] > 0
    folder = raylets.folder / "results/over/trials" / two["trial_id"]
    assert {"stdout.log", "stdout.node1.log", "rank0.log", "rank1.log"} <= {path.name for path in folder.iterdir()}
    beats = {path.name for path in folder.glob("beat*")}
    assert beats == {"beat0-0", "beat1-0", "beat2-1", "beat3-1"}


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_nodes_that_train_alone_are_marked(raylets):
    """Without `nodes`, four processes need both nodes. The launcher's own rendezvous is for one node."""
    driver = start(raylets, TORCHRUN.replace("train.py", "--standalone --nnodes=1 train.py") + " 200 0")
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 0, out + err
    (row,) = rows(raylets)
    assert (row["ranks"], row["workers"], row["timing_fault"]) == (2, 2, "too_few_workers")


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_a_failed_node_ends_the_command_on_the_other(raylets):
    """The first node waits for the second one, which has run out of memory."""
    failing = "echo torch.OutOfMemoryError: CUDA out of memory. >&2; exit 1"
    driver = start(raylets, f'bash -c "if [ {{node_rank}} = 0 ]; then sleep 600; fi; {failing}" {{gpus_per_node}}')
    out, err = driver.communicate(timeout=600)
    (row,) = rows(raylets)
    assert row["status"] == "oom" and row["note"].startswith("rank 1 on "), out + err
    assert row["wall_s"] < 120  # ten seconds after the failure, where a machine is not busy
    assert not processes_of(raylets.folder)


def processes_of(folder):
    """Return the processes of a command below this folder."""
    alive = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SWEEP_SOURCE_DIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.Error:
            continue
    return alive


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_a_lost_node_ends_the_command_on_all_nodes(raylets):
    driver = start(raylets, f"{TORCHRUN} 100000 0.05", "cluster.wait_s=120", "sweep.budget.wall_s=600")
    beats = raylets.folder / "results/over/trials"
    wait_for(lambda: len([*beats.glob("*/beat*")]) == 4, driver)
    lost_s = time.monotonic()
    raylets.cluster.remove_node(raylets.other, allow_graceful=False)
    wait_for(lambda: raylets.journal("retried", "over"), driver)
    told_s = time.monotonic() - lost_s
    wait_for(lambda: not processes_of(raylets.folder), driver)
    print(f"told after {told_s:.1f} s, no process left after {time.monotonic() - lost_s:.1f} s")
    (retried,) = raylets.journal("retried", "over")
    assert retried["cause"] == "node"
    # Tune puts the supervisor on either node. Lost with its node, it cannot say which rank was lost.
    assert re.search(r"rank 1 on |supervisor failed", retried["note"]), retried["note"]
    for beat in beats.glob("*/beat*"):
        os.remove(beat)
    raylets.cluster.add_node(num_cpus=2, runtime_env_dir_name="new_runtime_resources")
    wait_for(lambda: len([*beats.glob("*/beat*")]) == 4, driver)
