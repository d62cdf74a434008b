"""Train digits in the style of many a repository of 2018: one file, DataParallel, a progress bar."""

import argparse
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser(description="PyTorch digits training")
parser.add_argument("--lr", default=0.1, type=float, help="learning rate")
parser.add_argument("--batch-size", default=128, type=int, help="of all GPUs together")
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--seed", default=0, type=int)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"

print("==> Preparing data..")
digits = load_digits()
inputs = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
targets = torch.tensor(digits.target)
held_out = torch.arange(len(inputs)) % 5 == 0
train_set = torch.utils.data.TensorDataset(inputs[~held_out], targets[~held_out])
train_loader = torch.utils.data.DataLoader(train_set, batch_size=args.batch_size, shuffle=True)

print("==> Building model..")
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
).to(device)
if device == "cuda":
    net = nn.DataParallel(net)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)

for epoch in range(args.epochs):
    print(f"\nEpoch: {epoch}")
    net.train()
    began, total_loss, correct, total = time.time(), 0.0, 0, 0
    for index, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        outputs = net(x)
        loss = criterion(outputs, y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        correct += outputs.argmax(1).eq(y).sum().item()
        total += y.size(0)
        share = 100.0 * correct / total
        mean_loss = total_loss / (index + 1)
        sys.stdout.write(f"\r [{index + 1}/{len(train_loader)}] Loss: {mean_loss:.3f} | Acc: {share:.3f}%")
    print(f"\nepoch took {time.time() - began:.3f}s | train loss {total_loss / len(train_loader):.4f}")

net.eval()
with torch.no_grad():
    predicted = net(inputs[held_out].to(device)).argmax(1).cpu()
print(f"==> Test accuracy: {100.0 * predicted.eq(targets[held_out]).float().mean().item():.2f}%")
