"""What a person in a hurry gets wrong in a config file, or on several overrides at once."""

from pathlib import Path

import pytest

from orchestrator.cli.app import main
from orchestrator.config.compose import axes_of, rewritten, with_alternatives
from sweeps.errors import ConfigError
from sweeps.sweep import MOST_TRIALS

AXES = "axes: {device_batch_size: [32], gpus: [1], lr_rule: [none], seed: [0]}"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main([*arguments, "mode=plan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (
            f"# @package _global_\nsweep: {{name: x, exlude: [], {AXES}}}\nbudgets: {{epochs: 1}}\nreport: {{xyz: 1}}",
            [
                "there is no key sweep.exlude (did you mean 'exclude'?)",
                "there is no key report.xyz",
                "there is no section 'budgets' (did you mean 'budget'?)",
            ],
        ),
        ("", ["sweep=mine gives no sweep.name: its file must begin with the line '# @package _global_' and set swe"]),
        (
            f"sweep: {{name: x, {AXES}}}",
            ["sweep=mine gives no sweep.name: its file must begin with the line '# @package"],
        ),
        (
            f"# @package _global_\nsweep: {{name: '${{nope}}', {AXES}}}",
            ["'sweep=mine': Interpolation key 'nope' not f"],
        ),
        (
            "# @package _global_\nsweep: [1]",
            ["'sweep=mine': In 'sweep/mine': ConfigTypeError raised while composing c"],
        ),
    ],
)
def test_a_config_file_with_a_slip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, errors: list[str]
) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/mine.yaml").write_text(text)
    lines = told(capsys, "-cd", str(tmp_path), "sweep=mine")
    assert [line[: len(message)] for line, message in zip(lines, errors, strict=True)] == errors
    assert not any("full_key" in line for line in lines)


def test_a_file_that_is_no_text_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/mine.yaml").write_bytes(b"\xff\xfe\x00")
    assert told(capsys, "-cd", str(tmp_path), "sweep=mine")[0].startswith("'sweep=mine': 'utf-8' codec can't decode")


def test_an_unknown_key_hides_no_error_of_another_whose_name_begins_alike(capsys: pytest.CaptureFixture[str]) -> None:
    unknown, wrong = told(capsys, "sweep=batch_scaling", "lr=3", "sweep.axes.lr_rule=[nope]")
    assert unknown.startswith("'lr=3'") and "lr_rule" in wrong


def test_a_setting_that_is_wrong_hides_no_wrong_rule(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "sweep=batch_scaling", "resources.timing=fast", "sweep.axes.lr_rule=[nope]")
    assert len(lines) == 2 and "'fast'" in "".join(lines) and "'nope'" in "".join(lines)


def test_what_does_not_compose_hides_no_other_error(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "sweep=batch_scaling", "modle=mlp", "retries=-1", "sweep.axes.seed=[a]", "sweep.axes.gpus=1,2")
    assert [line.split(":")[0] for line in lines[:2]] == ["'modle=mlp'", "'sweep.axes.gpus=1,2'"]
    assert lines[2:] == ["retries must be a whole number of at least 0, not -1", lines[3]]
    assert lines[3].startswith("seed must be")


def test_what_is_only_missing_because_it_does_not_compose_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "sweep=batch_scaling", "trainable=command", "trainable.argv=a b {gpus}")
    assert len(lines) == 1 and lines[0].startswith("'trainable.argv=a b {gpus}'")


def test_a_range_longer_than_memory_is_cut_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(capsys, "sweep=batch_scaling", "sweep.axes.gpus=[1]", "sweep.axes.seed='range(0,1000000000000)'")
    assert "more than the 100,000 trials that a sweep may have" in line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep.axes=3", "sweep.axes must be a section with gpus, device_batch_size,"),
        ("sweep.zip=null", "sweep.zip must be a list, not None; [] is an empty one"),
        ("sweep.exclude=null", "sweep.exclude must be a list"),
        (
            "resources=null",
            "resources must be a section with device, gpus_per_worker, cpus_per_worker, timing, not None",
        ),
        ("cluster.labels=null", "cluster.labels must be a section, not None"),
        ("cluster.labels={spot}", "'cluster.labels={spot}': no viable alternative at input"),
        ("cluster.dashboard=no", "cluster.dashboard must be true or false, not 'no'"),
        ("tracker.mlflow.enabled=maybe", "tracker.mlflow.enabled must be true or false, not 'maybe'"),
        ("tracker.wandb.mode=offlin", "unknown tracker.wandb.mode 'offlin' (did you mean 'offline'?)"),
        ("batch_scaling", "'batch_scaling' is not KEY=VALUE (did you mean sweep=batch_scaling?)"),
        ("train.py", "'train.py' is not KEY=VALUE; to run a script of yours: trainable=command"),
        ("64]", "'64]' is not KEY=VALUE; if it belongs to the word before it"),
        ("=", "'=' has no key: write KEY=VALUE without spaces"),
        (
            "trainable=train.py",
            "unknown trainable in 'trainable=train.py': 'train.py'; valid: command, conv2d_timing, f",
        ),
        ("trainable=null", "unknown trainable in 'trainable=null': 'null'; valid: command,"),
        ("schedule=null", "'schedule=null': to leave out a group, write ~schedule"),
        ("results_dir=", "results_dir must be a folder or a URI, not empty"),
        ("budget.seconds=inf", "budget.seconds must be a number above 0, not inf"),
        (
            'sweep.axes."optimizer.momentumm"=[1]',
            "axis 'optimizer.momentumm' is not a config key or group (did you mean 'o",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    (line,) = told(capsys, "sweep=batch_scaling", override)
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("trainable=train.py", "trainable=command \"trainable.argv='python train.py --lr {lr}'\""),
        ("trainable=mine.train:fit", "trainable=function trainable._target_=mine.train:fit 'trusted_modules=[mine]'"),
        ("model=mine:Net", "model.name=mine:Net 'trusted_modules=[mine]'"),
    ],
)
def test_code_in_the_place_of_a_choice_is_told_where_it_belongs(
    capsys: pytest.CaptureFixture[str], override: str, hint: str
) -> None:
    (line,) = told(capsys, "sweep=batch_scaling", override)
    assert line.endswith(hint)


def test_a_results_dir_that_is_a_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").touch()
    assert main(["sweep=batch_scaling", "backend=inprocess"]) == 2
    assert capsys.readouterr().err == f"results_dir: {tmp_path / 'results'} is not a folder\n"
    assert [each.name for each in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("given", ["cluster.labels={ray.io/market-type: spot}", "cluster.labels.market-type=spot"])
def test_nodes_have_whatever_labels_one_asks_for(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep=batch_scaling", given, "--cfg", "job"]) == 0
    assert "market-type: spot\n" in capsys.readouterr().out


def test_a_new_key_of_a_mapping_that_is_there_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "sweep=published/conv2d", "sweep.baseline={lr_rule: none}") == [
        "'sweep.baseline={lr_rule: none}': sweep.baseline has no such key; +sweep.baseline.KEY=… adds one,"
        " ~sweep.baseline.KEY leaves one out"
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("swep=x", "'swep=x': there is no key 'swep' (did you mean 'sweep'?)"),
        ("report.colour=x", "'report.colour=x': there is no key 'report.colour'"),
        ("trainable.depth=3", "'trainable.depth=3': there is no key 'trainable.depth'; +trainable.depth=… adds one"),
    ],
)
def test_adding_a_key_is_proposed_only_where_it_would_be_accepted(
    capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert told(capsys, "sweep=batch_scaling", override) == [message]


def test_a_sweep_that_is_not_found_may_lie_in_a_folder_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(capsys, "sweep=mine")
    assert line.startswith("unknown sweep in 'sweep=mine': 'mine'; valid: batch_scaling, ")
    assert line.endswith("; to use your own FOLDER/sweep/mine.yaml, add -cd FOLDER")


def test_axes_are_lists_whichever_way_they_are_written():
    given = {"gpus": "auto", "seed": "range(0,3)", "lr_rule": "none,linear", "model": "mlp", "optimizer": {"lr": [0.1]}}
    found = axes_of(given | {"lr_multiplier": 2, "device_batch_size": None, "data.subset": "[1,2]"})
    assert found == {
        "gpus": "auto",
        "seed": [0, 1, 2],
        "lr_rule": ["none", "linear"],
        "model": ["mlp"],
        "optimizer.lr": [0.1],
        "lr_multiplier": [2],
        "data.subset": [1, 2],
    }


def test_of_a_range_without_end_one_value_more_is_read_than_a_sweep_may_have():
    assert len(axes_of({"seed": "range(0,1000000000000)"})["seed"]) == MOST_TRIALS + 1


def test_what_is_no_value_is_told_with_its_axis():
    with pytest.raises(ConfigError, match=r"sweep.axes.seed='\[1,'"):
        axes_of({"seed": "[1,"})


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
        (
            ["budget.steps=5"],
            ["budget.steps=5", "budget.epochs=null", "budget.samples=null", "budget.seconds=null"],
        ),
    ],
)
def test_what_hydra_is_given(typed, read):
    assert rewritten(typed) == read


def test_two_alternatives_are_left_for_the_checks_to_refuse():
    both = rewritten(["budget.steps=5", "budget.epochs=1"])
    assert "budget.steps=5" in both and "budget.epochs=1" in both and "budget.steps=null" not in both


def test_an_axis_over_one_alternative_clears_the_others():
    assert with_alternatives({"budget.steps": 5, "model": "x"}) == {
        "budget.epochs": None,
        "budget.samples": None,
        "budget.seconds": None,
        "budget.steps": 5,
        "model": "x",
    }


def test_what_is_given_twice_rules_out_its_alternatives_once():
    nulls = ["budget.samples=null", "budget.steps=null", "budget.seconds=null"]
    assert rewritten(["budget.epochs=1", "budget.epochs=2"]) == ["budget.epochs=1", *nulls, "budget.epochs=2"]
