import pytest
import torch

from trainables.step.objective import Objective, loss_sum


def test_smoothed_targets_are_spread_over_the_classes():
    torch.manual_seed(0)
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    spread = torch.full((5, 3), 0.3 / 3).scatter_(1, targets[:, None], 0.7 + 0.3 / 3)
    expected = -(spread * outputs.log_softmax(1)).sum()
    for scale in (1 / 5, 1 / 7):
        torch.testing.assert_close(loss_sum(outputs, targets, scale=scale, smoothing=0.3), expected * scale)


@pytest.mark.parametrize("shape", [(4, 10), (4, 12), (4, 10, 2, 3)])
def test_logits_for_as_many_classes_or_more_fit(shape):
    targets = torch.zeros(4, *shape[2:], dtype=torch.long)
    Objective(num_classes=10).require_fit(torch.zeros(shape), targets)


@pytest.mark.parametrize(
    ("shape", "told"),
    [((), "a single number"), ((4,), "4"), ((4, 9), "4×9"), ((10, 4), "10×4"), ((4, 10, 1), "4×10×1")],
)
def test_outputs_that_do_not_fit_are_named_with_their_shape(shape, told):
    with pytest.raises(ValueError, match=f"^logits of 4×10 are needed, and the model returns {told}$"):
        Objective(num_classes=10).require_fit(torch.zeros(shape), torch.zeros(4, dtype=torch.long))
