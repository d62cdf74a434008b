"""One training by four frameworks, as trainables: `training:ddp`, `fsdp2`, `with_accelerate` and `with_lightning`.

    python -m orchestrator sweep=batch_scaling trainable=function trainable._target_=training:fsdp2 \\
        'trusted_modules=[training]'

Each is called once in every rank's process, which sees only its own device.
"""

import logging
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainables import process_group
from trainables.rank import rank_environment
from trainables.throughput import throughput


def ddp(config, context):
    process_group.join(context)
    model = make_model().to(context.device)
    train(model if context.world_size == 1 else DistributedDataParallel(model), config, context)


def fsdp2(config, context):
    process_group.join(context)
    model = make_model().to(context.device)
    if context.world_size > 1:
        mesh = torch.distributed.init_device_mesh(context.device.partition(":")[0], (context.world_size,))
        for layer in (*model, model):
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
    train(model, config, context)


def with_accelerate(config, context):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    os.environ.update(rank_environment(context))
    process_group.join(context)
    AcceleratorState._reset_state(reset_partial_state=True)  # this process may have served another trial
    accelerator = Accelerator(cpu=context.device == "cpu")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=context.lr.value, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    train(model, config, context, optimizer=optimizer, backward=accelerator.backward)
    context.summarize({"world_size_seen": accelerator.num_processes})


def with_lightning(config, context):
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ.update(rank_environment(context))
    process_group.join(context)
    train_set, *held_out = digits("cpu")
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*train_set),
        batch_size=context.batch.device_batch_size,
        drop_last=True,
        shuffle=True,
    )

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.log("loss", loss)
            return loss

        def on_train_epoch_end(self):
            context.report({"epoch": self.current_epoch + 1, "loss": float(self.trainer.callback_metrics["loss"])})
            # All ranks at the end of the same epoch, or none: a rank that stopped alone would leave the others waiting.
            if self.trainer.strategy.reduce_boolean_decision(context.should_stop(), all=False):
                self.trainer.should_stop = True

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=context.lr.value, momentum=0.9)

    torch.manual_seed(context.seed)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu" if context.device == "cpu" else "gpu",
        devices=1,
        num_nodes=context.world_size,
        strategy="ddp" if context.world_size > 1 else "auto",
        max_epochs=config["budget"]["epochs"],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module, loader)
    context.summarize(accuracies(module.model.cpu(), *held_out))
    context.summarize({"world_size_seen": trainer.world_size})


def train(model, config, context, *, optimizer=None, backward=torch.Tensor.backward):
    """For the three that leave the loop to us: each rank takes its share of every global batch."""
    (x, y), *held_out = digits(context.device)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=context.lr.value, momentum=0.9)
    batches = shares(len(x), context)

    def step():
        mine = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        backward(loss)
        optimizer.step()
        return loss

    steps, samples = len(x) // context.batch.global_batch_size, 0
    for epoch in range(1, config["budget"]["epochs"] + 1):
        for _ in range(steps):
            loss = step()
        samples += steps * context.batch.global_batch_size
        context.report({"epoch": epoch, "loss": loss.item(), "samples": samples})
    context.summarize(accuracies(model, *held_out))
    context.summarize({"samples": samples, "weights": sum_of(model)})
    context.summarize(throughput(step, context, least_s=config["trainable"].get("window_s", 2.0)))


@torch.no_grad()
def accuracies(model, validation, test):
    """The recommendation compares `val_accuracy`; `accuracy` is of the test set, which never decides."""
    sets = {"val_accuracy": validation, "accuracy": test}
    return {name: (model(x).argmax(1) == y).float().mean().item() for name, (x, y) in sets.items()}


def sum_of(model):
    """Sum all weights: equal for any number of ranks at the same global batch, except for rounding."""
    return sum(
        (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).sum().item()
        for parameter in model.parameters()
    )


def make_model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits(device):
    dataset = load_digits()
    x = torch.tensor(dataset.data / 16, dtype=torch.float32, device=device)
    y = torch.tensor(dataset.target, device=device)
    fifth = torch.arange(len(x)) % 5
    return [(x[part], y[part]) for part in (fifth > 1, fifth == 1, fifth == 0)]  # training, validation, test


def shares(count, context):
    """For ever: the indices of this rank's share of the next global batch, shuffled alike on all ranks."""
    first = sum(context.batch.shares[: context.rank])
    generator = torch.Generator().manual_seed(context.seed)
    while True:
        for batch in torch.randperm(count, generator=generator).split(context.batch.global_batch_size):
            if len(batch) == context.batch.global_batch_size:
                yield batch[first : first + context.batch.shares[context.rank]]
