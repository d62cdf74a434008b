# a plain PyTorch script; the lines that end in a number make it run on several GPUs, all others are as before
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--seed", type=int, default=1234)
args = parser.parse_args()

ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))  # 1
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"  # 1
if ranks > 1:
    dist.init_process_group("gloo" if device == "cpu" else "nccl")  # 1
torch.manual_seed(args.seed)

digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
train_set, val_set = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])
sampler = DistributedSampler(train_set, ranks, rank, seed=args.seed)  # 3
train_loader = DataLoader(train_set, args.batch_size, sampler=sampler)  # 3, was shuffle=True
val_loader = DataLoader(val_set, 256)

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10)),
).to(device)
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)  # 2
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)  # 3
    model.train()
    start, total = time.perf_counter(), 0.0
    for x, y in train_loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()  # waits for the GPU, so that the time is that of the work
    seconds = time.perf_counter() - start

    model.eval()
    with torch.no_grad():
        right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in val_loader)
    if rank == 0:  # 4
        loss = total / len(train_loader)
        print(f"epoch {epoch}/{args.epochs}  loss {loss:.4f}  time {seconds:.3f} s  val acc {right / len(val_set):.2%}")

if ranks > 1:
    dist.destroy_process_group()  # 1
