import json
import shlex

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from orchestrator.cli.app import main
from orchestrator.config.overrides import (
    command,
    literal,
    narrowed_to,
    overrides_of,
    rewritten,
    shell_command,
    with_command,
)
from sweeps.errors import ConfigError


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -1.5, 1e-05, "digits", "null", "True", "1e3", "", "it's", "a b", "{gpus}", r"\d+ '(\d)'"),
        *("end\\", "x,y", "a=b", "mypackage.train:train", [1, "two", [0.5]], {"a": 1, "b": "c d"}, []),
    ],
)
def test_literal_is_read_back_by_hydra(value):
    override = OverridesParser.create().parse_override(f"key={literal(value)}")
    parsed = override.value()
    assert (parsed.text if hasattr(parsed, "text") else _plain(parsed)) == value


def _plain(literal):
    if isinstance(literal, list):
        return [_plain(value) for value in literal]
    if isinstance(literal, dict):
        return {_plain(key): _plain(value) for key, value in literal.items()}
    return literal.text if hasattr(literal, "text") else literal


def test_labels_are_one_value():
    given = {"cluster": {"labels": {"ray.io/market-type": "spot"}}}
    assert overrides_of(given)[0] == ["cluster.labels={ray.io/market-type:spot}"]


def test_nested_and_dotted_keys_give_the_same_overrides():
    nested = {"sweep": {"axes": {"gpus": [1, 2], "optimizer.lr": [0.1]}, "name": "mine"}, "budget": {"epochs": 3}}
    assert overrides_of(nested)[0] == [
        "sweep.axes.gpus=[1,2]",
        'sweep.axes."optimizer.lr"=[0.1]',
        "sweep.name=mine",
        "budget.epochs=3",
    ]
    assert overrides_of({"sweep": "batch_scaling", "budget.epochs": 3, "+trainable.depth": 2})[0] == [
        "sweep=batch_scaling",
        "budget.epochs=3",
        "+trainable.depth=2",
    ]


def test_section_with_its_name_replaces_the_whole():
    texts, sections = overrides_of({"model": {"name": "mlp", "hidden": [4]}, "data": {"subset": {"train": 100}}})
    assert sections == {"model": {"name": "mlp", "hidden": [4]}} and texts == ["data.subset.train=100"]


def test_numpy_floats_become_plain_numbers():
    assert overrides_of({"sweep.axes.lr_multiplier": list(np.array([0.5, 1e-7]))})[0] == [
        "sweep.axes.lr_multiplier=[0.5,1e-07]"
    ]


def test_value_without_a_literal_is_an_error():
    with pytest.raises(ValueError, match="is a object"):
        literal(object())


def test_shell_command_leaves_out_implied_nulls():
    asked = ["budget.epochs=4", "budget.steps=null", "sweep.axes.global_batch_size=null", "trainable.argv='a {lr}'"]
    told = shell_command([*asked, "sweep.axes.device_batch_size=[1,2]", "sweep.budget.wall_s=null"])
    words = ["budget.epochs=4", "\"trainable.argv='a {lr}'\"", "'sweep.axes.device_batch_size=[1,2]'"]
    words.append("sweep.budget.wall_s=null")
    assert told == " ".join(["python -m orchestrator", *words])
    assert shlex.split(shell_command(asked))[-2:] == ["sweep.axes.global_batch_size=null", "trainable.argv='a {lr}'"]


def test_config_folder_becomes_one_flag():
    one = ["sweep=mine", "hydra.searchpath=[file://my conf]"]
    assert shlex.split(shell_command(one))[-3:] == ["sweep=mine", "-cd", "my conf"]
    flags = ["--config-dir=my", "--config-name=mine"]
    assert shell_command([*flags, "hydra.searchpath=[file://my]"]).endswith("orchestrator " + " ".join(flags))
    two = "hydra.searchpath=[file://a,file://b]"
    assert shlex.split(shell_command([two]))[-1] == two


def test_rerun_is_one_value() -> None:
    for given, override in (
        ({"gpus": 2, "seed": 0}, "rerun={gpus:2,seed:0}"),
        (["12e4", {"seed": [0, 1]}], "rerun=['12e4',{seed:[0,1]}]"),
    ):
        assert overrides_of({"rerun": given})[0] == [override] == rewritten([override])


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
def test_shell_command_is_what_a_person_types(typed: list[str]) -> None:
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
    given += ["sweep.exclude=[{gpus: 1, device_batch_size: 512}]"]
    text = command(given, narrowed_to(CELL, [0, 1, 2, 7], excludes=True, zips=True))
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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["torchrun", "--nproc_per_node={gpus}", "train.py", "it's", "a b", "--flag", ""], "train"),
        (["python", "-m", "mypackage.main", "x=[1,2]", "--", "more"], "mypackage"),
        (["bash", "-c", "echo {seed}"], "bash"),
        (["./my run.sh", r"\d+"], "my_run"),
    ],
)
def test_words_behind_dashes_are_the_command(words: list[str], name: str) -> None:
    *given, named, trainable, argv = with_command(["sweep=batch_scaling", "mode=plan", "--", *words])
    assert given == ["sweep=batch_scaling", "mode=plan"] and trainable == "trainable=command"
    assert named == f"sweep.name={name}"
    assert OverridesParser.create().parse_override(argv).value() == words
    assert with_command(["sweep.name=mine", "--", *words])[0] == "sweep.name=mine"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--"], "followed by no command"),
        (["--", "python", "train.py"], "sweep=batch_scaling .* -- python train.py --bs {device_batch_size}"),
        (["mode=plan", "--", "train.sh", "{gpus}"], "sweep=batch_scaling .* -- train.sh {gpus}$"),
        (["trainable=noop", "--", "train.sh"], "leave out trainable="),
        (["trainable.argv=other", "--", "train.sh"], "leave out trainable="),
        (["trainable.lr=0.1", "--", "train.sh", "--lr={lr}"], "trainable.lr=0.1 trainable.reference_batch_size=32"),
    ],
)
def test_unclear_command_behind_dashes_is_refused(arguments: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        with_command(arguments)


def test_command_behind_dashes_has_no_interpolations() -> None:
    """A shell's `${NAME}` reaches the command as it is typed."""
    assert with_command(["sweep=batch_scaling", "--", "echo", "${{HOME}}"])[-1] == "trainable.argv=[echo,'\\${{HOME}}']"


def test_own_dashes_of_the_command_are_no_flags(capsys) -> None:
    words = ["python", "train.py", "--multirun", "--help", "-m", "--cfg=job"]
    assert main(["sweep=batch_scaling", "mode=plan", "sweep.axes.seed=[0]", "--", *words]) in (0, 2)
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("results_dir=~/x", "results_dir=/home/me/x"),
        ("results_dir='~/x'", "results_dir=/home/me/x"),
        ("sweep.axes.seed=range(0,3)", "sweep.axes.seed='range(0,3)'"),
        ("sweep.axes.optimizer.momentum=0.8,0.9", "++sweep.axes={optimizer.momentum:[0.8,0.9]}"),
        ("sweep.axes.optimizer.momentum=range(0,3)", "++sweep.axes={optimizer.momentum:'range(0,3)'}"),
    ],
)
def test_what_a_shell_or_hydra_leaves_is_read(typed: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert rewritten([typed])[0] == read


@pytest.mark.parametrize("key", ["results_dir", "data.path", "init.dir", "compare.with", "forecast.prices"])
def test_a_home_of_nobody_is_an_error_of_any_key(key: str) -> None:
    with pytest.raises(ConfigError, match="no user 'nobody_here'"):
        rewritten([f"{key}=~nobody_here/x"])
