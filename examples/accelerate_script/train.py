"""Train digits in the style of Hugging Face accelerate's examples; needs `pip install accelerate`."""

import argparse
import json
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits


def training_function(args):
    accelerator = Accelerator(cpu=args.cpu)
    set_seed(args.seed)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    test = torch.arange(len(x)) % 5 == 0
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x[~test], y[~test]), batch_size=args.batch_size, shuffle=True
    )
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(1, args.num_epochs + 1):
        model.train()
        started = time.perf_counter()
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        row = {"epoch": epoch, "train/loss": loss.item(), "runtime": time.perf_counter() - started}
        model.eval()
        with torch.no_grad():
            predicted = model(x[test].to(accelerator.device)).argmax(1).cpu()
        row["eval/accuracy"] = (predicted == y[test]).float().mean().item()
        if accelerator.is_main_process:
            with open(args.log, "a") as file:
                file.write(json.dumps(row) + "\n")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--batch_size", type=int, default=16, help="per process")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log", default="log.jsonl")
    training_function(parser.parse_args())
