"""Metrics: direction, usual name, and target."""

import pytest

from sweeps.metric import Target, column_of, is_higher_better, usual_name


@pytest.mark.parametrize(
    ("is_higher", "names"),
    [
        (
            False,
            "val_loss val_bpb val_ppl val_nll val_cer top1_err error_rate cross_entropy mean_abs_error FID valLoss",
        ),
        (True, "val_accuracy answer_accuracy mAP50-95 f1_macro recall_at_10 pass@1 ep_rew_mean rouge_l rougeL ROC_AUC"),
        (
            None,
            "confidence accuracy_drop neg_mean_squared_error negative_log_likelihood grad_norm loss_scale score epoch",
        ),
    ],
)
def test_the_last_telling_word_gives_the_direction(is_higher, names):
    assert {name: is_higher_better(name) for name in names.split()} == dict.fromkeys(names.split(), is_higher)


@pytest.mark.parametrize(
    ("usual", "names"),
    [
        (
            "val_accuracy",
            "val_acc eval/acc valid_accuracy val/top1 val_acc@1 eval_top_1 val_MulticlassAccuracy val/val_acc",
        ),
        ("val_loss", "eval_loss valid_loss valLoss Loss/validation validation.loss dev_loss val_loss_epoch"),
        ("loss", "loss train_loss train/loss train_loss_epoch loss_epoch"),
        ("accuracy", "accuracy test_acc test/accuracy"),
        ("train_accuracy", "train_acc train/accuracy"),
        ("val_top5", "val_top5 eval/top5"),
        ("test_loss", "test_loss"),
    ],
)
def test_other_names_of_a_metric_have_its_usual_name(usual, names):
    assert {name: usual_name(name) for name in names.split()} == dict.fromkeys(names.split(), usual)


@pytest.mark.parametrize(("name", "column"), [("val_acc", "val_accuracy"), ("eval_loss", "val_loss"), ("f1", "f1")])
def test_a_metric_belongs_to_the_column_of_its_usual_name(name, column):
    assert column_of(name) == column


EPOCHS = [(5.0, 0.2), (1.0, None), (1.0, 0.8), (1.0, 0.7)]


@pytest.mark.parametrize(
    ("value", "higher_is_better", "figures"),
    [(0.8, True, [7.0, 3]), (0.1, True, [5.0, 1]), (0.9, True, []), (0.7, False, [5.0, 1]), (0.1, False, [])],
)
def test_time_and_epochs_count_up_to_the_first_that_reaches_the_target(value, higher_is_better, figures):
    target = Target(metric="any", value=value, higher_is_better=higher_is_better)
    assert list(target.reached(EPOCHS).values()) == figures
    assert target.reached([]) == {}


def test_target_is_read_from_the_config_of_a_trial():
    target = {"metric": "val_loss", "value": 3.2, "higher_is_better": False}
    assert Target.of({"report": {"target": target}}) == Target(**target)
    assert Target.of({"trainable": {}}) is None
