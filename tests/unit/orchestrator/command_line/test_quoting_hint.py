"""A value that Hydra's grammar takes apart is told with what helps against it."""

import pytest

from orchestrator.app import main


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "trainable.argv=python train.py --bs {gpus}",
            "quote it twice: \"trainable.argv='python train.py --bs {gpus}'\"",
        ),
        ("trainable.argv=a 'b' {gpus}", 'quote it twice: "trainable.argv=\\"a \'b\' {gpus}\\""'),
        ("sweep.axes.gpus=[1,2", ""),
    ],
)
def test_a_text_in_braces_is_to_be_quoted_twice(override, told, capsys):
    assert main(["sweep=batch_scaling", "trainable=command", override, "mode=plan"]) == 2
    err = capsys.readouterr().err
    assert told in err and ("quote it" in err) == bool(told), err
