import pytest
import torch

from trainables.step.objective import Objective


@pytest.mark.parametrize("shape", [(4, 10), (4, 12), (4, 10, 2, 3)])
def test_logits_of_as_many_classes_or_more_fit(shape: tuple[int, ...]) -> None:
    targets = torch.zeros(4, *shape[2:], dtype=torch.long)
    Objective(num_classes=10).require_fit(torch.zeros(shape), targets)


@pytest.mark.parametrize(
    ("shape", "told"),
    [((), "a single number"), ((4,), "4"), ((4, 9), "4×9"), ((10, 4), "10×4"), ((4, 10, 1), "4×10×1")],
)
def test_what_fits_no_label_is_told_with_its_shape(shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"^the model's outputs are {told}, and 10 classes .* need 4×10$"):
        Objective(num_classes=10).require_fit(torch.zeros(shape), torch.zeros(4, dtype=torch.long))
