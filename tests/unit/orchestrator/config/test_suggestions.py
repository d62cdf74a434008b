"""Suggestions for keys that people write from habit: they can be copied, and work."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable

import pytest

from orchestrator.cli.app import main
from orchestrator.config.compose import one_line
from orchestrator.config.habits import (
    _ACTIONS,
    _HABITS,
    _REMARKS,
    choice_meant,
    dash_errors,
    meant,
    meant_by_word,
    meant_in_section,
)
from orchestrator.config.schema import AXES, SCHEMA

WISHES = {
    "lr=0.1": "trainable.lr=0.1",
    "resources.gpus=[1]": "sweep.axes.gpus=[1]",
    "batch_size=64": "sweep.axes.device_batch_size=[64]",
    "--gpus 2": "sweep.axes.gpus=[2]",
    "--batch-size=64": "sweep.axes.device_batch_size=[64]",
    "-device=cuda:0": "resources.device=cuda",
    "budget.wall_s=600": "sweep.budget.wall_s=600",
    "time_limit=600": "time_limit_s=600",
    "seeds=3": "sweep.axes.seed=[0,1,2]",
    "model.lr=0.1": "trainable.lr=0.1",
    "sweep.axes.lr=[0.1,0.2]": 'sweep.axes."trainable.lr"=[0.1,0.2]',
    "sweep.axes.batch_size=[32,64]": "sweep.axes.device_batch_size=[32,64]",
    "sweep.axes.gpus=[1,": "sweep.axes.gpus=[1]",
    "sweep.axes.gpus=1,2": "sweep.axes.gpus=[1,2]",
    "plan": "mode=plan",
    "--dry-run": "mode=plan",
    "dataset=digits": "data=digits",
    "workers=4": "trainable.loader.workers=4",
    "loader.workers=3": "trainable.loader.workers=3",
    "strategy=zero3": "strategy=fsdp",
    "strategy=distributed": "strategy=ddp",
    "amp=true": "trainable.precision=bf16",
    "tensorboard=true": "tracker.tensorboard.enabled=true",
    "--json": "format=json",
    "batch_size=auto": "trainable.micro_batch=auto",
    "report.price_per_gpu_hour=$2.50": "report.price_per_gpu_hour=2.50",
    "price=$2.50": "report.price_per_gpu_hour=2.50",
    "wall_s=10m": "sweep.budget.wall_s=600",
    "sweep.budget.wall_s=1.5h": "sweep.budget.wall_s=5400",
    "batch=32,64": "sweep.axes.device_batch_size=[32,64]",
    "lr=0.1,0.2": 'sweep.axes."trainable.lr"=[0.1,0.2]',
    "cost_per_hour=2.5": "report.price_per_gpu_hour=2.5",
    "retry=true": "rerun=failed",
    "gpu=H100": "cluster.gpu_type=H100",
    "margin=0.5%": "report.margin=0.005",
}


def suggestion(line: str) -> str:
    """Return the first of the overrides that an error offers."""
    written = re.split(r"write |brackets, |dashes: |spaces: ", line)[-1]
    (copied,) = shlex.split(re.split(r" or | \(|; ", written)[0])
    return copied


def test_options_have_a_suggestion() -> None:
    options = {wish: offered for wish, offered in WISHES.items() if wish.startswith("-")}
    assert {wish: suggestion(line) for wish in options for line in dash_errors(wish.split(" "))} == options


def rounds(overrides: Iterable[str]) -> list[list[str]]:
    """Return the overrides in few requests, with each key once, since its error hides others; an axis is alone."""
    requests: dict[tuple[bool, str, int], list[str]] = {}
    count: Counter[str] = Counter()
    for override in overrides:
        key = override.partition("=")[0]
        own = override if key.startswith("sweep.axes.") else ""
        requests.setdefault((key in SCHEMA, own, count[key]), []).append(override)
        count[key] += 1
    return list(requests.values())


def test_suggestions_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    for wishes in rounds(wish for wish in WISHES if not wish.startswith("-")):
        assert main(["sweep=batch_scaling", *wishes]) == 2
        lines = capsys.readouterr().err.splitlines()
        for wish in wishes:
            key = wish.partition("=")[0]
            by_wish, by_key = ([line for line in lines if word in line] for word in (repr(wish), key))
            (line,) = by_wish or by_key or lines
            assert suggestion(line) == WISHES[wish]
    for offered in rounds(dict.fromkeys(WISHES.values())):
        assert main(["sweep=batch_scaling", *dict.fromkeys([*offered, "mode=plan"])]) == 0
        assert "trials" in capsys.readouterr().out


def test_suggestions_are_keys_or_groups() -> None:
    trainable = {f"trainable.{key}" for key in ("lr", "loader.workers", "precision", "micro_batch")}
    keys = {*SCHEMA, *trainable, "data", "optimizer", "schedule", *(f"sweep.axes.{axis}" for axis in AXES)}
    assert {target.partition("=")[0] for target in _HABITS} <= keys and {*_REMARKS} <= {*_HABITS, *SCHEMA}


def test_no_word_has_both_an_override_and_an_action() -> None:
    words = [{word for text in texts for word in text.split()} for texts in (_HABITS.values(), _ACTIONS.values())]
    assert words[0].isdisjoint(words[1])


def test_unknown_words_have_no_suggestion() -> None:
    assert meant("colour", "x") == meant("mode", "colour") == ""
    assert meant("resume", "true").startswith("write mode=run") and meant("resume", "7") == ""
    assert meant("gpus", "auto") == "write sweep.axes.gpus=auto"
    assert meant("gpus", "[1,2]") == "write 'sweep.axes.gpus=[1,2]'"


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("wandb", "write tracker.wandb.enabled=true"),
        ("json", "write format=json"),
        ("compare", "write mode=compare"),
        ("gpus", "write 'sweep.axes.gpus=[…]'"),
        ("epochs", "write budget.epochs=…"),
        ("colour", ""),
    ],
)
def test_a_word_is_a_flag_a_mode_or_a_key(word: str, written: str) -> None:
    assert meant_by_word(word) == written


@pytest.mark.parametrize(
    ("section", "value", "written"),
    [
        ("budget", "2h", ["budget.seconds=7200", "sweep.budget.wall_s=7200"]),
        ("sweep.budget", "2h", ["sweep.budget.wall_s=7200"]),
        ("tracker", "mlflow", ["tracker.mlflow.enabled=true"]),
        ("cluster", "h100", []),
    ],
)
def test_a_value_of_a_section_names_the_keys_that_take_it(section: str, value: str, written: list[str]) -> None:
    text = meant_in_section(section, value)
    assert sorted(re.findall(r"[a-z_.]+=[a-z0-9]+", text)) == written


@pytest.mark.parametrize("flags", [["-m"], ["-cd", "my"], ["-cdmy"], ["--cfg", "job"], ["--conf", "x"], ["-h"]])
def test_flags_are_no_keys(flags: list[str]) -> None:
    assert list(dash_errors(flags)) == []


def test_a_letter_is_no_key() -> None:
    (line,) = dash_errors(["-g", "2"])
    assert "--help" in line and "g=2" not in line


def test_options_of_a_launch_are_one_mapping() -> None:
    assert meant("launch.partition", "gpu") == "write 'launch.options={partition: gpu}'"


def test_a_prediction_is_a_forecast_of_more_gpus() -> None:
    command = "write mode=forecast 'forecast.gpus=[8,16]'"
    assert command == meant("predict.gpus", "[8]") == choice_meant("mode", "predict") == meant("mode", "predict")


def test_a_limit_of_trials_names_the_keys_that_have_one() -> None:
    assert {"sweep.axes", "sweep.budget.gpu_hours"} <= {*re.findall(r"[a-z_.]+[a-z_]", meant("max_trials", "10"))}


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("mode=compare results/a results/b", "mode=compare results_dir=results/a compare.with=results/b"),
        ("mode=compare results/b", "mode=compare compare.with=results/b"),
        ("mode=status results/a", "mode=status results_dir=results/a"),
    ],
)
def test_folders_without_a_key_have_one_suggested(words: str, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err.strip().endswith(f"write {written}")


@pytest.mark.parametrize("mode", ["show", "logs", "stop", "clean", "runn"])
def test_mode_that_does_not_exist_is_told_before_the_missing_sweep(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"mode={mode}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"unknown mode {mode!r}" in line and "choose a sweep" not in line


@pytest.mark.parametrize(
    "error", [ValueError("x " * 10_000), RecursionError("maximum recursion depth exceeded, full_key: " + "[0]" * 900)]
)
def test_what_hydra_says_is_one_short_line(error: Exception) -> None:
    assert len(one_line(error)) < 1100 and "[0]" not in one_line(error)
