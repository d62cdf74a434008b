"""Composition of configs and its errors, axes, and the rewriting of overrides."""

import pytest

from orchestrator.cli.app import main
from orchestrator.config import yaml_private
from orchestrator.config.compose import parsed_axes
from orchestrator.config.overrides import rewritten, with_alternatives
from sweeps.errors import ConfigError
from sweeps.sweep import MOST_TRIALS

AXES = "axes: {device_batch_size: [32], gpus: [1], lr_rule: [none], seed: [0]}"


def errors_of(capsys, *arguments):
    assert main([*arguments, "mode=plan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            f"# @package _global_\nsweep: {{name: x, exlude: [], {AXES}}}\nbudgets: {{epochs: 1}}\nreport: {{xyz: 1}}",
            [["sweep.exlude", "sweep.exclude=[]"], ["report.xyz"], ["'budgets'", "'budget'"]],
        ),
        ("", [["sweep=mine", "sweep.name", "@package _global_"]]),
        (f"sweep: {{name: x, {AXES}}}", [["sweep=mine", "sweep.name", "@package _global_"]]),
        (f"# @package _global_\nsweep: {{name: '${{nope}}', {AXES}}}", [["'sweep=mine'", "'nope'"]]),
        (
            "# @package _global_\nsweep: {name: x, axes: {gpus: [1], device_batch_size: [8], model: {widht: [8, 16]}}}",
            [["'model.widht'", "'model.width'"]],
        ),
        ("# @package _global_\nsweep: [1]", [["'sweep=mine'", "ConfigTypeError"]]),
    ],
)
def test_error_in_a_config_file_is_one_line(tmp_path, capsys, text, parts):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/mine.yaml").write_text(text)
    lines = errors_of(capsys, "-cd", str(tmp_path), "sweep=mine")
    assert len(lines) == len(parts)
    assert all(part in line for line, words in zip(lines, parts, strict=True) for part in words)
    assert not any("full_key" in line for line in lines)


@pytest.mark.slow
def test_own_model_replaces_the_keys_of_the_shipped_one(capsys):
    own = ("model.name=trainables.models.images:mlp", "trusted_modules=[trainables]")
    one = ("sweep=batch_scaling", "sweep.axes.gpus=[1]", "sweep.axes.seed=[0]", *own)
    assert main([*one, "mode=plan", "+model.hidden=[3]"]) == 0
    capsys.readouterr()
    assert any("width" in line for line in errors_of(capsys, *one, "+model.hidden=[3]", "model.width=8"))


def test_byte_order_mark_is_ignored(tmp_path, capsys):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/mine.yaml").write_text(f"\ufeff# @package _global_\nsweep: {{name: x, {AXES}}}\n")
    assert main(["-cd", str(tmp_path), "sweep=mine", "mode=plan"]) == 0
    assert "1 trial to run" in capsys.readouterr().out


HOSTILE_FILES = {
    "deep": "sweep: {name: x, exclude: " + "[" * 900 + "]" * 900 + "}",
    "deeper": "sweep: {name: x, exclude: " + "[" * 100_000,
    "callbacks": "hydra: {callbacks: [x]}",
    "no section": "[1, 2]",
    "text": "just text",
    "quoted number": "'1'",
    "number": "1",
    "set": "!!set {a}",
    "not utf-8": "\udcff\udcfe",
    "interpolation": "sweep: {name: '${sweep.nam}'}",
    "recursive interpolation": "sweep: {name: '${sweep.name}'}",
    "doubling interpolations": "trainable:\n  a0: 1\n"
    + "".join(f"  a{place}: ${{.a{place - 1}}}${{.a{place - 1}}}\n" for place in range(1, 40)),
    "resolver": "sweep: {name: '${oc.nope:1}'}",
    "tracker": "_wandb: {desc: null}\nlr: {value: 0.1}",
}


@pytest.mark.parametrize(
    ("kind", "place"), [*((kind, "sweep/mine.yaml") for kind in HOSTILE_FILES), ("deeper", "mine.yaml")]
)
def test_odd_files_are_one_error(folder, capsys, kind, place, monkeypatch):
    monkeypatch.setattr(yaml_private, "_MOST_INTERPOLATIONS", 100)  # each takes a millisecond, and is tried again
    (folder / "sweep").mkdir()
    (folder / place).write_text(f"# @package _global_\n{HOSTILE_FILES[kind]}\n", errors="surrogateescape")
    chosen = ["sweep=mine"] if place.startswith("sweep") else ["-cn", "mine"]
    assert errors_of(capsys, "-cd", ".", *chosen)


def test_results_dir_that_is_a_file_leaves_nothing_behind(folder, capsys):
    (folder / "results").touch()
    assert main(["sweep=batch_scaling", "backend=inprocess"]) == 2
    assert capsys.readouterr().err.startswith(f"results_dir: {folder / 'results'} ")
    assert [path.name for path in folder.iterdir()] == ["results"]


@pytest.mark.parametrize("given", ["cluster.labels={ray.io/market-type: spot}", "cluster.labels.market-type=spot"])
def test_labels_may_have_any_name(given, capsys):
    assert main(["sweep=batch_scaling", given, "--cfg", "job"]) == 0
    assert "market-type: spot\n" in capsys.readouterr().out


def test_every_notation_of_an_axis_gives_a_list():
    given = {"gpus": "auto", "seed": "range(0,3)", "lr_rule": "none,linear", "model": "mlp", "optimizer": {"lr": [0.1]}}
    axes = parsed_axes(given | {"lr_multiplier": 2, "device_batch_size": None, "data.subset": "[1,2]"})
    expected = {"gpus": "auto", "seed": [0, 1, 2], "lr_rule": ["none", "linear"], "model": ["mlp"]}
    assert axes == expected | {"optimizer.lr": [0.1], "lr_multiplier": [2], "data.subset": [1, 2]}


@pytest.mark.parametrize(
    "value",
    ["choice(choice(1,2),3)", "interval(0,1)", "shuffle(range(0,1e12))", "shuffle(range(-100000,1e12))", "glob(*)"],
)
def test_axis_has_plain_values(value):
    with pytest.raises(ConfigError, match="trainable.lr"):
        parsed_axes({"trainable.lr": value})


def test_quoted_values_of_an_axis_are_texts():
    assert parsed_axes({"data.x": "choice('a',[1,'b'],{c: 'd'})"}) == {"data.x": ["a", [1, "b"], {"c": "d"}]}


def test_long_range_is_cut_after_the_most_trials():
    assert len(parsed_axes({"seed": "range(0,1000000000000)"})["seed"]) == MOST_TRIALS + 1


NULLS = ("budget.samples=null", "budget.tokens=null")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["sweep=x", "mode=plan"], ["sweep=x", "mode=plan"]),
        (['sweep.axes."optimizer.lr"=[.1,.2]'], ["++sweep.axes={optimizer.lr:[.1,.2]}"]),
        (["+sweep.axes.'model'=[a,b]"], ["++sweep.axes={model:[a,b]}"]),
        (["sweep.axes.model=[a,b]"], ["++sweep.axes={model:[a,b]}"]),
        (["+sweep.axes.optimizer.lr=[.1]"], ["++sweep.axes={optimizer.lr:[.1]}"]),
        (["sweep.axes.'seed'=[1]"], ["sweep.axes.seed=[1]"]),
        (
            ["sweep.axes.global_batch_size=[64]", "--multirun"],
            ["sweep.axes.global_batch_size=[64]", "sweep.axes.device_batch_size=null", "--multirun"],
        ),
        (
            ["sweep.axes.global_batch_size=[64]", "sweep.axes.device_batch_size=[32]"],
            ["sweep.axes.global_batch_size=[64]", "sweep.axes.device_batch_size=[32]"],
        ),
        (["scale=small", "sweep=published/conv2d"], ["sweep/published/conv2d=small", "sweep=published/conv2d"]),
        (["scale=small"], ["scale=small"]),
        (["rerun=[12e4, 3fa2,abc,012]"], ["rerun=['12e4', '3fa2',abc,'012']"]),
        (["rerun=12e4"], ["rerun='12e4'"]),
        (["++rerun=[12e4]"], ["++rerun=['12e4']"]),
        (["rerun=[{gpus:2,seed:[0,1]},7]"], ["rerun=[{gpus:2,seed:[0,1]},'7']"]),
        (["rerun=all"], ["rerun=all"]),
        (["rerun_invalid=0"], ["rerun_invalid=0"]),
        (["trainable.env.MINE='{trial_id}'"], ["++trainable.env.MINE='{trial_id}'"]),
        (["+trainable.env.MINE=1"], ["+trainable.env.MINE=1"]),
        (["trainable.env={MINE: a}"], ["++trainable.env={MINE: a}"]),
        (["cluster.labels={market-type: spot}"], ["++cluster.labels={market-type: spot}"]),
        (["cluster.labels.market-type=spot"], ["++cluster.labels.market-type=spot"]),
        (["cluster.labels=null"], ["cluster.labels=null"]),
        (["budget.steps=5"], ["budget.steps=5", "budget.epochs=null", *NULLS, "budget.seconds=null"]),
        (
            ["budget.epochs=1", "budget.epochs=2"],
            ["budget.epochs=1", *NULLS, "budget.steps=null", "budget.seconds=null", "budget.epochs=2"],
        ),
        (["budget.steps=5", "budget.epochs=1"], ["budget.steps=5", *NULLS, "budget.seconds=null", "budget.epochs=1"]),
    ],
)
def test_arguments_are_rewritten_in_hydras_grammar(typed, read):
    assert rewritten(typed) == read


def test_axis_over_one_alternative_resets_the_others():
    others = dict.fromkeys(["budget.epochs", "budget.samples", "budget.seconds", "budget.tokens"])
    assert with_alternatives({"budget.steps": 5, "model": "x"}) == {"budget.steps": 5, "model": "x"} | others
