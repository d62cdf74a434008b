"""Train digits with Lightning's Trainer; needs `pip install lightning`. The callback is all that the sweep needs."""

import argparse
import json
import time

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        right = (self.model(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class EpochLine(lightning.Callback):
    """Print a line of JSON for each epoch, with the time of its training part."""

    def on_train_epoch_start(self, trainer, module):
        self.start = time.perf_counter()

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            trainer.strategy.barrier()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.start

    def on_train_epoch_end(self, trainer, module):
        if trainer.is_global_zero:
            metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
            print(json.dumps({"epoch": trainer.current_epoch + 1, "epoch_s": self.seconds, **metrics}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    lightning.seed_everything(args.seed)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train, val = TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])
    trainer = lightning.Trainer(
        devices=args.devices,
        max_epochs=args.epochs,
        callbacks=[EpochLine()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(args.lr), DataLoader(train, args.batch_size, shuffle=True), DataLoader(val, 256))
