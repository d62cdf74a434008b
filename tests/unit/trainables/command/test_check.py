import pytest
import yaml

from tests.unit.trainables.test_conf import CONF
from trainables.command.check import errors, remarks
from trainables.command.settings import CommandSettings


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**trainable):
    shipped = yaml.safe_load((CONF / "trainable/command.yaml").read_text())
    return {"trainable": shipped | {"argv": "python train.py"} | trainable, "budget": {"epochs": 3, "steps": None}}


def test_the_shipped_config_has_the_keys_that_are_read():
    given = config()["trainable"]
    assert set(CommandSettings.__dataclass_fields__) <= set(given)
    assert set(given) - set(CommandSettings.__dataclass_fields__) == {
        *("_target_", "_check_", "_remarks_", "strategy", "lr", "reference_batch_size", "optimizer", "repetition")
    }
    defaults = CommandSettings(argv="python train.py", metrics=given["metrics"], ok_exit_codes=[0])
    assert {key: getattr(defaults, key) or None for key in defaults.__dataclass_fields__} == {
        key: given[key] or None for key in defaults.__dataclass_fields__
    }


def test_every_column_that_a_trial_can_measure_is_declared():
    from orchestrator.analysis.cells import COLUMNS
    from orchestrator.analysis.trials import MEASURED

    measured = {"val_accuracy", *MEASURED} | (set(COLUMNS) & set(MEASURED))
    assert measured <= set(config()["trainable"]["metrics"])
    assert all(value is None for value in config()["trainable"]["metrics"].values())


def test_nothing_is_wrong_with_a_sound_one():
    argv = "torchrun --nproc_per_node={gpus} train.py --epochs {epochs} --seed {seed} --json {{}} {trainable.optimizer}"
    given = config(argv=argv, env={"LR": "{lr}"}, metrics_file="log-{seed}.jsonl", metrics={"loss": "loss: (.+)"})
    assert list(errors(given)) == []


def test_a_script_that_is_not_there_is_told(folder):
    (told,) = errors(config(argv="{python} trian.py --log {trial_dir}/log.py --init=weights.py 'echo x.py'"))
    assert told == f"trainable.argv names trian.py, and there is no such file in {folder}"
    assert list(errors(config(argv="train.py", source_dir=str(folder)))) == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("no_such_program --lr {lr}", "there is no program 'no_such_program', neither in {folder} nor on the PATH"),
        ("./absent.sh", "there is no program './absent.sh'"),
        ("./start.sh --lr {lr}", "{folder}/./start.sh is not executable: name what runs it ('bash ./start.sh')"),
    ],
)
def test_a_program_that_cannot_be_started_is_told_where_it_is_to_run(folder, argv, told, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (folder / "start.sh").write_text("#!/bin/sh\n")
    (line,) = errors(config(argv=argv) | {"mode": "run"})
    assert told.format(folder=folder).replace("/./", "/") in line
    assert list(errors(config(argv=argv) | {"mode": "plan"})) == []
    (folder / "start.sh").chmod(0o755)
    for sound in ("./start.sh", "{python} train.py", "python train.py"):
        assert list(errors(config(argv=sound) | {"mode": "run"})) == []
    assert list(errors(config(argv=argv, env={"PATH": "/elsewhere"}) | {"mode": "run"})) == []


def test_everything_that_is_wrong_is_told_at_once():
    given = config(
        argv="train.py {learning_rate} {steps}",
        env={"A": "{b}"},
        metrics={"loss": "(", "accuracy": {"take": "best"}},
        oom_patterns=["["],
    )
    told = list(errors(given))
    expected = ("learning_rate", "steps has no value", "trainable.env", "oom_patterns", "loss='('", "'best'")
    assert len(told) == 6 and all(any(part in line for line in told) for part in expected), told


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("argv", "???", "trainable.argv is not set"),
        ("argv", [], "must be a command line"),
        ("argv", "train 'x", "No closing quotation"),
        ("cwd", "home", "not one of trial, source"),
        ("timeout_s", 0, "timeout_s must be a number above 0"),
        ("grace_s", "long", "grace_s must be a number above 0"),
        ("env", "A=b", "env must be"),
        ("metrics", "loss", "metrics must be"),
    ],
)
def test_wrong_values_are_told(key, value, told):
    (line,) = errors(config(**{key: value}))
    assert told in line


AXES = {"axes": {"device_batch_size": [32, 64], "lr_rule": ["none", "linear"], "lr_multiplier": None, "seed": [0, 1]}}


@pytest.mark.parametrize(
    ("argv", "unknown"),
    [
        ("python train.py", ["device_batch_size", "lr"]),
        ("python train.py --lr {lr} --reference {trainable.lr}", ["device_batch_size"]),
        ("python train.py --batch {global_batch_size} --lr={lr}", []),
        ("python -m train", []),
        ("bash -c 'python train.py --lr $SWEEP_LR --batch $SWEEP_DEVICE_BATCH_SIZE'", []),
    ],
)
def test_axes_that_the_command_never_hears_of_are_refused(argv, unknown):
    told = list(errors(config(argv=argv) | {"sweep": AXES}))
    assert [each.partition("{")[2].partition("}")[0] for each in told] == unknown


@pytest.mark.parametrize(("word", "unknown"), [("", True), ("{lr}", False), ("{trainable.lr}", False)])
def test_rates_that_the_command_never_hears_of_are_refused_whichever_axis_they_come_from(word, unknown):
    told = list(errors(config(argv=f"python train.py {word}") | {"sweep": {"axes": {"trainable.lr": [0.1, 0.2]}}}))
    assert [each.partition(",")[0] for each in told] == ["trainable.argv has no {lr}"] * unknown


def test_a_script_may_read_them_from_its_environment(folder):
    (folder / "settings.py").write_text("import os\nlr = os.environ['SWEEP_LR']\n")
    assert list(errors(config(argv="python train.py") | {"sweep": AXES})) == []


def test_an_axis_of_one_value_need_not_be_told():
    assert list(errors(config(argv="python train.py") | {"sweep": {"axes": {"lr_rule": ["sqrt"]}}})) == []


@pytest.mark.parametrize(
    ("argv", "unknown"),
    [
        ("python train.py", True),
        ("python train.py --steps {steps}", True),
        ("python train.py --epochs {epochs}", False),
        ("python train.py --until {budget.epochs}", False),
        ("bash -c 'python train.py --epochs $SWEEP_EPOCHS'", False),
        ("python -m train", False),
    ],
)
def test_a_length_that_the_command_is_not_told_is_remarked(argv, unknown):
    told = list(remarks(config(argv=argv) | {"mode": "run"}))
    assert [each.partition(" does")[0] for each in told] == [
        "trainable.argv has no {epochs}, so budget.epochs=3"
    ] * unknown


@pytest.mark.parametrize("word", ["{samples}", "{steps}", "{budget.steps}"])
def test_a_length_in_steps_may_be_told_in_samples(word):
    asked = config(argv=f"python train.py {word}") | {"budget": {"epochs": None, "steps": 50}, "mode": "run"}
    assert not list(errors(asked)) and not list(remarks(asked))


def test_a_length_that_is_not_set_says_where_it_is():
    (told,) = errors(config(argv="python train.py {steps}"))
    assert told.endswith("steps has no value: set budget.steps=N, and the budget's other lengths to null")


def test_a_plan_remarks_a_program_that_is_not_here(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = config(argv="absent {epochs}") | {"mode": "plan"}
    (told,) = remarks(given)
    assert "there is no program 'absent'" in told and told.endswith("mode=run would refuse that)")
    (told,) = remarks(given | {"cluster": {"address": "auto"}})
    assert told.endswith("the nodes need it)")
    assert list(remarks(given | {"mode": "run"})) == []  # which mistakes tells


@pytest.mark.parametrize(
    ("argv", "axis", "unknown"),
    [
        ("python train.py {epochs}", "optimizer.momentum", True),
        ("python train.py {epochs} --momentum {optimizer.momentum}", "optimizer.momentum", False),
        ("python train.py {epochs} --model {model.name}", "model", False),
        ("python train.py {epochs}", "model", True),
        ("python train.py {epochs}", "trainable.depth", True),
        ("python train.py {epochs}", "trainable.env.DEPTH", False),
        ("python train.py {epochs}", "augmentation.crop", True),
        ("python train.py {epochs}", "resources.cpus_per_worker", False),
    ],
)
def test_an_axis_of_the_config_that_no_braces_name_is_remarked(argv, axis, unknown):
    asked = {"sweep": {"axes": {axis: ["a", "b"], "model.one": [1]}}, "mode": "run"}
    assert [each.partition("sweep.axes.")[2] for each in remarks(config(argv=argv) | asked)] == [
        f"{axis} train alike: name it there"
    ] * unknown


@pytest.mark.parametrize(
    ("axis", "alike"), [("seed", ", but for chance of the command's own"), ("grad_accum_steps", "")]
)
def test_an_axis_that_has_a_name_in_the_environment_is_remarked_unless_it_may_be_read_there(axis, alike, folder):
    asked = {"sweep": {"axes": {axis: [1, 2]}}, "mode": "run"}
    assert list(remarks(config(argv="python train.py {epochs}") | asked)) == [
        f"trainable.argv has no {{{axis}}}, so all values of sweep.axes.{axis} train alike{alike}: name it there,"
        f" or read SWEEP_{axis.upper()}"
    ]
    assert list(remarks(config(argv=f"python train.py {{epochs}} {{{axis}}}") | asked)) == []
    assert (
        list(remarks(config(argv="python train.py {epochs}") | {"sweep": {"axes": {axis: [1]}}, "mode": "run"})) == []
    )
    (folder / "settings.py").write_text(f"import os\nvalue = os.environ['SWEEP_{axis.upper()}']\n")
    assert list(remarks(config(argv="python train.py {epochs}") | asked)) == []


@pytest.mark.parametrize(
    ("argv", "text", "gpus", "unknown"),
    [
        ("python train.py {epochs}", "", [1, 2], True),
        ("python train.py {epochs}", "os.environ['SWEEP_GPUS']", [1, 2], False),
        ("python train.py {epochs} {gpus}", "", [1, 2], False),
        ("python train.py {epochs} {global_batch_size}", "", [1, 2], False),
        ("python train.py {epochs}", "", [1], False),
        ("python train.py {epochs}", "", [0.5], False),
        ("python train.py {epochs}", "", "auto", False),  # not known before the machine is
    ],
)
def test_a_command_that_does_not_hear_of_its_gpus_is_remarked(argv, text, gpus, unknown, folder):
    (folder / "train.py").write_text(text)
    asked = config(argv=argv, source_dir=str(folder)) | {"sweep": {"axes": {"gpus": gpus}}, "mode": "run"}
    assert ["has no {gpus}" in each for each in remarks(asked)] == [True] * unknown


@pytest.mark.parametrize(
    ("argv", "rules", "warmup_epochs", "unknown"),
    [
        ("python train.py {epochs} {lr}", ["none", "linear"], 5, True),
        ("python train.py {epochs} {lr}", ["none", "linear"], 0, False),
        ("python train.py {epochs} {lr}", ["none", "sqrt"], 5, False),
        ("python train.py {epochs} {lr} {warmup_epochs}", ["linear"], 5, False),
    ],
)
def test_a_warm_up_that_does_not_reach_the_command_is_remarked(argv, rules, warmup_epochs, unknown):
    asked = config(argv=argv) | {"sweep": {"axes": {"lr_rule": rules}}, "warmup_epochs": warmup_epochs, "mode": "run"}
    assert ["lr_rule=linear runs without its warm-up" in each for each in remarks(asked)] == [True] * unknown
