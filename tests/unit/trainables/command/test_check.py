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


def test_shipped_config_has_all_settings():
    given = config()["trainable"]
    assert set(CommandSettings.__dataclass_fields__) <= set(given)
    assert set(given) - set(CommandSettings.__dataclass_fields__) == {
        *("_target_", "_check_", "_remarks_", "strategy", "lr", "reference_batch_size", "optimizer", "repetition")
    }
    defaults = CommandSettings(argv="python train.py", metrics=given["metrics"], ok_exit_codes=[0])
    assert {key: getattr(defaults, key) or None for key in defaults.__dataclass_fields__} == {
        key: given[key] or None for key in defaults.__dataclass_fields__
    }


def test_shipped_config_declares_every_measured_column():
    from orchestrator.analysis.cells import COLUMNS
    from orchestrator.analysis.trials import MEASURED

    measured = {"val_accuracy", *MEASURED} | (set(COLUMNS) & set(MEASURED))
    assert measured <= set(config()["trainable"]["metrics"])
    assert all(value is None for value in config()["trainable"]["metrics"].values())


def test_a_valid_config_has_no_errors():
    argv = "torchrun --nproc_per_node={gpus} train.py --epochs {epochs} --seed {seed} --json {{}} {trainable.optimizer}"
    given = config(argv=argv, env={"LR": "{lr}"}, metrics_file="log-{seed}.jsonl", metrics={"loss": "loss: (.+)"})
    assert list(errors(given)) == []


def test_a_missing_script_is_an_error(folder):
    (error,) = errors(config(argv="{python} trian.py --log {trial_dir}/log.py --init=weights.py 'echo x.py'"))
    assert "trainable.argv" in error and "trian.py" in error and str(folder) in error
    assert list(errors(config(argv="train.py", source_dir=str(folder)))) == []


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        ("no_such_program --lr {lr}", "'no_such_program'"),
        ("./absent.sh", "'./absent.sh'"),
        ("./start.sh --lr {lr}", "'bash ./start.sh'"),
    ],
)
def test_a_missing_program_is_an_error_where_trials_run(folder, argv, program, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (folder / "start.sh").write_text("#!/bin/sh\n")
    (error,) = errors(config(argv=argv) | {"mode": "run"})
    assert program in error and str(folder) in error
    assert list(errors(config(argv=argv) | {"mode": "plan"})) == []
    (folder / "start.sh").chmod(0o755)
    for sound in ("./start.sh", "{python} train.py", "python train.py"):
        assert list(errors(config(argv=sound) | {"mode": "run"})) == []
    assert list(errors(config(argv=argv, env={"PATH": "/elsewhere"}) | {"mode": "run"})) == []


def test_all_errors_are_reported():
    given = config(
        argv="train.py {learning_rate} {steps}",
        env={"A": "{b}"},
        metrics={"loss": "(", "accuracy": {"take": "best"}},
        oom_patterns=["["],
    )
    found = list(errors(given))
    expected = ("learning_rate", "steps has no value", "trainable.env", "oom_patterns", "loss='('", "'best'")
    assert len(found) == 6 and all(any(part in line for line in found) for part in expected), found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("argv", []),
        ("argv", "train 'x"),
        ("cwd", "home"),
        ("timeout_s", 0),
        ("grace_s", "long"),
        ("env", "A=b"),
        ("metrics", "loss"),
    ],
)
def test_an_invalid_value_is_an_error(key, value):
    (error,) = errors(config(**{key: value}))
    assert f"trainable.{key}" in error and (repr(value) in error or str(value) in error)


def test_an_unset_command_is_an_error():
    (error,) = errors(config(argv="???"))
    assert error.startswith("trainable.argv is not set")


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
def test_axes_that_the_command_does_not_receive_are_errors(argv, unknown):
    found = list(errors(config(argv=argv) | {"sweep": AXES}))
    assert [each.partition("{")[2].partition("}")[0] for each in found] == unknown


@pytest.mark.parametrize(("word", "unknown"), [("", True), ("{lr}", False), ("{trainable.lr}", False)])
def test_an_axis_of_rates_must_reach_the_command(word, unknown):
    found = list(errors(config(argv=f"python train.py {word}") | {"sweep": {"axes": {"trainable.lr": [0.1, 0.2]}}}))
    assert [each.partition(",")[0] for each in found] == ["trainable.argv has no {lr}"] * unknown


@pytest.mark.parametrize(("word", "unknown"), [("", True), ("{tp}", False), ("{tensor_parallel}", False)])
def test_an_axis_of_parallelism_must_reach_the_command(word, unknown):
    axes = {"sweep": {"axes": {"tensor_parallel": [1, 2]}}, "tensor_parallel": 1, "mode": "run"}
    asked = config(argv=f"python train.py {word}") | axes
    assert [each.partition(",")[0] for each in errors(asked)] == ["trainable.argv has no {tp}"] * unknown
    assert not [each for each in remarks(asked) if "tensor_parallel" in each]


def test_a_script_may_read_axes_from_its_environment(folder):
    (folder / "settings.py").write_text("import os\nlr = os.environ['SWEEP_LR']\n")
    assert list(errors(config(argv="python train.py") | {"sweep": AXES})) == []


def test_an_axis_of_one_value_need_not_reach_the_command():
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
def test_a_length_that_the_command_does_not_receive_is_remarked(argv, unknown):
    found = list(remarks(config(argv=argv) | {"mode": "run"}))
    assert [each.partition(" does")[0] for each in found] == [
        "trainable.argv has no {epochs}, so budget.epochs=3"
    ] * unknown


@pytest.mark.parametrize("word", ["{samples}", "{steps}", "{budget.steps}"])
def test_a_length_in_steps_may_be_passed_in_samples(word):
    asked = config(argv=f"python train.py {word}") | {"budget": {"epochs": None, "steps": 50}, "mode": "run"}
    assert not list(errors(asked)) and not list(remarks(asked))


def test_a_length_without_a_value_names_its_key():
    (error,) = errors(config(argv="python train.py {steps}"))
    assert "budget.steps=N" in error


def test_a_plan_remarks_a_program_that_is_not_here(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = config(argv="absent {epochs}") | {"mode": "plan"}
    (remark,) = remarks(given)
    assert "'absent'" in remark and "mode=run" in remark
    (remark,) = remarks(given | {"cluster": {"address": "auto"}})
    assert "'absent'" in remark and "nodes" in remark
    assert list(remarks(given | {"mode": "run"})) == []  # there it is an error


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
def test_a_config_axis_without_braces_is_remarked(argv, axis, unknown):
    asked = {"sweep": {"axes": {axis: ["a", "b"], "model.one": [1]}}, "mode": "run"}
    assert [f"sweep.axes.{axis} " in each for each in remarks(config(argv=argv) | asked)] == [True] * unknown


@pytest.mark.parametrize("axis", ["seed", "grad_accum_steps"])
def test_unread_standard_axis_is_remarked(axis, folder):
    asked = {"sweep": {"axes": {axis: [1, 2]}}, "mode": "run"}
    (remark,) = remarks(config(argv="python train.py {epochs}") | asked)
    assert f"sweep.axes.{axis} " in remark and f"SWEEP_{axis.upper()}" in remark
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
def test_a_command_that_does_not_receive_gpus_is_remarked(argv, text, gpus, unknown, folder):
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
def test_warm_up_not_passed_to_the_command_is_remarked(argv, rules, warmup_epochs, unknown):
    asked = config(argv=argv) | {"sweep": {"axes": {"lr_rule": rules}}, "warmup_epochs": warmup_epochs, "mode": "run"}
    assert ["{warmup_epochs}" in each for each in remarks(asked)] == [True] * unknown


def test_programs_beside_the_commands_python_are_found(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    program = tmp_path / "venv/bin/launch-here"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert any("launch-here" in each for each in errors(config(argv="launch-here train") | {"mode": "run"}))
    given = config(argv="launch-here train", python=str(program.parent / "python"))
    assert list(errors(given | {"mode": "run"})) == []


def test_a_launcher_of_another_python_is_an_error(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for place in ("path", "venv"):
        (tmp_path / place).mkdir()
    launcher = tmp_path / "path/torchrun"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{launcher.parent}:/usr/bin:/bin")
    given = config(argv="torchrun train.py", python=str(tmp_path / "venv/python")) | {"mode": "run"}
    assert [error for error in errors(given) if "another Python" in error and "torch.distributed.run" in error]
    launcher.rename(tmp_path / "venv/torchrun")
    assert list(errors(given)) == []
    assert list(errors(config(argv="{python} train.py", python=str(tmp_path / "venv/python")) | {"mode": "run"})) == []
