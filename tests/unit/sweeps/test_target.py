import pytest

from sweeps.target import Target

EPOCHS = [(5.0, 0.2), (1.0, None), (1.0, 0.8), (1.0, 0.7)]


@pytest.mark.parametrize(
    ("value", "higher_is_better", "seconds"),
    [(0.8, True, 7.0), (0.1, True, 5.0), (0.9, True, None), (0.7, False, 5.0), (0.1, False, None)],
)
def test_seconds_count_up_to_the_first_epoch_that_reaches_the_target(value, higher_is_better, seconds):
    target = Target(metric="any", value=value, higher_is_better=higher_is_better)
    assert target.seconds(EPOCHS) == seconds
    assert target.seconds([]) is None


def test_target_is_read_from_the_config_of_a_trial():
    target = {"metric": "val_loss", "value": 3.2, "higher_is_better": False}
    assert Target.of({"report": {"target": target}}) == Target(**target)
    assert Target.of({"trainable": {}}) is None
