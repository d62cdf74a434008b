import math
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trainables.inputs.feeds import IMAGES, MEAN, STD, batch, epoch, form, global_batches, source
from trainables.data import Dataset
from trainables.inputs import inputs
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.feed import Split
from trainables.torch_state import derive

EVERYTHING = Augmentation(crop_padding=2, flip=True, cutout=3)


@settings(max_examples=30, deadline=None)
@given(shares=st.lists(st.integers(1, 7), min_size=1, max_size=4), accum=st.integers(1, 3))
def test_global_batch_is_the_same_for_any_ranks(shares, accum):
    size = sum(shares) * accum
    if size > 50:
        return
    ours = global_batches(tuple(shares), accum, augmentation=EVERYTHING)
    alone = global_batches((size,), 1, augmentation=EVERYTHING)
    assert len(ours) == len(alone) == 50 // size
    for (x, y), (x_alone, y_alone) in zip(ours, alone, strict=True):
        assert torch.equal(x, x_alone) and torch.equal(y, y_alone)


def test_epoch_takes_each_sample_at_most_once_in_random_order():
    inputs = source(shares=(16,))
    first, again, second = (torch.cat([y for _, y in epoch(inputs, number)]) for number in (1, 1, 2))
    assert len(first) == len(first.unique()) == 48
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert not torch.equal(first, torch.cat([y for _, y in epoch(source(shares=(16,), seed=4), 1)]))


@pytest.mark.parametrize("channels_last", [False, True])
def test_pixels_are_normalised_as_torchvision_would(channels_last):
    [(x, y), *_] = epoch(source(shares=(10,), form=form(channels_last=channels_last)), 1)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (MEAN, STD))
    torch.testing.assert_close(x, (IMAGES[y] / 255.0 - mean) / std, check_dtype=False, atol=1e-6, rtol=0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert x.is_contiguous(memory_format=layout)


def test_small_blocks_change_nothing(monkeypatch):
    whole = global_batches((4, 3), 2, augmentation=EVERYTHING)
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 1)
    for one, other in zip(whole, global_batches((4, 3), 2, augmentation=EVERYTHING), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_too_few_samples_are_an_error():
    with pytest.raises(ValueError, match="global_batch_size=51 .* 50 "):
        source(shares=(51,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_epoch_continued_in_its_middle_has_the_same_bits(dtype):
    given = {"augmentation": EVERYTHING, "form": form(dtype=dtype)}
    for rank in range(2):
        whole = list(epoch(source(shares=(3, 4), accum=2, rank=rank, **given), 4))
        inputs = source(shares=(3, 4), accum=2, rank=rank, **given)
        rest = list(epoch(inputs, 4, 28))
        assert len(rest) == 2 and len(whole) == 6
        for (x, y), (x_whole, y_whole) in zip(rest, whole[4:], strict=True):
            assert torch.equal(x, x_whole) and torch.equal(y, y_whole)


def test_larger_batches_continue_in_the_same_order():
    inputs = source(shares=(5,), augmentation=EVERYTHING)
    before = list(islice(inputs.minibatches(0), 30))
    inputs.rebatch(batch((5,), 3))
    for start in (5, 50, 90):
        after = list(islice(inputs.minibatches(start), 9))
        for (x, y), (x_before, y_before) in zip(after, before[start // 5 :], strict=False):
            assert torch.equal(x, x_before) and torch.equal(y, y_before)


@pytest.mark.parametrize(("shares", "accum"), [((16,), 1), ((3, 4), 1), ((5, 6), 3), ((50,), 1), ((17, 16, 16), 1)])
def test_remainder_of_an_epoch_begins_the_next_one(shares, accum):
    size = sum(shares) * accum
    steps = 4 * 50 // size
    feed = source(shares=shares, accum=accum).feed
    stream = torch.cat([feed.order(number)[0] for number in range(1, 6)])
    ranks = [source(shares=shares, accum=accum, rank=rank).minibatches(0) for rank in range(len(shares))]
    seen = torch.zeros(50, dtype=torch.int64)
    for step in range(steps):
        labels = torch.cat([y for rank in ranks for _, y in islice(rank, accum)])
        assert torch.equal(labels, stream[step * size : (step + 1) * size])
        seen += labels.bincount(minlength=50)
    epochs = steps * size / 50
    assert {math.floor(epochs), math.ceil(epochs)} == set(seen.tolist())


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
def test_the_held_out_part_is_disjoint_and_complete(fraction, held):
    split = Split.of(DATA, val_fraction=fraction, seed=0)
    assert (len(split.validation), len(split.test)) == (held, 5)
    both = torch.cat([split.train.images, split.validation.images]).flatten()
    assert sorted(both.tolist()) == list(range(100))
    assert torch.equal(split.train.targets, split.train.images.flatten() % 10)


def test_validation_set_depends_on_the_seed():
    one, same, other = (Split.of(DATA, val_fraction=0.2, seed=seed).validation.images for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_seeds_of_different_purposes_are_unrelated():
    seeds = {derive(seed, *purpose) for seed in range(50) for purpose in (("epoch", 1), ("epoch", 11), ("rank", 1))}
    assert len(seeds) == 150 and all(0 <= seed < 2**63 for seed in seeds)


PIXELS = torch.randint(1, 256, (20, 7, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([3, 3, 0, 19])
DRAWS = torch.tensor([[0, 4, 2, 1], [4, 0, 2, 3], [0, 1, 0, 1], [0, 3, 6, 2], [4, 2, 0, 1]])


def test_crops_and_flips_equal_those_of_single_images():
    change = Augmentation(crop_padding=2, flip=True)
    taken = change.take(change.pad(PIXELS), INDEX, DRAWS)
    for image, index, (row, column, flip, *_) in zip(taken, INDEX, DRAWS.T.tolist(), strict=True):
        expected = F.pad(PIXELS[index], (0, 0, 2, 2, 2, 2))[row : row + 7, column : column + 5]
        assert torch.equal(image, expected.flip(1) if flip else expected)


def test_masks_move_with_their_images():
    change = Augmentation(crop_padding=2, flip=True)
    masks = PIXELS[..., 0].long()
    moved = change.take(change.pad(masks), INDEX, DRAWS)
    assert torch.equal(moved, change.take(change.pad(PIXELS), INDEX, DRAWS)[..., 0].long())


def test_cutout_is_a_square_of_the_mean_colour():
    images = Augmentation(cutout=3).cut(torch.ones(4, 2, 7, 5), DRAWS)
    for image, (row, column) in zip(images, DRAWS[3:].T.tolist(), strict=True):
        expected = torch.ones(2, 7, 5)
        expected[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = 0
        assert torch.equal(image, expected)


def test_draws_cover_their_ranges():
    draws = Augmentation(crop_padding=1, flip=True, cutout=2).draw(2000, 4, 6, torch.Generator().manual_seed(0))
    assert [sorted(set(row)) for row in draws.tolist()] == [list(range(bound)) for bound in (3, 3, 2, 4, 6)]
    assert not Augmentation(cutout=2).draw(100, 4, 6, torch.Generator())[:3].any()


def test_without_augmentation_nothing_is_drawn():
    source = torch.Generator().manual_seed(0)
    before = source.get_state()
    assert Augmentation().draw(3, 8, 8, source).shape == (0, 3) and torch.equal(source.get_state(), before)
    assert Augmentation(cutout=2).draw(3, 8, 8, source).shape == (5, 3)
