"""What a plan and a run say of a config in which nothing is wrong."""

import json

import pytest

from orchestrator.cli.app import main
from orchestrator.cli.setup_checks import setup_remarks

IGNORES = {"trainable": {"_target_": "mine.training:train", "_ignores_": ["lr_rule", "lr_multiplier", "model"]}}


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({"gpus": "auto", "lr_rule": ["none"], "seed": [0, 1]}, []),
        ({"lr_rule": ["none", "sqrt"]}, ["mine.training ignores lr_rule: all values of it give the same training"]),
        (
            {"model.width": [8, 16], "lr_multiplier": [1, 2], "gpus": [1, 2]},
            ["mine.training ignores model.width, lr_multiplier: all values of each give the same training"],
        ),
    ],
)
def test_axes_that_a_trainable_ignores(axes, told):
    assert list(setup_remarks(IGNORES, axes)) == told


@pytest.fixture
def noop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("trainable=noop", "backend=inprocess", "sweep.axes.gpus=[1]", "sweep.axes.seed=[0]", "report.html=false")
    return ["sweep=batch_scaling", "sweep.axes.lr_rule=[none,sqrt]", "sweep.axes.device_batch_size=[32]", *given]


NOTE = "trainables.noop ignores lr_rule: all values of it give the same training"


def test_a_plan_ends_with_them(noop, capsys):
    assert main([*noop, "mode=plan"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"note: {NOTE}"
    assert main([*noop, "mode=plan", "plan.format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["remarks"] == [NOTE]


def test_a_run_begins_with_them(noop, capsys):
    assert main(noop) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"note: {NOTE}"


def test_they_are_told_of_each_variant_once(noop, tmp_path, capsys):
    axis = 'sweep.axes."data.root"=[here,there]'
    given = ["trainable=supervised", "data=cifar10", "sweep.axes.lr_rule=[none]", axis]
    assert main([*noop, *given, "mode=plan", "plan.format=json"]) == 0
    told = json.loads(capsys.readouterr().out)["remarks"]
    assert len(told) == 2 and all(
        f"{tmp_path}/{place}/" in remark for place, remark in zip(("here", "there"), told, strict=True)
    )


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        (["sweep.axes.device_batch_size=[64,128]"], True),
        (["sweep.axes.device_batch_size=[32,128]"], False),
        (["sweep.axes.device_batch_size=[64]"], False),  # nothing is compared
        (["sweep.axes.device_batch_size=[64,128]", "report.objective=none"], False),
    ],
)
def test_a_sweep_over_batches_without_the_reference_batch_is_told(capsys, given, is_told):
    asked = ["sweep=batch_scaling", "resources.device=cpu", "sweep.axes.gpus=[1]", "mode=plan", "plan.format=json"]
    assert main([*asked, *given]) == 0
    told = "no trial has the reference batch of 32 (trainable.reference_batch_size)"
    assert any(told in remark for remark in json.loads(capsys.readouterr().out)["remarks"]) is is_told


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        (["budget.steps=300"], True),
        (["budget.samples=9600"], False),
        (["budget.steps=300", "sweep.axes.device_batch_size=[32]"], False),  # one batch: steps are equal work
    ],
)
def test_a_length_in_steps_is_told_to_be_unequal_work(capsys, given, is_told):
    asked = ["sweep=batch_scaling", "resources.device=cpu", "sweep.axes.gpus=[1]", "mode=plan", "plan.format=json"]
    assert main([*asked, "budget.epochs=null", *given]) == 0
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert (
        any(remark.startswith("budget.steps=300 is the same number of steps at every batch") for remark in remarks)
        is is_told
    )


@pytest.mark.parametrize(
    ("words", "gpus", "is_told"),
    [
        ("true --bs {device_batch_size} --lr {lr} {seed} {epochs}", "[1,2]", True),
        ("true --bs {device_batch_size} --lr {lr} {seed} {epochs}", "[1]", False),
        ("true -n {gpus} --bs {device_batch_size} --lr {lr} {seed} {epochs}", "[1,2]", False),
        ("true --bs {global_batch_size} --lr {lr} {seed} {epochs}", "[1,2]", False),  # as DataParallel takes it
    ],
)
def test_a_command_that_is_not_told_its_gpus_is_noted_before_it_runs(capsys, words, gpus, is_told):
    own = ["trainable=command", f"trainable.argv='{words}'", f"sweep.axes.gpus={gpus}"]
    assert main(["sweep=batch_scaling", "resources.device=cpu", *own, "mode=plan", "plan.format=json"]) == 0
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert any(remark.startswith("trainable.argv has no {gpus}") for remark in remarks) is is_told
