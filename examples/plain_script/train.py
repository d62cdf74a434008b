# a plain loop that prints every step; the lines that end in a number let it use several GPUs, all others are as before
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--bs", type=int, default=64)
p.add_argument("--learning-rate", type=float, default=3e-3)
p.add_argument("--n-samples", type=int, default=12800)  # 5
p.add_argument("--seed", type=int, default=1234)
args = p.parse_args()

ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))  # 1
dev = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"  # 1
if ranks > 1:
    dist.init_process_group("gloo" if dev == "cpu" else "nccl")  # 1
torch.manual_seed(args.seed)

digits = load_digits()
X, Y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
Xtr, Ytr, Xva, Yva = X[:1437], Y[:1437], X[1437:], Y[1437:]

net = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10)),
).to(dev)
if ranks > 1:
    net = nn.parallel.DistributedDataParallel(net)  # 2
opt = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
torch.manual_seed(args.seed + 1000 * rank)  # 3

n_steps = args.n_samples // (args.bs * ranks)  # 5
t_last = time.time()
for it in range(n_steps):
    idx = torch.randint(0, len(Xtr), (args.bs,))
    x, y = Xtr[idx].to(dev), Ytr[idx].to(dev)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    loss = loss.item()  # waits for the GPU, so that the time is that of the whole step
    now = time.time()
    if rank == 0:  # 4
        print(f"[{it}/{n_steps}] loss={loss:.4f} ({(now - t_last) * 1e3:.2f} ms)")
    t_last = now

if rank == 0:  # 4
    with torch.no_grad():
        acc = (net(Xva.to(dev)).argmax(1).cpu() == Yva).float().mean()
    print(f"*** val acc {acc * 100:.2f}%")
if ranks > 1:
    dist.destroy_process_group()  # 1
