"""A small GPT on characters: iterations instead of epochs, configured by --key=value, one file."""

import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

# Defaults; any of them is overridden by --key=value.
batch_size, block_size, n_layer, n_head, n_embd = 16, 32, 2, 2, 32
learning_rate, max_iters, eval_interval, seed = 1e-3, 60, 20, 1337
for argument in sys.argv[1:]:
    key, _, value = argument.removeprefix("--").partition("=")
    assert key in globals(), f"unknown config key: {key}"
    globals()[key] = type(globals()[key])(float(value)) if isinstance(globals()[key], int) else float(value)

ddp = int(os.environ.get("RANK", -1)) != -1
cuda = torch.cuda.is_available()
if ddp:
    dist.init_process_group("nccl" if cuda else "gloo")
rank, world_size = (dist.get_rank(), dist.get_world_size()) if ddp else (0, 1)
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if cuda else "cpu"
torch.manual_seed(seed + rank)

text = "".join(f"{a} and {b} make {a + b}. " for a in range(60) for b in range(60))
characters = sorted(set(text))
data = torch.tensor([characters.index(character) for character in text])
train_data, val_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(source):
    starts = torch.randint(len(source) - block_size - 1, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in starts])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in starts])
    return x.to(device), y.to(device)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(len(characters), n_embd), nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.head = nn.Linear(n_embd, len(characters))

    def forward(self, x, y):
        places = torch.arange(x.shape[1], device=x.device)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.blocks(self.token(x) + self.position(places), mask=mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


model = GPT().to(device)
if ddp:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

started = time.time()
for iteration in range(1, max_iters + 1):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * iteration / max_iters)))
    loss = model(*get_batch(train_data))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iteration % eval_interval == 0:
        train_loss = loss.item()  # waits for the device
        seconds = time.time() - started
        with torch.no_grad():
            val_loss = sum(model(*get_batch(val_data)).item() for _ in range(4)) / 4
        if rank == 0:
            done = iteration // eval_interval
            speed = eval_interval * batch_size * world_size / seconds
            row = {"epoch": done, "iter": iteration, "loss": train_loss, "val_loss": val_loss, "interval_s": seconds}
            print(json.dumps(row | {"sequences_per_s": speed}), flush=True)
        started = time.time()
if ddp:
    dist.destroy_process_group()
