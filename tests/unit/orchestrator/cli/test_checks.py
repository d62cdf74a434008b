import copy
from pathlib import Path

import pytest

from orchestrator.cli.modes import MODES, WITHOUT_SWEEP
from orchestrator.cli.request_checks import request_errors
from orchestrator.cli.schema import key_errors
from orchestrator.cli.setup_checks import axis_errors, baseline_errors, setup_errors
from orchestrator.config.request import Request, value_at
from tests.unit.orchestrator.requests import shipped_config

CONFIG = shipped_config()


def with_value(key, value):
    config = copy.deepcopy(CONFIG)
    *parents, leaf = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    return config


def errors(config):
    axes = {"gpus": [1], "seed": [0]}
    return [*request_errors(config, axes), *axis_errors(config, axes), *setup_errors(config)]


def test_a_request_in_order():
    assert not list(errors(CONFIG))
    assert Request.of(CONFIG, {"gpus": [1]}).results_dir == Path("results/s")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("mode", "plam", f"unknown mode 'plam' (did you mean 'plan'?); valid: {', '.join([*MODES, *WITHOUT_SWEEP])}"),
        ("sweep.scaling", "wek", "unknown sweep.scaling 'wek' (did you mean 'weak'?); valid: auto, weak, strong"),
        ("sweep.phases", ["train"], "sweep.phases must be null or [probe, train], not ['train']"),
        ("sweep.early_stop", "asher", "sweep.early_stop must be null or asha, not 'asher'"),
        ("sweep.early_stop_after", 1, "sweep.early_stop_after must be a number between 0 and 1, not 1"),
        ("sweep.budget.wall_s", -1, "sweep.budget.wall_s must be a number of at least 0, not -1"),
        ("sweep.budget.cost", 5, "sweep.budget.cost needs report.price_per_gpu_hour"),
        ("cluster.wait_s", "long", "cluster.wait_s must be a number of at least 0, not 'long'"),
        ("cluster.gpu_type", [], "cluster.gpu_type must be a name like H100, or a list of names, not []"),
        (
            "cluster.labels",
            {"spot": True},
            "cluster.labels must be {label: value} with text values, not {'spot': True}",
        ),
        (
            *("cluster.labels", {"spot": "yes"}),
            "cluster.labels={'spot': 'yes'} choose among the nodes of a cluster, but there is none:"
            " set cluster.address, or remove the labels (cluster.gpu_type works without a cluster)",
        ),
        ("sweep.name", "../up", "sweep.name must be a plain folder name of at most 100 characters, not '../up'"),
        ("sweep.name", ".", "sweep.name must be a plain folder name of at most 100 characters, not '.'"),
        (
            "sweep.name",
            "x" * 101,
            f"sweep.name must be a plain folder name of at most 100 characters, not '{'x' * 101}'",
        ),
        (
            "sweep.baseline",
            {"gpu": 1},
            "sweep.baseline names 'gpu', which is no axis of cells (did you mean 'gpus'?); axes: gpus",
        ),
        (
            *("sweep.claims", [{"sentence": "s", "expression": "speedup(gpu=2, device=cpu) > 1"}]),
            "sweep.claims: 'speedup(gpu=2, device=cpu) > 1': there is no axis 'gpu' (did you mean 'gpus'?)",
        ),
        ("sweep.baseline", "gpus:1", "sweep.baseline must be a cell like {gpus: 1, lr_rule: none}, not 'gpus:1'"),
        ("sweep.baseline", {"seed": 0}, "sweep.baseline names 'seed', which is no axis of cells; axes: gpus"),
        ("sweep.exclude", ["gpus"], "sweep.exclude must list combinations like {gpus: 2, lr_rule: linear}, not 'gpus'"),
        ("sweep.zip", ["gpus"], "sweep.zip must list groups of axes like [gpus, global_batch_size], not 'gpus'"),
        ("trainable._target_", "a.b.train", "trainable._target_ must be package.module:function, not 'a.b.train'"),
        (
            *("trainable.repetition", {"budget": 2}),
            "trainable.repetition must say by section what is different, {budget: {epochs: 2}}, not {'budget': 2}",
        ),
        (
            *("trainable.probe", "short"),
            "trainable.probe must say by section what is different, {budget: {epochs: 2}}, not 'short'",
        ),
        ("trainable._ignores_", "lr_rule", "trainable._ignores_ must be a list of axes, not 'lr_rule'"),
        ("trainable._check_", "math:nope", "trainable._check_='math:nope': module 'math' has no attribute 'nope'"),
        ("trainable._remarks_", "math:nope", "trainable._remarks_='math:nope': module 'math' has no attribute 'nope'"),
        (
            *("results_dir", "ftp://host/path"),
            "results_dir must be a folder, or one of s3://…, gs://…, gcs://…, abfs://…, abfss://…, file://…,"
            " not 'ftp://host/path'",
        ),
        ("local_results_dir", "s3://bucket", "local_results_dir must be a folder, not 's3://bucket'"),
        ("grad_accum_steps", 0, "grad_accum_steps must be a whole number of at least 1, not 0"),
        ("warmup_epochs", -1, "warmup_epochs must be a number of at least 0, not -1"),
        ("resources.gpus_per_worker", 0, "resources.gpus_per_worker must be a number above 0, not 0"),
        ("resources.cpus_per_worker", 1.5, "resources.cpus_per_worker must be a whole number above 0, not 1.5"),
        ("report.price_per_gpu_hour", "cheap", "report.price_per_gpu_hour must be a number of at least 0, not 'cheap'"),
        ("budget.epochs", "ten", "budget.epochs must be a number above 0, not 'ten'"),
        (
            "budget.steps",
            5,
            "budget: give exactly one of epochs, samples, steps, seconds (the others null), not epochs=10, steps=5",
        ),
        (
            "budget.epochs",
            None,
            "budget: give exactly one of epochs, samples, steps, seconds (the others null), not none",
        ),
    ],
)
def test_a_wrong_value_is_one_line(key, value, told):
    assert list(errors(with_value(key, value))) == [told]


@pytest.mark.parametrize(
    ("baseline", "told"),
    [
        ({}, []),
        ({"gpus": 1}, []),
        ({"gpus": 2, "lr_rule": "none"}, []),
        ({"gpus": 3}, ["sweep.baseline is not a cell: unknown gpus 3; valid: 1, 2"]),
        (
            {"lr_rule": "lnear"},
            ["sweep.baseline is not a cell: unknown lr_rule 'lnear' (did you mean 'linear'?); valid: none, linear"],
        ),
        (
            {"gpus": 2, "lr_rule": "linear"},
            ["sweep.baseline is not a cell: each of gpus=2, lr_rule=linear occurs, but never together"],
        ),
        ({"gpu": 1}, []),  # told before: no axis
        ("gpus", []),  # nor is this a mapping
    ],
)
def test_a_baseline_is_a_cell_of_the_sweep(baseline, told):
    points = [{"gpus": 1, "lr_rule": "none"}, {"gpus": 1, "lr_rule": "linear"}, {"gpus": 2, "lr_rule": "none"}]
    assert list(baseline_errors(baseline, points)) == told


def test_a_value_under_a_path_that_ends_early_is_none():
    assert value_at(CONFIG, "mode.deeper") is None and value_at(CONFIG, "sweep.name") == "s"


def test_an_axis_over_what_changes_no_trial_is_refused():
    assert list(axis_errors(CONFIG, {"workers": ["warm", "fresh"]})) == ["axis 'workers' has no effect on any trial"]
    assert not list(axis_errors(CONFIG, {"resources.timing": ["shared"], "warmup_epochs": [0, 5], "model": ["a"]}))


def test_scaling_follows_the_side_of_the_batch_that_was_given():
    config = with_value("sweep.scaling", "auto")
    assert Request.of(config, {"global_batch_size": [64]}).criteria.scaling == "strong"
    assert Request.of(config, {"device_batch_size": [64]}).criteria.scaling == "weak"
    assert Request.of(CONFIG, {"global_batch_size": [64]}).criteria.scaling == "weak"


def test_a_budget_that_nobody_reads_is_told_and_sections_of_a_trainables_own_are_not():
    told = list(key_errors({"budget": {"epoch": 3}, "augmentation": {"any": 1}}))
    assert told == ["there is no key budget.epoch (did you mean 'epochs'?)"]


def test_labels_choose_among_the_nodes_of_a_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = with_value("cluster.labels", {"market-type": "spot"})
    assert len(errors(asked)) == 1
    assert not errors(asked | {"cluster": asked["cluster"] | {"address": "auto"}})
    assert not errors(asked | {"mode": "report"}) and not errors(asked | {"mode": "launch"})
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not errors(asked)
    assert len(errors(asked | {"backend": "inprocess"})) == 1


def test_a_type_of_gpu_and_no_gpu_contradict_one_another():
    asked = with_value("cluster.gpu_type", "H100")
    assert not errors(asked)
    on_cpus = asked | {"resources": asked["resources"] | {"device": "cpu"}}
    assert errors(on_cpus) == [
        "cluster.gpu_type=H100 and resources.device=cpu contradict each other: remove one of them"
    ]
    assert not list(request_errors(on_cpus, {"resources.device": ["cpu", "cuda"]}))
