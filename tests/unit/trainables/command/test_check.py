import re
import sys

import pytest
import yaml

from tests.unit.trainables.test_conf import CONF
from trainables.command.check import errors, remarks
from trainables.command.placeholders import NAMES, lengths_of
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
    from orchestrator.analysis.summary import COLUMNS
    from orchestrator.analysis.trials import MEASURED

    measured = {"val_accuracy", *MEASURED} | (set(COLUMNS) & set(MEASURED))
    assert measured <= set(config()["trainable"]["metrics"])
    assert all(value is None for value in config()["trainable"]["metrics"].values())


@pytest.mark.parametrize("value", [5, True, 1.5, {"a": 1}, [1]])
@pytest.mark.parametrize(
    "key",
    [
        *("oom_patterns", "diverged_patterns", "epoch_pattern", "step_pattern", "metrics_file", "python", "env"),
        *("metrics", "argv", "timeout_s", "grace_s", "adapter", "cwd"),
    ],
)
def test_setting_of_a_wrong_type_is_an_error(key, value):
    if (key, value) in [("argv", [1]), *((key, value) for key in ("timeout_s", "grace_s") for value in (5, 1.5))]:
        return
    if key in ("env", "metrics") and isinstance(value, dict):
        return
    messages = list(errors(config(**{key: value})))
    assert messages and all(f"trainable.{key}" in line for line in messages)


@pytest.mark.parametrize("key", ["oom_patterns", "diverged_patterns", "ok_exit_codes"])
@pytest.mark.parametrize("value", [None, "a", 0])
def test_list_may_not_be_one_value(key, value):
    assert [key in line for line in errors(config(**{key: value}))] == [True]


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
def test_a_missing_program_is_an_error_where_trials_run(folder, argv, program):
    (folder / "start.sh").write_text("#!/bin/sh\n")
    for mode in ("run", "settle"):
        (error,) = errors(config(argv=argv) | {"mode": mode})
        assert program in error and str(folder) in error
    assert list(errors(config(argv=argv) | {"mode": "plan"})) == []
    (folder / "start.sh").chmod(0o755)
    for sound in ("./start.sh", "{python} train.py", "python train.py"):
        assert list(errors(config(argv=sound) | {"mode": "run"})) == []
    assert list(errors(config(argv=argv, env={"PATH": "/elsewhere"}) | {"mode": "run"})) == []


def test_a_cluster_may_have_the_program_unless_trials_run_in_this_process(folder, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    asked = config(argv="absent") | {"mode": "run"}
    assert list(errors(asked)) == []
    (error,) = errors(asked | {"backend": "inprocess"})
    assert "'absent'" in error


def test_all_errors_are_reported():
    given = config(
        argv="train.py {learning_rate} {steps}",
        env={"A": "{b}"},
        metrics={"loss": "(", "accuracy": {"take": "best"}},
        oom_patterns=["["],
    )
    lines = list(errors(given))
    expected = ("learning_rate", "steps has no value", "trainable.env", "oom_patterns", "loss='('", "'best'")
    assert len(lines) == 6 and all(any(part in line for line in lines) for part in expected), lines


@pytest.mark.parametrize(
    ("metric", "columns", "wrong"),
    [
        ({"name": "val_acuracy", "better": "higher"}, [], True),
        ("val_acc", [], False),
        ("f1", [], False),  # a framework may report it
        ({"name": "val_acuracy", "better": "higher"}, ["val_acuracy"], False),
    ],
)
def test_a_misspelt_metric_is_an_error(metric, columns, wrong):
    metrics = config()["trainable"]["metrics"] | dict.fromkeys(columns)
    assert bool(list(errors(config(metrics=metrics) | {"report": {"metric": metric}}))) is wrong


@pytest.mark.parametrize(
    ("name", "unit", "tokens_per_sample", "has_value"),
    [
        ("steps", "tokens", 128, True),
        ("samples", "tokens", 128, True),
        ("steps", "tokens", None, False),
        ("tokens", "tokens", None, True),
        ("tokens", "steps", 128, True),
        ("tokens", "epochs", 128, False),
        ("tokens_per_batch", "epochs", 128, True),
        ("tokens_per_batch", "epochs", None, False),
    ],
)
def test_a_length_has_a_value_if_it_follows_from_the_budget(name, unit, tokens_per_sample, has_value):
    budget = {"budget": {"epochs": None, unit: 1000}}
    given = config(argv=f"true {{{name}}}", tokens_per_sample=tokens_per_sample) | budget
    assert [f"{name} has no value" in error for error in errors(given)] == [True] * (not has_value)
    assert (lengths_of(budget["budget"], 8, tokens_per_sample)[name] is not None) is has_value
    if has_value and name != "tokens_per_batch":
        assert list(remarks(given)) == []


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


def axes(**values):
    return {"sweep": {"axes": {name.replace("__", "."): value for name, value in values.items()}}}


def rules(*names, warmup_epochs):
    return axes(lr_rule=list(names)) | {"warmup_epochs": warmup_epochs}


GRID = axes(device_batch_size=[32, 64], lr_rule=["none", "linear"], lr_multiplier=None, seed=[0, 1])
PARALLEL = axes(tensor_parallel=[1, 2]) | {"tensor_parallel": 1}
STEPS = {"budget": {"epochs": None, "steps": 50}}


@pytest.mark.parametrize(
    ("words", "extra", "unknown"),
    [
        # Axes: trials that differ only in a value that never arrives would look like a finding.
        ("{epochs} {seed}", GRID, ["device_batch_size", "lr"]),
        ("{epochs} {seed} --lr {lr} --reference {trainable.lr}", GRID, ["device_batch_size"]),
        ("{epochs} {seed} --batch {global_batch_size} --lr={lr}", GRID, []),
        ("{epochs}", axes(lr_rule=["sqrt"]), []),  # an axis of one value
        ("{epochs}", axes(trainable__lr=[0.1, 0.2]), ["lr"]),
        ("{epochs} {lr}", axes(trainable__lr=[0.1, 0.2]), []),
        ("{epochs} {trainable.lr}", axes(trainable__lr=[0.1, 0.2]), []),
        ("{epochs}", axes(nodes=[1, 2]), ["gpus_per_node"]),
        ("{epochs} {node_rank}", axes(nodes=[1, 2]), []),
        ("{epochs} {gpus}", {"nodes": 2}, ["gpus_per_node"]),
        ("{epochs} {gpus_per_node}", {"nodes": 2}, []),
        ("{epochs}", PARALLEL, ["tp"]),
        ("{epochs} {tp}", PARALLEL, []),
        ("{epochs} {tensor_parallel}", PARALLEL, []),
        ("{epochs}", axes(optimizer__momentum=["a", "b"], model__one=[1]), ["optimizer.momentum"]),
        ("{epochs} {optimizer.momentum}", axes(optimizer__momentum=["a", "b"]), []),
        ("{epochs} {model.name}", axes(model=["a", "b"]), []),
        ("{epochs}", axes(model=["a", "b"]), ["model"]),
        ("{epochs}", axes(trainable__depth=["a", "b"]), ["trainable.depth"]),
        ("{epochs}", axes(trainable__env__DEPTH=["a", "b"]), []),
        ("{epochs}", axes(augmentation__crop=["a", "b"]), ["augmentation.crop"]),
        ("{epochs}", axes(resources__cpus_per_worker=["a", "b"]), []),
        ("{epochs}", axes(seed=[1, 2]), ["seed"]),
        ("{epochs} {seed}", axes(seed=[1, 2]), []),
        ("{epochs}", axes(seed=[1]), []),
        ("{epochs}", axes(grad_accum_steps=[1, 2]), ["grad_accum_steps"]),
        ("{epochs} {grad_accum_steps}", axes(grad_accum_steps=[1, 2]), []),
        ("{epochs}", axes(gpus=[1, 2]), ["gpus"]),
        ("{epochs} {gpus}", axes(gpus=[1, 2]), []),
        ("{epochs} {global_batch_size}", axes(gpus=[1, 2]), []),
        ("{epochs}", axes(gpus=[1]), []),
        ("{epochs}", axes(gpus=[0.5]), []),
        ("{epochs}", axes(gpus="auto"), []),  # not known before the machine is
        # Lengths.
        ("", {}, ["epochs"]),
        ("--steps {steps}", {}, ["epochs"]),
        ("--until {budget.epochs}", {}, []),
        *((word, STEPS, []) for word in ("{samples}", "{steps}", "{budget.steps}")),
        # Warm-ups.
        ("{epochs} {lr}", rules("none", "linear", warmup_epochs=5), ["warmup_epochs"]),
        ("{epochs} {lr}", rules("none", "linear", warmup_epochs=0), []),
        ("{epochs} {lr}", rules("none", "sqrt", warmup_epochs=5), []),
        ("{epochs} {lr} {warmup_epochs}", rules("linear", warmup_epochs=5), []),
    ],
)
def test_values_that_do_not_reach_the_command_are_named(folder, words, extra, unknown):
    def names(argv):
        asked = config(argv=argv) | extra | {"mode": "run"}
        return re.findall(r"has no \{([^}]*)\}", " ".join([*errors(asked), *remarks(asked)]))

    assert names(f"python train.py {words}") == unknown
    known = [name for name in unknown if name in NAMES]
    # A module, a shell and a script beside the command's may read the environment.
    assert not set(known) & {*names("python -m train"), *names("bash -c 'python train.py $SWEEP_LR'")}
    (folder / "settings.py").write_text("import os\nvalue = os.environ['SWEEP_LR']\n")
    assert not set(known) & set(names("python train.py"))


def test_a_length_without_a_value_names_its_key():
    (error,) = errors(config(argv="python train.py {steps}"))
    assert "budget.steps=N" in error


def test_a_plan_remarks_a_program_that_is_not_here():
    given = config(argv="absent {epochs}") | {"mode": "plan"}
    (remark,) = remarks(given)
    assert "'absent'" in remark and "mode=run" in remark
    (remark,) = remarks(given | {"cluster": {"address": "auto"}})
    assert "'absent'" in remark and "nodes" in remark
    assert list(remarks(given | {"mode": "run"})) == []  # there it is an error


def test_programs_beside_the_commands_python_are_found(folder, tmp_path):
    program = tmp_path / "venv/bin/launch-here"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert any("launch-here" in error for error in errors(config(argv="launch-here train") | {"mode": "run"}))
    (program.parent / "python").symlink_to(sys.executable)
    given = config(argv="launch-here train", python=str(program.parent / "python"))
    assert list(errors(given | {"mode": "run"})) == []


def test_a_launcher_of_another_python_is_an_error(folder, tmp_path, monkeypatch):
    for place in ("path", "venv"):
        (tmp_path / place).mkdir()
    launcher = tmp_path / "path/torchrun"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{launcher.parent}:/usr/bin:/bin")
    (tmp_path / "venv/python").symlink_to(sys.executable)
    given = config(argv="torchrun train.py", python=str(tmp_path / "venv/python")) | {"mode": "run"}
    assert [error for error in errors(given) if "another Python" in error and "torch.distributed.run" in error]
    launcher.rename(tmp_path / "venv/torchrun")
    assert list(errors(given)) == []
    assert list(errors(config(argv="{python} train.py", python=str(tmp_path / "venv/python")) | {"mode": "run"})) == []


@pytest.mark.parametrize(
    ("words", "signs"),
    [
        ("--data $HOME/x ~/y", ["$HOME/x", "~/y"]),
        ("--out ${{HOME}} '$(date)'", ["${{HOME}}", "$(date)"]),
        ("2>&1 | tee log.txt", ["2>&1", "|"]),
        ("> log ; echo ok", [">", ";"]),
        ("--cost $5 --pattern a|b --url x~y --gt=>3", []),
    ],
)
def test_signs_of_a_shell_are_remarked(words, signs):
    lines = [line for line in remarks(config(argv=f"python train.py {words}")) if "no shell" in line]
    assert [sign for sign in signs if sign not in " ".join(lines)] == [] and len(lines) == bool(signs)
    assert not any("no shell" in line for line in remarks(config(argv=["bash", "-c", f"python train.py {words}"])))


def test_a_missing_python_is_an_error(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    given = config(argv="{python} train.py", python="~/env/bin/python") | {"mode": "run"}
    (error,) = errors(given)
    assert "trainable.python" in error and str(folder / "env/bin/python") in error
    (folder / "env/bin").mkdir(parents=True)
    (folder / "env/bin/python").symlink_to(sys.executable)
    assert list(errors(given)) == []
