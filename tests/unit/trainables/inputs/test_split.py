import pytest
import torch

from trainables.data import Dataset
from trainables.inputs.split import Split
from trainables.seeds import derive

DATA = Dataset(
    train_x=torch.arange(100, dtype=torch.uint8).reshape(100, 1, 1, 1),
    train_y=torch.arange(100) % 10,
    test_x=torch.zeros(5, 1, 1, 1, dtype=torch.uint8),
    test_y=torch.zeros(5, dtype=torch.int64),
    num_classes=10,
    mean=(0.0,),
    std=(1.0,),
    version="",
)


@pytest.mark.parametrize(("fraction", "held"), [(0.0, 0), (0.1, 10), (0.255, 26)])
def test_the_held_out_part_is_disjoint_and_complete(fraction: float, held: int) -> None:
    split = Split.of(DATA, val_fraction=fraction, seed=0)
    assert (len(split.validation), len(split.test)) == (held, 5)
    both = torch.cat([split.train.images, split.validation.images]).flatten()
    assert sorted(both.tolist()) == list(range(100))
    assert torch.equal(split.train.targets, split.train.images.flatten() % 10)


def test_the_seed_decides() -> None:
    one, same, other = (Split.of(DATA, val_fraction=0.2, seed=seed).validation.images for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_seeds_of_different_purposes_are_unrelated() -> None:
    seeds = {derive(seed, *purpose) for seed in range(50) for purpose in (("epoch", 1), ("epoch", 11), ("rank", 1))}
    assert len(seeds) == 150 and all(0 <= seed < 2**63 for seed in seeds)
