import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from orchestrator.cli.app import main
from orchestrator.config.overrides import literal, overrides_of, rewritten, with_command, with_search_path
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


def test_folder_of_configs_may_have_any_name(tmp_path):
    folder = tmp_path / "conf (1), it's"
    folder.mkdir()
    (override,) = with_search_path([], str(folder))
    assert OverridesParser.create().parse_override(override).value() == [f"file://{folder}"]


def test_numpy_numbers_become_plain_numbers():
    assert overrides_of({"sweep.axes.seed": list(np.arange(2))})[0] == ["sweep.axes.seed=[0,1]"]
    assert overrides_of({"sweep.axes.lr_multiplier": list(np.array([0.5, 1e-7]))})[0] == [
        "sweep.axes.lr_multiplier=[0.5,1e-07]"
    ]


def test_value_without_a_literal_is_an_error():
    with pytest.raises(ValueError, match="is a object"):
        literal(object())


def test_rerun_is_one_value():
    for given, override in (
        ({"gpus": 2, "seed": 0}, "rerun={gpus:2,seed:0}"),
        (["12e4", {"seed": [0, 1]}], "rerun=['12e4',{seed:[0,1]}]"),
    ):
        assert overrides_of({"rerun": given})[0] == [override] == rewritten([override])


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["torchrun", "--nproc_per_node={gpus}", "train.py", "it's", "a b", "--flag", ""], "train"),
        (["python", "-m", "mypackage.main", "x=[1,2]", "--", "more"], "mypackage"),
        (["bash", "-c", "echo {seed}"], "bash"),
        (["./my run.sh", r"\d+"], "my_run"),
    ],
)
def test_words_behind_dashes_are_the_command(words, name):
    *given, named, trainable, argv = with_command(["sweep=batch_scaling", "mode=plan", "--", *words])
    assert given == ["sweep=batch_scaling", "mode=plan"] and trainable == "trainable=command"
    assert named == f"sweep.name={name}"
    assert OverridesParser.create().parse_override(argv).value() == words
    assert with_command(["sweep.name=mine", "--", *words])[0] == "sweep.name=mine"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--"], "followed by no command"),
        (["trainable=noop", "--", "train.sh"], "leave out trainable="),
        (["trainable.argv=other", "--", "train.sh"], "leave out trainable="),
    ],
)
def test_unclear_command_behind_dashes_is_refused(arguments, expected):
    with pytest.raises(ConfigError, match=expected):
        with_command(arguments)


def test_command_behind_dashes_has_no_interpolations():
    """A shell's `${NAME}` reaches the command as it is typed."""
    assert with_command(["sweep=batch_scaling", "--", "echo", "${{HOME}}"])[-1] == "trainable.argv=[echo,'\\${{HOME}}']"


def test_own_dashes_of_the_command_are_no_flags(capsys):
    words = ["python", "train.py", "--multirun", "--help", "-m", "--cfg=job"]
    assert main(["sweep=batch_scaling", "mode=plan", "sweep.axes.seed=[0]", "--", *words]) in (0, 2)
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("results_dir=~/x", "results_dir=/home/me/x"),
        *((text, text) for text in ("results_dir='~/x'", "trainable.prompt='~5'", 'trainable.prompt="~5/s"')),
        *((text, text) for text in ("budget.epochs=~", "trainable.prompt=~5")),
        ("sweep.axes.seed=range(0,3)", "sweep.axes.seed='range(0,3)'"),
        ("sweep.axes.optimizer.momentum=0.8,0.9", "++sweep.axes={optimizer.momentum:[0.8,0.9]}"),
        ("sweep.axes.optimizer.lr=${oc.decode:'[1,2]'}", "++sweep.axes={optimizer.lr:${oc.decode:'[1,2]'}}"),
        ("sweep.axes.optimizer.momentum=range(0,3)", "++sweep.axes={optimizer.momentum:'range(0,3)'}"),
    ],
)
def test_what_a_shell_or_hydra_leaves_is_read(typed, read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert rewritten([typed])[0] == read


@pytest.mark.parametrize("key", ["results_dir", "data.path", "init.dir", "compare.with", "forecast.prices"])
def test_a_home_of_nobody_is_an_error_of_any_key(key):
    with pytest.raises(ConfigError, match="no user 'nobody_here'"):
        rewritten([f"{key}=~nobody_here/x"])
