import json
import shlex

import pytest

from orchestrator.cli.app import main
from orchestrator.config.commands import command, narrowed_to, shell_command
from orchestrator.config.overrides import rewritten, with_command


def test_shell_command_leaves_out_implied_nulls():
    asked = ["budget.epochs=4", "budget.steps=null", "sweep.axes.global_batch_size=null", "trainable.argv='a {lr}'"]
    told = shell_command([*asked, "sweep.axes.device_batch_size=[1,2]", "sweep.budget.wall_s=null"])
    words = ["budget.epochs=4", "\"trainable.argv='a {lr}'\"", "'sweep.axes.device_batch_size=[1,2]'"]
    words.append("sweep.budget.wall_s=null")
    assert told == " ".join(["python -m orchestrator", *words])
    assert shlex.split(shell_command(asked))[-2:] == ["sweep.axes.global_batch_size=null", "trainable.argv='a {lr}'"]


def test_a_program_that_uv_started_is_started_by_it_again(monkeypatch):
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert shell_command(["mode=plan"]) == "uv run python -m orchestrator mode=plan"


def test_config_folder_becomes_one_flag():
    one = ["sweep=mine", "hydra.searchpath=[file://my conf]"]
    assert shlex.split(shell_command(one))[-3:] == ["sweep=mine", "-cd", "my conf"]
    flags = ["--config-dir=my", "--config-name=mine"]
    assert shell_command([*flags, "hydra.searchpath=[file://my]"]).endswith("orchestrator " + " ".join(flags))
    two = "hydra.searchpath=[file://a,file://b]"
    assert shlex.split(shell_command([two]))[-1] == two


@pytest.mark.parametrize(
    "typed",
    [
        ["sweep=batch_scaling", 'sweep.axes."optimizer.lr"=[0.1,0.2]', "mode=settle"],
        ["sweep=published/conv2d", "scale=small", "budget.epochs=3"],
        ['sweep.axes.model=[cnn,"a b"]', "sweep.axes.gpus=[1,2]"],
        [
            "sweep=batch_scaling",
            "--",
            "torchrun",
            "--n={gpus}",
            "t.py",
            "--lr",
            "5",
            "it's",
            "a b",
            "{{x}}",
            "${A}",
            "\\",
        ],
        ["sweep=batch_scaling", "sweep.name=mine", "--", "python", "-m", "my.mod", "--bs={device_batch_size}", "null"],
    ],
)
def test_shell_command_is_what_a_person_types(typed):
    read = rewritten(with_command(typed))
    assert read != typed
    assert shlex.split(shell_command(read))[3:] == typed


def test_words_that_no_shell_changes_are_not_quoted():
    words = ["torchrun", "--nproc_per_node={gpus}", "train.py", "{a,b}", "{1..3}", "{a..c}", "~", "*.py"]
    line = shell_command(with_command(["sweep=batch_scaling", "mode=settle", "--", *words]))
    bare, quoted = "-- torchrun --nproc_per_node={gpus} train.py", "'{a,b}' '{1..3}' '{a..c}' '~' '*.py'"
    assert line == f"python -m orchestrator sweep=batch_scaling mode=settle {bare} {quoted}"
    # A line that would be refused, as without the rate that a config has, keeps its overrides.
    for plain in (
        ["trainable=mine", "trainable.argv=[a,b]"],
        ["sweep=mine", "trainable=command", "trainable.argv=[python,train.py,'{lr}']"],
        ["trainable=command", "trainable.argv=[a,b]"],
    ):
        assert shlex.split(shell_command(plain))[3:] == plain
    twice = ["sweep=s", "sweep.name=b", "trainable=command", "trainable.argv=[a]", "trainable=command"]
    assert shell_command([*twice, "trainable.argv=[b]"]).endswith("sweep=s -- b")


def test_the_command_keeps_overrides_except_mode_and_axes():
    given = ["sweep=demo", "mode=report", "sweep.axes.gpus=[1,2]", '++sweep.axes={"a.b":[1]}', "budget.epochs=5"]
    text = command(given, narrowed_to({"gpus": 2.0, "a.b": "x y", "model": "mlp"}, [0, 1]))
    assert shlex.split(text)[3:] == [
        *("sweep=demo", "budget.epochs=5", "sweep.axes.gpus=[2]", "sweep.axes.\"a.b\"=['x y']"),
        *("sweep.axes.model=[mlp]", "sweep.axes.seed=[0,1]"),
    ]


def test_a_trainable_of_a_program_gives_a_call():
    extra = narrowed_to({"gpus": 1, "a.b": "x y"}, [0, 1])
    text = command(["sweep.name=mine", "trainable=<of the program>"], extra)
    assert text == f"run_sweep(…, {', '.join(map(repr, extra))})"


def test_the_command_plans_the_same_cell_with_more_seeds(capsys):
    given = ["sweep=batch_scaling", "sweep.axes.gpus=[1]", "resources.device=cpu"]
    axes = {"gpus": 1, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.8}

    def planned(*arguments):
        assert main([*arguments, "mode=plan", "format=json"]) == 0
        return json.loads(capsys.readouterr().out)["trials"]

    before = planned(*given, 'sweep.axes."optimizer.momentum"=[0.8,0.9]')
    after = planned(*shlex.split(command(given, narrowed_to(axes, list(range(7)))))[3:])
    known = {trial["trial_id"] for trial in before} & {trial["trial_id"] for trial in after}
    assert (len(after), len(known)) == (7, 3)


CELL = {"gpus": 2, "device_batch_size": 32, "lr_rule": "sqrt", "optimizer.momentum": 0.9}


def test_one_command_has_exactly_the_given_cell(capsys):
    given = ["sweep=batch_scaling", "resources.device=cpu", "sweep.zip=[[gpus,lr_rule]]"]
    given += ["sweep.exclude=[{gpus: 1, device_batch_size: 512}]", "sweep.baseline={gpus: 1}"]
    text = command(given, narrowed_to(CELL, [0, 1, 2, 7], excludes=True, zips=True, has_baseline=True))
    assert "'sweep.axes.gpus=[2]' 'sweep.axes.device_batch_size=[32]'" in text and text.count("zip") == 1
    assert main([*shlex.split(text)[3:], "mode=plan", "format=json"]) == 0
    planned = json.loads(capsys.readouterr().out)["trials"]
    points = {tuple(trial["axes"][axis] for axis in (*CELL, "seed")) for trial in planned}
    assert points == {(*CELL.values(), seed) for seed in (0, 1, 2, 7)} and len(planned) == 4


def test_lists_survive_the_command(capsys):
    given = ["sweep=batch_scaling", "optimizer=adamw"]
    cell = {"gpus": 1, "device_batch_size": 32, "lr_rule": "none", "optimizer.betas": [0.9, 0.99]}
    text = command(given, narrowed_to(cell, [0]))
    assert main([*shlex.split(text)[3:], "resources.device=cpu", "mode=plan", "format=json"]) == 0
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    assert cell.items() <= trial["axes"].items()
