"""Ways in which a training script is wrong, and what tells of each of them after a sweep.

A script that prints its training metric as that of the validation is wrong, too, and nothing tells of it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd
import pytest

from orchestrator.store.history import History
from orchestrator.store.journal import replay
from orchestrator.telemetry.timing_gate import Fault
from tests.unit.orchestrator.decision.deciding import codes, decided_with_frames

TRAIN = """
import argparse, json, os, pathlib, torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
for name, kind in (("bs", int), ("lr", float), ("epochs", int), ("seed", int), ("gpus", int), ("wrong", str)):
    parser.add_argument(f"--{name}", type=kind, default=kind())
given = parser.parse_args()
wrong = given.wrong
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
torch.set_num_threads(1)
if world > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(1100, 16)
y = (x[:, 0] + 0.7 * torch.randn(1100) > 0).long()
train, validation = TensorDataset(x[:600], y[:600]), (x[600:], y[600:])
torch.manual_seed(7 if wrong == "ignores the seed" else given.seed)
batch, lr = given.bs, given.lr
batch = {"ignores the batch": 64, "takes the batch as the global one": batch // world}.get(wrong, batch)
lr = {"ignores the rate": 0.05, "scales the rate twice": lr * (batch / 32) ** 0.5}.get(wrong, lr)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
ddp = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
checkpoint, best, patience, begin = pathlib.Path(__file__).with_name("last.pt"), 9e9, 3, 0
if wrong == "resumes another trial" and checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    begin = given.epochs // 2
sampler = DistributedSampler(train, world, rank) if world > 1 else None
loader = DataLoader(train, batch, sampler=sampler, shuffle=world == 1, drop_last=wrong == "drops the last batch")
for epoch in range(begin, given.epochs):
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        inputs, labels = validation
        outputs = model(inputs)
        accuracy = (outputs.argmax(1) == labels).float().mean().item() * (100 if wrong == "percent" else 1)
        loss = torch.nn.functional.cross_entropy(outputs, labels).item()
    model.train()
    if rank == 0:
        print(json.dumps({"epoch": epoch + 1, "val_accuracy": accuracy}), flush=True)
    if wrong in ("resumes another trial", "saves to a fixed folder") and rank == 0:
        torch.save({"model": model.state_dict()}, checkpoint)
    patience, best = (3, loss) if loss < best - 0.02 else (patience - 1, best)
    if wrong == "stops when it has converged" and not patience:
        break
"""
EPOCHS = 12
COMMAND = (
    *("sweep=batch_scaling", "trainable=command", "sweep.name=wrong", f"budget.epochs={EPOCHS}", "warmup_epochs=0"),
    *("trainable.lr=0.05", "trainable.reference_batch_size=32", "sweep.axes.lr_rule=[linear]", "rerun_invalid=0"),
)
SCRIPT = "train.py --bs {device_batch_size} --lr {lr} --epochs {epochs} --seed {seed} --wrong"
TORCHRUN = "torchrun --nproc_per_node={gpus} --master_port={master_port}"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The trials of a sweep, and the caveats of its recommendation."""

    trials: pd.DataFrame
    caveats: list[str]

    def has_notes(self, *batches):
        """Return whether the trials with these batches have a note, and no others."""
        with_note = self.trials.loc[self.trials["note"] != "", "device_batch_size"]
        return set(with_note) == set(batches)

    @property
    def is_short(self):
        return bool((self.trials["work_done"] < 0.98).any())


@dataclass(frozen=True, kw_only=True)
class Way:
    """A sweep of the script, and whether what it shows tells that the script is wrong."""

    tells: Callable[[Seen], bool]
    gpus: int = 1
    batches: tuple[int, ...] = (32, 128)
    seeds: int = 1
    launcher: str = "{python}"


WAYS = {
    "nothing": Way(tells=lambda seen: not seen.has_notes() or seen.is_short or "seeds_without_effect" in seen.caveats),
    "ignores the batch": Way(tells=lambda seen: seen.has_notes(32, 128)),
    "ignores the rate": Way(tells=lambda seen: seen.has_notes(128)),
    "scales the rate twice": Way(tells=lambda seen: seen.has_notes(128)),
    "ignores the seed": Way(tells=lambda seen: "seeds_without_effect" in seen.caveats, batches=(32,), seeds=3),
    "percent": Way(tells=lambda seen: "margin_of_fractions" in seen.caveats, batches=(32,)),
    "drops the last batch": Way(tells=lambda seen: seen.has_notes(32, 128)),
    "resumes another trial": Way(tells=lambda seen: seen.is_short),
    "saves to a fixed folder": Way(tells=lambda seen: seen.has_notes(32, 128)),
    "stops when it has converged": Way(tells=lambda seen: seen.is_short),
    "ignores the GPUs": Way(
        tells=lambda seen: set(seen.trials["timing_fault"]) == {Fault.TOO_FEW_WORKERS.value}, gpus=2, batches=(32,)
    ),
    "takes the batch as the global one": Way(
        tells=lambda seen: seen.has_notes(32), gpus=2, batches=(32,), launcher=TORCHRUN
    ),
}


def undisturbed(record):
    """Return the record as a longer trial on a quiet machine would have it: timings are not the subject here."""
    return replace(record, metrics=record.metrics | {"window_s": 5.0, "window_steps": 600, "foreign_cpu": 0.0})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wrong", WAYS)
def test_a_wrong_script_is_noticed(place, wrong):
    way = WAYS[wrong]
    (place.folder / "train.py").write_text(TRAIN)
    axes = {"gpus": [way.gpus], "device_batch_size": list(way.batches), "seed": list(range(way.seeds))}
    argv = f"{way.launcher} {SCRIPT} '{wrong}'" + (" --gpus {gpus}" if way.gpus > 1 else "")
    on_ray = ("backend=ray", "cluster.dashboard=false", "resources.device=cpu") if way.gpus > 1 else ()
    start = place.start_afresh if way.gpus > 1 else place.start
    process = start(
        *COMMAND,
        *on_ray,
        f"trainable.argv={json.dumps(argv)}",
        *(f"sweep.axes.{axis}={values}".replace(" ", "") for axis, values in axes.items()),
    )
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, out + err
    records = History(replay(place.folder / "results/wrong/journal.jsonl").records).ends.values()
    trials, _, recommendation = decided_with_frames([undisturbed(record) for record in records])
    seen = Seen(trials=trials, caveats=codes(recommendation.caveats))
    assert way.tells(seen) == (wrong != "nothing"), f"{trials.to_string()}\n{seen.caveats}\n{out}"
