"""Train digits in the style of a reference script: functions, a metric logger on every rank, started by torchrun."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn


def init_distributed_mode(args):
    if "RANK" not in os.environ:
        args.distributed, args.rank, args.world_size = False, 0, 1
        return
    args.distributed = True
    args.rank, args.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")


def load_data():
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
    test = torch.arange(len(x)) % 5 == 0
    return torch.utils.data.TensorDataset(x[~test], y[~test]), torch.utils.data.TensorDataset(x[test], y[test])


def train_one_epoch(model, criterion, optimizer, loader, args, epoch):
    model.train()
    started, samples = time.perf_counter(), 0
    for image, target in loader:
        image, target = image.to(args.device), target.to(args.device)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(image) * args.world_size
    value = loss.item()  # waits for the device
    seconds = time.perf_counter() - started
    if args.rank == 0:
        print(f"Epoch: [{epoch}]  loss: {value:.4f}  img/s: {samples / seconds:.2f}  time: {seconds:.4f}", flush=True)


@torch.inference_mode()
def evaluate(model, loader, args):
    model.eval()
    right = count = 0
    for image, target in loader:
        right += (model(image.to(args.device)).argmax(1).cpu() == target).sum().item()
        count += len(image)
    if args.rank == 0:
        print(f"Test:  Acc@1 {100 * right / count:.3f}", flush=True)


def main(args):
    init_distributed_mode(args)
    torch.manual_seed(args.seed)
    train_set, test_set = load_data()
    sampler = torch.utils.data.DistributedSampler(train_set) if args.distributed else None
    loader = torch.utils.data.DataLoader(
        train_set, batch_size=args.batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(args.device)
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        train_one_epoch(model, nn.CrossEntropyLoss(), optimizer, loader, args, epoch)
        evaluate(model, torch.utils.data.DataLoader(test_set, batch_size=256), args)
    if args.distributed:
        dist.destroy_process_group()


def get_args_parser():
    parser = argparse.ArgumentParser(description="Classification training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-b", "--batch-size", default=32, type=int, help="images per GPU")
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--seed", default=0, type=int)
    return parser


if __name__ == "__main__":
    main(get_args_parser().parse_args())
