"""Test commands on four raylets as nodes: equal trainings, failures of a node, and a lost node; and known launchers."""

import importlib.util
import os
import re
import sys
import time

import pandas as pd
import psutil
import pytest

from tests.drivers.place import wait_for
from tests.integration.test_several_nodes import cluster_of
from tests.integration.test_several_nodes import raylets as raylets  # a fixture
from tests.unit.trainables.command.test_training import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINING = '''
"""DDP on random data, of which each rank has its part, in the same order for any number of ranks."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

mode, device_batch, steps, pause_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
folder, node = os.environ["SWEEP_TRIAL_DIR"], int(os.environ["SWEEP_NODE_RANK"])
if mode == "alone":  # as by a rendezvous that each node makes for itself
    group = {"rank": int(os.environ["LOCAL_RANK"]), "world_size": int(os.environ["LOCAL_WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=f"file://{folder}/group{node}", **group)
else:
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
    time.sleep(0.03 if node == 2 else pause_s)
    whole = loss.detach() / world
    dist.all_reduce(whole)
    losses.append(float(whole))
    open(f"{folder}/beat{rank}-{node}", "w").write(str(step))
if rank == 0:
    print(json.dumps({"epoch": 1, "loss": losses[-1], "val_loss": sum(losses) / len(losses)}), flush=True)
dist.destroy_process_group()
'''

FAULTS = '''
"""A process on each of two nodes, without a process group; what happens to it is its mode."""
import json
import os
import socket
import sys
import time
from pathlib import Path

mode, folder = sys.argv[1], Path(os.environ["SWEEP_SOURCE_DIR"])
node, port = int(os.environ["SWEEP_NODE_RANK"]), int(os.environ["MASTER_PORT"])


def report(epoch):
    print(json.dumps({"epoch": epoch, "val_loss": 1 / epoch}), flush=True)
    time.sleep(0.1)


def wait():
    time.sleep(600)


if mode == "memory":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.") if node else wait()
if mode == "hung":
    for epoch in range(1, 6000):
        report(epoch)
        if node and epoch == 10:
            wait()
if mode == "port" and not node:
    with (folder / "ports").open("a") as file:
        file.write(f"{port}\\n")
    if len((folder / "ports").read_text().split()) == 1:  # another program has it at the first attempt
        other = socket.create_server(("", port))
    server = socket.create_server(("", port))
if mode in ("left", "right"):
    (folder / f"{mode}{node}").touch()
    while len(list(folder.glob("left?")) + list(folder.glob("right?"))) < 4:
        time.sleep(0.1)
report(1)
report(2)
'''

TORCHRUN = (
    "{python} -m torch.distributed.run --nproc_per_node={gpus_per_node} train.py {trainable.mode} {device_batch_size}"
)
MODES = '+sweep.axes."trainable.mode"'


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Start four nodes; the first one could hold a whole trial. One that does not answer counts as lost after 15 s."""
    folder = tmp_path_factory.mktemp("nodes")
    with cluster_of(folder, 4, 2, 2, 2, RAY_health_check_timeout_ms="2000") as cluster:
        (cluster.folder / "train.py").write_text(TRAINING)
        (cluster.folder / "faults.py").write_text(FAULTS)
        yield cluster


def start(nodes, name, argv, *axes_and_more, host=None):
    metrics = "trainable.metrics={loss: null, val_loss: null}"
    axes = ("sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]")
    own = (f"trainable.argv={argv!r}", f"trainable.python={sys.executable}", "trainable.optimizer=sgd", metrics)
    fixed = (
        f"sweep.name={name}",
        "warmup_epochs=0",
        "rerun_invalid=0",
        "report.metric=val_loss",
        "report.margin=0.01",
        "+trainable.mode=''",
    )
    return nodes.start("sweep=batch_scaling", "trainable=command", *own, *axes, *fixed, *axes_and_more, host=host)


def ended(nodes, name, driver):
    """Wait for the driver's end; return the rows of its trials."""
    out, err = driver.communicate(timeout=600)
    assert driver.returncode == 0, out + err
    return nodes.trials(name).to_dict("records")


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_one_training_in_every_division(nodes):
    """Three and four processes on one node, two and three; the third node is slow; two nodes train alone."""
    axes = ("sweep.axes.gpus=[3,4]", "sweep.axes.nodes=[1,2,3]", f"{MODES}=[together,alone]")
    left_out = ", ".join(f"{{trainable.mode: alone, {cells}}}" for cells in ("gpus: 3", "nodes: 1", "nodes: 3"))
    driver = start(nodes, "over", f"{TORCHRUN} 100 0", *axes, f"sweep.exclude=[{left_out}]")
    rows = ended(nodes, "over", driver)
    by_cell = {(row["trainable.mode"], row["gpus"], row["nodes"]): row for row in rows}
    together = {key[1:]: row for key, row in by_cell.items() if key[0] == "together"}
    infeasible = [key for key, row in together.items() if row["status"] == "infeasible"]
    assert sorted(infeasible) == [(3, 2), (4, 3)]
    ok = {key: row for key, row in together.items() if key not in infeasible}
    assert {key: (row["ranks"], row["workers"], row["steps"]) for key, row in ok.items()} == {
        (gpus, count): (count, gpus, 100) for gpus, count in ((3, 1), (3, 3), (4, 1), (4, 2))
    }
    for gpus, count in ((3, 3), (4, 2)):
        for figure in ("loss", "val_loss"):
            assert abs(ok[gpus, 1][figure] - ok[gpus, count][figure]) < 1e-5
    assert ok[3, 3]["step_s"] >= 0.03 and (pd.DataFrame(ok.values()).n_params == 16 * 32 + 32 + 32 + 1).all()
    alone = by_cell["alone", 4, 2]
    assert (alone["ranks"], alone["workers"], alone["timing_fault"]) == (2, 2, "too_few_workers")
    folder = nodes.folder / "results/over/trials" / ok[4, 2]["trial_id"]
    assert {"stdout.log", "stdout.node1.log", "rank0.log", "rank1.log"} <= {path.name for path in folder.iterdir()}
    assert {path.name for path in folder.glob("beat*")} == {"beat0-0", "beat1-0", "beat2-1", "beat3-1"}
    cells = pd.read_csv(folder.parents[1] / "tables/summary.csv").set_index(["trainable.mode", "gpus", "nodes"])
    within, between = (cells.loc[("together", 4, count)] for count in (1, 2))
    assert between.lost_communication == pytest.approx(within.efficiency - between.efficiency)


def test_faults_of_a_node_end_the_trial_on_all_nodes(nodes):
    """Two trials of two nodes run at a time, and wait for one another."""
    argv = "{python} faults.py {trainable.mode} {gpus_per_node} {device_batch_size}"
    axes = ("sweep.axes.gpus=[2]", "sweep.axes.nodes=[2]", f"{MODES}=[memory,hung,port,left,right]")
    driver = start(nodes, "faults", argv, *axes, "hang_s=15")
    rows = {row["trainable.mode"]: row for row in ended(nodes, "faults", driver)}
    statuses = {"memory": "oom", "hung": "timeout", "port": "ok", "left": "ok", "right": "ok"}
    assert {mode: row["status"] for mode, row in rows.items()} == statuses, rows
    assert all(rows[mode]["note"].startswith("rank 1 on ") for mode in ("memory", "hung")), rows
    assert rows["memory"]["wall_s"] < 300  # ten seconds after the failure, where a machine is not busy
    (retried,) = nodes.journal("retried", "faults")
    assert (retried["trial_id"], retried["cause"]) == (rows["port"]["trial_id"], "port")
    assert len(set((nodes.folder / "ports").read_text().split())) == 2
    assert not processes_of(nodes.folder)


def test_lost_and_hung_nodes_end_the_command_on_all_nodes(nodes):
    """The trial takes all four nodes, and runs again whenever another one has come in place of a lost one."""
    axes = ("sweep.axes.gpus=[4]", "sweep.axes.nodes=[4]", f"{MODES}=[together]")
    driver = start(nodes, "lost", f"{TORCHRUN} 100000 0.05", *axes, "cluster.wait_s=300", "sweep.budget.wall_s=900")
    killed, hung, *_ = nodes.others
    wait_for(lambda: len(beats_of(nodes)) == 4, driver)
    nodes.cluster.remove_node(killed, allow_graceful=False)
    await_retry(nodes, driver, attempts=1)
    nodes.add(2)
    wait_for(lambda: len(beats_of(nodes)) == 4, driver)
    stopped = stop(hung)
    await_retry(nodes, driver, attempts=2, but=stopped)
    for process in stopped:
        process.resume()
    # The raylet learns that it counts as lost, and ends. Its workers do not notice before it has been waited for.
    (raylet,) = hung.all_processes["raylet"]
    raylet.process.wait(120)
    wait_for(lambda: not any(map(is_alive, stopped)), driver)
    nodes.add(2)
    wait_for(lambda: len(beats_of(nodes)) == 4, driver)


def beats_of(nodes):
    return [*(nodes.folder / "results/lost/trials").glob("*/beat*")]


def await_retry(nodes, driver, attempts, but=()):
    """Wait until so many attempts have failed, and no process of the last one is left but these."""
    lost_s = time.monotonic()
    wait_for(lambda: len(nodes.journal("retried", "lost")) == attempts, driver)
    told_s = time.monotonic() - lost_s
    wait_for(lambda: not set(processes_of(nodes.folder)) - set(but), driver)
    print(f"told after {told_s:.1f} s, no process left after {time.monotonic() - lost_s:.1f} s")
    *_, retried = nodes.journal("retried", "lost")
    # Tune puts the supervisor on any node. Lost with its node, it cannot say which rank was lost.
    assert retried["cause"] == "node" and re.search(r"rank \d on |supervisor failed", retried["note"]), retried
    for beat in beats_of(nodes):
        os.remove(beat)


def stop(node):
    """Stop all processes of a node, which then answers nobody; return them."""
    (raylet,) = node.all_processes["raylet"]
    raylet = psutil.Process(raylet.process.pid)
    raylet.suspend()
    workers = raylet.children(recursive=True)
    for process in workers:
        process.suspend()
    return [raylet, *workers]


TITAN = '''
"""A training in torchtitan's style: a file of settings, options that replace them, and lines of log without JSON."""
import argparse
import logging
import time
import tomllib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--job.config_file", required=True)
parser.add_argument("--training.local_batch_size", type=int)
parser.add_argument("--training.steps", type=int)
given = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
with open(given["job.config_file"], "rb") as file:
    settings = tomllib.load(file)
batch, steps = given["training.local_batch_size"], given.get("training.steps", settings["training"]["steps"])
logging.basicConfig(level=logging.INFO, format="[titan] %(asctime)s - root - %(levelname)s - %(message)s")
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(settings["model"]["n_layers"])))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=settings["optimizer"]["lr"])
for step in range(1, steps + 1):
    began_s = time.perf_counter()
    loss = model(torch.randn(batch, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tps = batch * 32 / (time.perf_counter() - began_s)
    logging.info(f"step: {step:2}  loss: {float(loss):7.4f}  memory:  0.00GiB(0.00%)  tps: {tps:,.0f}  mfu: 0.10%")
dist.destroy_process_group()
'''

SETTINGS = "[model]\nn_layers = 2\n[optimizer]\nlr = 1e-3\n[training]\nsteps = 60\n"

ACCELERATE = """
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
inputs = torch.randn(2048, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), int(sys.argv[1]), shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
"""

LIGHTNING = """
import os
import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


devices, nodes = int(sys.argv[2]), int(sys.argv[3])
lightning.seed_everything(0)
inputs = torch.randn(2048, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), int(sys.argv[1]), shuffle=True)
own = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
strategy = "ddp" if devices * nodes > 1 else "auto"
trainer = lightning.Trainer(accelerator="cpu", devices=devices, num_nodes=nodes, strategy=strategy, max_epochs=2, **own)
trainer.fit(Model(), loader)
"""

MACHINES = "--num_machines {nodes} --machine_rank {node_rank}"
MACHINES += " --main_process_ip {master_addr} --main_process_port {master_port}"
LAUNCHERS = {
    "titan": (
        TITAN,
        "torch",
        "torchrun --nproc_per_node={gpus_per_node} train.py --job.config_file train.toml"
        " --training.local_batch_size={device_batch_size}",
    ),
    "accelerate": (
        ACCELERATE,
        "accelerate",
        f"accelerate launch --multi_gpu --num_processes {{gpus}} {MACHINES} train.py {{device_batch_size}}",
    ),
    "lightning": (LIGHTNING, "lightning", "{python} train.py {device_batch_size} {gpus_per_node} {nodes}"),
}


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_launchers_train_over_nodes(raylets):
    """As in the documentation: the command alone, without a pattern for what it prints."""
    there = [name for name in LAUNCHERS if importlib.util.find_spec(LAUNCHERS[name][1])]
    for name in there:
        folder = raylets.folder / name
        folder.mkdir()
        (folder / "train.toml").write_text(SETTINGS)
        (folder / "train.py").write_text(LAUNCHERS[name][0])
        own = (f"trainable.source_dir={folder}", f"trainable.python={sys.executable}", f"sweep.name={name}")
        # With one process accelerate refuses the flag by which it starts several without a GPU.
        axes = ("sweep.axes.gpus=[2,4]", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]")
        fixed = ("sweep.axes.seed=[0]", "warmup_epochs=0", "rerun_invalid=0", "trainable.optimizer=sgd")
        driver = raylets.start("sweep=batch_scaling", *own, *axes, *fixed, "--", *LAUNCHERS[name][2].split())
        two, four = ended(raylets, name, driver)
        assert (two["ranks"], two["workers"], four["ranks"], four["workers"]) == (1, 2, 2, 4), name
        for row, samples in ((two, 64), (four, 128)):
            assert (row["status"], row["rate_source"]) == ("ok", "counted"), name
            assert row["samples_per_s"] * row["step_s"] == pytest.approx(samples), name
    if len(there) < len(LAUNCHERS):
        pytest.skip(f"not installed, and so not tried: {sorted(set(LAUNCHERS) - set(there))}")
