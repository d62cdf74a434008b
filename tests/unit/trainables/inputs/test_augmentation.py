import torch
import torch.nn.functional as F

from trainables.inputs.augmentation import Augmentation

PIXELS = torch.randint(1, 256, (20, 7, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([3, 3, 0, 19])
DRAWS = torch.tensor([[0, 4, 2, 1], [4, 0, 2, 3], [0, 1, 0, 1], [0, 3, 6, 2], [4, 2, 0, 1]])


def test_crops_and_flips_are_those_of_one_image_at_a_time() -> None:
    change = Augmentation(crop_padding=2, flip=True)
    taken = change.take(change.pad(PIXELS), INDEX, DRAWS)
    for image, source, (row, column, flip, *_) in zip(taken, INDEX, DRAWS.T.tolist(), strict=True):
        expected = F.pad(PIXELS[source], (0, 0, 2, 2, 2, 2))[row : row + 7, column : column + 5]
        assert torch.equal(image, expected.flip(1) if flip else expected)


def test_masks_move_with_their_images() -> None:
    change = Augmentation(crop_padding=2, flip=True)
    masks = PIXELS[..., 0].long()
    moved = change.take(change.pad(masks), INDEX, DRAWS)
    assert torch.equal(moved, change.take(change.pad(PIXELS), INDEX, DRAWS)[..., 0].long())


def test_a_cut_is_a_square_of_the_mean_colour_and_may_stand_over_the_edge() -> None:
    images = Augmentation(cutout=3).cut(torch.ones(4, 2, 7, 5), DRAWS)
    for image, (row, column) in zip(images, DRAWS[3:].T.tolist(), strict=True):
        expected = torch.ones(2, 7, 5)
        expected[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = 0
        assert torch.equal(image, expected)


def test_draws_cover_their_ranges() -> None:
    draws = Augmentation(crop_padding=1, flip=True, cutout=2).draw(2000, 4, 6, torch.Generator().manual_seed(0))
    assert [sorted(set(row)) for row in draws.tolist()] == [list(range(bound)) for bound in (3, 3, 2, 4, 6)]
    assert not Augmentation(cutout=2).draw(100, 4, 6, torch.Generator())[:3].any()


def test_where_nothing_changes_nothing_is_drawn() -> None:
    source = torch.Generator().manual_seed(0)
    before = source.get_state()
    assert Augmentation().draw(3, 8, 8, source).shape == (0, 3) and torch.equal(source.get_state(), before)
    assert Augmentation(cutout=2).draw(3, 8, 8, source).shape == (5, 3)
