import pytest

from sweeps.errors import close_to, nearest


def test_nearest_suggests_each_name_once():
    assert nearest("swep", ["mode", "sweep", "sweep"]) == " (did you mean 'sweep'?)"


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("resnet", ["resnet18", "resnet50"]),
        ("resnet-18", ["resnet18"]),
        ("AdamW", ["adamw"]),
        ("lm", ["lm_scaling", "old_lm"]),
        ("resnet34", []),  # no misspelling of another depth
        ("colour", []),
    ],
)
def test_a_part_of_a_name_is_close_and_another_number_is_not(name, close):
    valid = ["resnet18", "resnet50", "adamw", "lm_scaling", "old_lm", "llama"]
    assert sorted(close_to(name, valid)) == close
