from dataclasses import replace

import pytest

from orchestrator.config.request import Metric, Terms, target
from orchestrator.config.settings import BudgetSection
from sweeps.metric import Target
from tests.unit.orchestrator.requests import request

REQUEST = request(
    objective="cost",
    margin=0.02,
    budget=BudgetSection(epochs=None, steps=300),
    price_per_gpu_hour=2.0,
    axes={"gpus": [1, 2], "optimizer.lr": [0.1, 0.2], "never.ran": [1, 2], "seed": [0, 1]},
    exclude=[{"gpus": 2, "seed": 1}],
    zip=[],
)


def test_terms_have_the_axes_of_the_trials():
    axes = {"gpus": "gpus", "optimizer.lr": "axes.optimizer.lr", "never.ran": "never.ran"}
    terms = Terms.of(REQUEST, axes)
    assert terms.axes == axes
    assert (terms.excludes, terms.zips, terms.has_baseline) == (True, False, False)
    assert Terms.of(request(REQUEST, baseline={"gpus": 1}), axes).has_baseline
    length = {name: amount for name, amount in terms.budget.items() if amount}
    assert length == {"steps": 300} and not Terms.of(REQUEST, {"budget.steps": "s"}).budget


def test_axes_with_null_are_nullable():
    asked = request(REQUEST, axes={"gpus": "auto", "trainable.slow_down": [None, {"rank": 0}]})
    assert Terms.of(asked, {}).nullable == {"trainable.slow_down"}


def test_terms_record_excludes_and_zips_of_other_axes():
    plain = request(REQUEST, exclude=[])
    terms = Terms.of(plain, {"gpus": "gpus", "trainable.precision": "trainable.precision"})
    assert set(terms.axes) == {"gpus", "trainable.precision"}
    assert (terms.excludes, terms.zips) == (True, True)


@pytest.mark.parametrize(
    ("data", "metric", "name", "better"),
    [
        ({"name": "digits"}, "auto", "val_accuracy", "higher"),
        ({"name": "tokens"}, "auto", "val_loss", "lower"),
        (None, "auto", "val_accuracy", "higher"),
        ({"name": "text"}, "bits_per_byte", "bits_per_byte", "lower"),
        ({"name": "text"}, {"name": "bleu", "better": "lower"}, "bleu", "lower"),
    ],
)
def test_metric_of_language_models_is_the_loss_unless_it_is_named(data, metric, name, better):
    config = {"data": data, "report": {"metric": metric, "target": 3.0}}
    assert (Metric.of(config).name, Metric.of(config).better) == (name, better)
    assert target(config) == Target(metric=name, value=3.0, higher_is_better=better == "higher")


@pytest.mark.parametrize(
    ("metric", "metrics", "name"),
    [
        ("auto", [{"val_loss": 0.5}], "val_loss"),
        ("auto", [{"val_loss": 0.5}, {"val_accuracy": 0.9}], "val_accuracy"),
        ("auto", [{"val_loss": 0.5, "accuracy": 0.9}], "val_accuracy"),
        ("auto", [{}], "val_accuracy"),
        ("val_accuracy", [{"val_loss": 0.5}], "val_accuracy"),
    ],
)
def test_a_loss_is_the_metric_where_no_accuracy_is_reported(metric, metrics, name):
    asked = request(REQUEST, metric=Metric(), target=None)
    report = replace(asked.settings.report, metric=metric)
    asked = replace(asked, settings=replace(asked.settings, report=report))
    assert asked.with_metric_of(metrics).metric.name == name
