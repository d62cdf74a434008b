"""A value that Hydra's grammar takes apart is told with what helps against it."""

import pytest

from orchestrator.cli.app import main


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "trainable.argv=python train.py --bs {gpus}",
            "quote it twice: \"trainable.argv='python train.py --bs {gpus}'\"",
        ),
        ("trainable.argv=a 'b' {gpus}", 'quote it twice: "trainable.argv=\\"a \'b\' {gpus}\\""'),
        ("sweep.axes.seed=range(0,3)", "for the values of an axis quote it twice: \"sweep.axes.seed='range(0,3)'\""),
        ("sweep.axes.gpus=[1,2", ""),
    ],
)
def test_a_text_in_braces_is_to_be_quoted_twice(override, told, capsys):
    assert main(["sweep=batch_scaling", "trainable=command", override, "mode=plan"]) == 2
    err = capsys.readouterr().err
    assert told in err and ("quote it" in err) == bool(told), err


@pytest.mark.parametrize(
    ("override", "meant"),
    [("sweep.axes.gpus=1,2", "sweep.axes.gpus=[1,2]"), ("model=mlp,small_cnn", "sweep.axes.model=[mlp,small_cnn]")],
)
def test_values_without_brackets_are_told_with_them(override, meant, capsys):
    assert main(["sweep=batch_scaling", override, "mode=plan"]) == 2
    assert f"an axis takes a list in brackets, '{meant}'; with -m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rerun=ab,cd", "write a list in brackets, 'rerun=[ab,cd]'; with -m"),
        ("report.margin=.1,.2", "write a list in brackets, 'report.margin=[.1,.2]'; with -m"),
        ("sweep=batch_scaling,mine", "only one can be chosen; with -m"),
    ],
)
def test_what_can_be_no_axis_is_not_called_one(override, told, capsys):
    assert main(["sweep=batch_scaling", override, "mode=plan"]) == 2
    err = capsys.readouterr().err
    assert told in err and "an axis" not in err


def test_spaces_around_the_sign_are_told_as_such(capsys):
    assert main(["sweep=batch_scaling", "sweep.axes.gpus = [1]", "mode=plan"]) == 2
    assert capsys.readouterr().err.endswith("; write no spaces around =\n")


def test_a_word_without_a_value_is_told_as_such(capsys):
    assert main(["sweep", "sweep.axes.gpus=[1,", "2]", "mode=plan"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in told if "KEY=VALUE" in line] == [
        "'sweep' is not KEY=VALUE",
        "'2]' is not KEY=VALUE",
    ]


def test_a_key_with_dashes_is_told_without(capsys):
    assert main(["--sweep=batch_scaling", "--config-name=config", "--results-dir=x"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == ["sweep=batch_scaling", "results_dir=x"]


def test_dashes_with_the_value_as_a_word_of_its_own_are_told_too(capsys):
    assert main(["sweep=batch_scaling", "--batch-size", "32", "mode=plan"]) == 2
    assert capsys.readouterr().err.splitlines() == ["'--batch-size': write keys without dashes: batch_size=VALUE"]


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("gpus=2", "sweep.axes.gpus"),
        ("epochs=3", "budget.epochs"),
        ("lr=0.1", "trainable.lr or optimizer.lr"),
        ("batch_size=64", "sweep.axes.device_batch_size or sweep.axes.global_batch_size or "),
    ],
)
def test_a_word_without_its_section_is_told_with_it(override, meant, capsys):
    assert main(["sweep=batch_scaling", override, "mode=plan"]) == 2
    assert f"(did you mean {meant}" in capsys.readouterr().err
