from itertools import islice

import psutil
import pytest
import torch

from tests.unit.trainables.inputs.feeds import IMAGES, batch, epoch, feed, form, source
from tests.unit.trainables.ranks import CONFIG, request, run, run_two
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.loaders import LoaderInputs, Workers

HERE = Workers(workers=0)


def loader(*, shares, accum=1, ranks=(0,), workers=HERE, **other):
    return LoaderInputs(feed(shares, accum, **other), ranks, workers)


def children():
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize(("shares", "accum"), [((16,), 1), ((3, 5), 1), ((2, 2, 4), 2)])
def test_loader_has_the_samples_and_order_of_resident_inputs(shares, accum):
    ranks = [loader(shares=shares, accum=accum, ranks=(rank,)).minibatches(0) for rank in range(len(shares))]
    resident = source(shares=(accum * sum(shares),)).minibatches(0)
    for images, labels in islice(resident, 15):  # more than two epochs
        mine = [minibatch for rank in ranks for minibatch in islice(rank, accum)]
        assert len(mine) == accum * len(shares)
        assert torch.equal(torch.cat([y for _, y in mine]), labels)
        torch.testing.assert_close(torch.cat([x for x, _ in mine]), images)


def test_loader_concatenates_the_samples_of_several_ranks():
    together = epoch(loader(shares=(3, 5), accum=2, ranks=(0, 1)), 1)
    apart = zip(*(epoch(loader(shares=(3, 5), accum=2, ranks=(rank,)), 1) for rank in (0, 1)), strict=True)
    for (_, labels), ((_, first), (_, second)) in zip(together, apart, strict=True):
        assert torch.equal(labels, torch.cat([first, second]))


def test_images_are_flipped_or_as_they_are():
    [(images, labels), *_] = epoch(loader(shares=(40,), augmentation=Augmentation(flip=True)), 1)
    [(plain, _), *_] = epoch(loader(shares=(40,)), 1)
    flipped = [not torch.equal(image, original) for image, original in zip(images, plain, strict=True)]
    assert 5 < sum(flipped) < 35
    for image, original, mirrored in zip(images, plain, flipped, strict=True):
        assert torch.equal(image, original.flip(-1) if mirrored else original)


def test_masks_follow_their_images():
    masks = IMAGES[:, 0].long()
    changes = Augmentation(crop_padding=2, flip=True)
    black = {"form": form(), "augmentation": changes, "targets": masks}
    [(images, targets), *_] = epoch(loader(shares=(20,), **black), 1)
    mean, std = form().mean[0], form().std[0]
    torch.testing.assert_close(((images[:, 0] * std + mean) * 255).round().long(), targets)
    assert targets.dtype == torch.int64 and type(targets) is torch.Tensor


def test_loader_fills_cutouts_with_the_mean_colour():
    [(images, _), *_] = epoch(loader(shares=(20,), augmentation=Augmentation(cutout=3)), 1)
    assert all(4 <= (image == 0).all(0).sum() <= 9 for image in images)


def test_workers_start_once_and_end_with_the_input():
    before = children()
    inputs = loader(shares=(20,), workers=Workers(workers=2, prefetch=1), augmentation=Augmentation(flip=True))
    alive = [children() - before for _ in islice(inputs.minibatches(0), 6)]
    assert len(alive) == 6 and len(alive[0]) == 2 and all(workers == alive[0] for workers in alive)
    inputs.close()
    assert children() == before


def test_loader_starts_anew_from_any_sample():
    inputs = loader(shares=(20,))
    first, second, again = (torch.cat([y for _, y in epoch(inputs, number)]) for number in (1, 2, 1))
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_augmentation_of_a_sample_is_independent_of_rank_and_worker():
    changes = Augmentation(crop_padding=2, flip=True, cutout=3)
    before = torch.get_rng_state()
    alone = list(epoch(loader(shares=(16,), augmentation=changes), 2))
    assert torch.equal(torch.get_rng_state(), before)  # which dropout draws from
    for count, first in ((0, 0), (1, 32), (2, 16)):
        ranks = [
            loader(shares=(9, 7), ranks=(rank,), augmentation=changes, workers=Workers(workers=count))
            for rank in range(2)
        ]
        passes = list(zip(*(epoch(inputs, 2, first) for inputs in ranks), strict=True))
        for own, (whole, _) in zip(passes, alone[first // 16 :], strict=True):
            assert torch.equal(torch.cat([images for images, _ in own]), whole)
        for inputs in ranks:
            inputs.close()
    other = next(iter(epoch(loader(shares=(16,), augmentation=changes, seed=4), 2)))
    assert not torch.equal(other[0], alone[0][0])


def test_larger_batches_continue_in_the_same_order():
    inputs = loader(shares=(5,))
    labels = torch.cat([y for _, y in epoch(inputs, 1)])
    inputs.rebatch(batch((20,)))
    got = [y for _, y in epoch(inputs, 1, 10)]
    assert len(got) == 2 and torch.equal(torch.cat(got), labels[10:])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"workers": -1}, "trainable.loader: workers=-1"),
        ({"prefetch": 0}, "workers=2 and prefetch=0"),
        ({"threads": 2}, "trainable.loader has no key threads"),
    ],
)
def test_wrong_loader_key_or_value_is_named(values, told):
    settings = CONFIG["trainable"] | {"input": "loader", "loader": values}
    assert told in run(request(config={"trainable": settings}))["note"]


def test_trial_leaves_no_worker_behind():
    settings = CONFIG["trainable"] | {"input": "loader", "loader": {"workers": 1}}
    answer = run(request(config={"trainable": settings, "budget": {"steps": 3}}))
    assert (answer["status"], answer["reusable"]) == ("ok", True), answer["trace"]


def of_two_ranks(pair, kind):
    settings = CONFIG["trainable"] | {"precision": "fp64", "input": kind, "loader": {"workers": 1}}
    config = {"trainable": settings, "budget": {"steps": 6}}
    answers = run_two(pair, shares=(25, 7), grad_accum_steps=2, config=config)
    assert all(answer["reusable"] for answer in answers), [answer["trace"] for answer in answers]
    return dict(answers[0])


def test_two_ranks_learn_the_same_from_any_input(pair):
    ours, theirs = (of_two_ranks(pair, kind) for kind in ("resident", "loader"))
    assert ours["metrics"]["loss"] == pytest.approx(theirs["metrics"]["loss"], abs=1e-9)
    assert ours["metrics"]["val_loss"] == pytest.approx(theirs["metrics"]["val_loss"], abs=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_gpu_learns_the_same_from_any_input(memory_format):
    losses = []
    for name in ("resident", "loader"):
        settings = CONFIG["trainable"] | {"precision": "fp64", "memory_format": memory_format, "input": name}
        answer = run(request(device="cuda", gpus_per_rank=1, config={"trainable": settings}))
        assert (answer["status"], answer["reusable"]) == ("ok", True), answer["trace"]
        losses.append(answer["metrics"]["val_loss"])
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)
