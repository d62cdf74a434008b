"""From overrides to a checked sweep: what is refused before anything starts."""

import json
import re
import shlex

import pytest

from orchestrator.cli.app import main
from orchestrator.cli.sweep_checks import (
    axis_errors,
    checked,
    composed,
    margin_errors,
    request_errors,
    setup_errors,
    setup_remarks,
)
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.overrides import literal
from sweeps.errors import ConfigError
from tests.unit.orchestrator.requests import shipped_config, with_value


@pytest.mark.parametrize("counts", ["auto", "[1,2]"])
def test_cells_are_looked_up_once_gpu_counts_are_known(counts):
    """A cluster may have three GPUs: `auto` has a cell for them there."""
    both = ("rerun={gpus:3}", "sweep.baseline={gpus:3}")
    with initialised():
        composition = composed(
            ["sweep=batch_scaling", f"sweep.axes.gpus={counts}", "cluster.address=192.0.2.1:6379", *both]
        )
        if counts == "auto":
            assert checked(composition).request.axes["gpus"] == "auto"
        else:
            with pytest.raises(ConfigError) as told:
                checked(composition)
            for key in ("rerun", "sweep.baseline"):
                assert any(re.search(rf"{key}.*3.*1, 2", line) for line in told.value.errors), key


def test_wrong_value_is_refused_in_a_mode_that_reads(capsys):
    assert main(["sweep=batch_scaling", "report.margin=none", "mode=report"]) == 2
    assert "report.margin" in capsys.readouterr().err


def test_values_of_gpus_are_looked_up_on_the_nodes_of_the_sweep(capsys):
    arguments = ["sweep=batch_scaling", "trainable.precision=tf32", "backend=inprocess"]
    assert main(arguments) == 2
    assert "trainable.precision=tf32" in capsys.readouterr().err
    assert main([*arguments, "mode=plan"]) == 0
    assert "trainable.precision=tf32" in capsys.readouterr().out
    assert main([*arguments, "mode=plan", "resources.device=cuda"]) != 2  # 1 if this machine has no GPU
    assert "trainable.precision=tf32" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("optimzer=adamw stray", ["'optimzer=adamw'", "'stray'"]),
        ("stray optimzer=adamw", ["'stray'", "'optimzer=adamw'"]),
        ("report.margin=none stray", ["'stray'", "report.margin"]),
        ("rerun=[3fa2, 4bcd]", ["'rerun=[", "'4bcd]'"]),
        ("stray", ["'stray'"]),
        ("mode=delete stray", ["unknown mode 'delete'"]),
        ("mode=delete stray optimzer=adamw", ["'optimzer=adamw'", "unknown mode 'delete'"]),
    ],
)
def test_only_a_wrong_mode_hides_a_stray_word(words, told, capsys):
    assert main(["sweep=batch_scaling", *words.split(" ")]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(errors) == len(told) and all(part in line for part, line in zip(told, errors, strict=True)), errors


def test_sweep_without_a_name_lists_the_choices(capsys):
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sweep=batch_scaling" in line


CONFIG = shipped_config()
AXES = {"gpus": [1], "seed": [0]}


def errors(config, axes=AXES):
    return [*request_errors(config, axes), *axis_errors(config, axes), *setup_errors(config)]


def test_shipped_config_has_no_errors():
    assert errors(CONFIG) == []


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("sweep.baseline", {"seed": 0}, ["'seed'", "gpus"]),
        ("sweep.claims", ["speedup >"], ["'speedup >'"]),
        ("report.metric", "confidence", ["better: higher"]),
        ("strategy", "ddp", []),
        ("trainable._target_", "???", []),
        ("trainable.repetition", {"budget": 2}, ["{'budget': 2}"]),
        ("trainable.probe", "short", ["'short'"]),
        ("trainable._ignores_", "lr_rule", ["'lr_rule'"]),
        ("trainable._check_", "math:nope", ["'math:nope'", "'nope'"]),
        ("trainable._remarks_", "math:nope", ["'math:nope'", "'nope'"]),
        ("trainable._check_", "math:sqrt", ["'math:sqrt'"]),
        ("trainable.width", "???", []),
        ("budget.steps", 5, ["epochs=10", "steps=5"]),
        ("budget.epochs", None, ["none"]),
    ],
)
def test_error_is_one_line_with_key_and_value(key, value, told):
    config = with_value(CONFIG, key, value)
    if key == "strategy":
        config = with_value(config, "trainable.strategy", "own_ranks")
    (line,) = errors(config)
    assert key.removesuffix(".steps").removesuffix(".epochs") in line
    assert all(part in line for part in told)


NAMES = ("data.name", "model.name", "trainable._target_", "trainable._check_", "trainable._remarks_")


@pytest.mark.parametrize("value", ["{a: 1}", "[x]", "[[]]"])
def test_section_or_list_in_place_of_a_name_is_told(value, capsys):
    axes = [f'sweep.axes."{key}"=[{value}]' for key in (*NAMES, "lr_rule")]
    for given in ([f"{key}={value}" for key in NAMES], axes[:-1], axes[-1:]):
        assert main(["sweep=batch_scaling", "backend=inprocess", "mode=plan", *given]) == 2
        told = capsys.readouterr().err
        assert all(key in told for key in (*NAMES, "lr_rule") if key in " ".join(given)), told


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"cluster.address": "auto"}, ["cluster.address"]),
        ({"mode": "report", "format": "json"}, ["format=json"]),
        ({"mode": "watch", "format": "json"}, ["format=json"]),
        ({"sweep.early_stop": "asha"}, ["sweep.early_stop"]),
        ({"tune.storage_path": "s3://bucket"}, ["tune"]),
        ({"sweep.phases": ["probe", "train"], "report.objective": "none"}, ["sweep.phases"]),
    ],
)
def test_keys_that_contradict_one_another_are_an_error(changes, keys):
    config = with_value(CONFIG, "backend", "inprocess")
    for key, value in changes.items():
        config = with_value(config, key, value)
    (line,) = errors(config)
    assert all(key in line for key in keys)


def test_axis_that_changes_no_trial_is_an_error():
    (line,) = axis_errors(CONFIG, {"workers": ["warm", "fresh"]})
    assert "'workers'" in line
    assert not list(axis_errors(CONFIG, {"resources.timing": ["shared"], "warmup_epochs": [0, 5], "model": ["a"]}))


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        (["report.metric=val_loss"], True),
        (["report.metric={name: score, better: higher}"], True),
        (["report.metric=val_accuracy"], False),
        (["report.metric=val_loss", "report.margin=0.02"], False),
        (["report.metric=val_loss", "report.margin=0.01"], False),
    ],
)
def test_margin_of_a_sweep_file_is_not_that_of_another_metric(given, is_refused):
    with initialised():
        lines = list(margin_errors(Composition(["sweep=batch_scaling", *given])))
    assert len(lines) == is_refused and all("report.margin=0.02" in line and "val_accuracy" in line for line in lines)


def test_labels_need_a_cluster(monkeypatch):
    config = with_value(CONFIG, "cluster.labels", {"market-type": "spot"})
    (line,) = errors(config)
    assert "cluster.labels" in line and "cluster.address" in line
    assert not errors(with_value(config, "cluster.address", "auto"))
    assert not errors(config | {"mode": "report"}) and not errors(config | {"mode": "launch"})
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not errors(config)
    assert len(errors(config | {"backend": "inprocess"})) == 1


def test_gpu_type_contradicts_trials_on_cpus():
    config = with_value(CONFIG, "cluster.gpu_type", "H100")
    assert not errors(config)
    on_cpus = with_value(config, "resources.device", "cpu")
    (line,) = errors(on_cpus)
    assert "cluster.gpu_type=H100" in line and "resources.device=cpu" in line
    assert not list(request_errors(on_cpus, {"resources.device": ["cpu", "cuda"]}))


@pytest.mark.parametrize(
    ("axes", "ignored"),
    [
        ({"gpus": "auto", "lr_rule": ["none"], "seed": [0, 1]}, []),
        ({"lr_rule": ["none", "sqrt"]}, ["lr_rule"]),
        ({"model.width": [8, 16], "lr_multiplier": [1, 2], "gpus": [1, 2]}, ["model.width", "lr_multiplier"]),
    ],
)
def test_axes_that_the_trainable_ignores_are_remarked(axes, ignored):
    config = {"trainable": {"_target_": "mine.training:train", "_ignores_": ["lr_rule", "lr_multiplier", "model"]}}
    lines = list(setup_remarks(config, axes))
    assert len(lines) == bool(ignored)
    assert all(f"mine.training ignores {', '.join(ignored)}:" in line for line in lines)


def remarks(capsys, *arguments):
    """Return the remarks of a plan for CPUs."""
    assert main(["sweep=batch_scaling", "resources.device=cpu", *arguments, "mode=plan", "format=json"]) == 0
    return json.loads(capsys.readouterr().out)["remarks"]


@pytest.fixture
def noop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("trainable=noop", "backend=inprocess", "sweep.axes.gpus=[1]", "sweep.axes.seed=[0]", "report.html=false")
    return ["sweep=batch_scaling", "sweep.axes.lr_rule=[none,sqrt]", "sweep.axes.device_batch_size=[32]", *given]


def test_plan_ends_and_run_begins_with_the_remarks(noop, capsys):
    (remark,) = remarks(capsys, *noop[1:])
    assert "lr_rule" in remark
    assert main([*noop, "mode=plan"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"note: {remark}"
    assert main(noop) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"note: {remark}"


def test_each_variant_is_remarked_once(noop, tmp_path, capsys):
    axis = 'sweep.axes."data.root"=[here,there]'
    lines = remarks(capsys, *noop[1:], "trainable=supervised", "data=cifar10", "sweep.axes.lr_rule=[none]", axis)
    assert len(lines) == 2
    assert all(f"{tmp_path}/{place}/" in line for place, line in zip(("here", "there"), lines, strict=True))


@pytest.mark.parametrize(
    ("given", "key", "is_remarked"),
    [
        (["sweep.axes.device_batch_size=[64,128]"], "trainable.reference_batch_size", True),
        (["sweep.axes.device_batch_size=[32,128]"], "trainable.reference_batch_size", False),
        (["sweep.axes.device_batch_size=[64,128]", "report.objective=none"], "trainable.reference_batch_size", False),
        (["budget.steps=300"], "budget.steps=300", True),
        (["budget.steps=300", "sweep.axes.device_batch_size=[32]"], "budget.steps", False),
    ],
)
def test_sweep_over_batches_without_reference_or_equal_work_is_remarked(capsys, given, key, is_remarked):
    assert any(key in line for line in remarks(capsys, "sweep.axes.gpus=[1]", *given)) is is_remarked


@pytest.mark.parametrize(
    ("words", "gpus", "is_remarked"),
    [
        ("true --bs {device_batch_size} --lr {lr} {seed} {epochs}", "[1,2]", True),
        ("true --bs {device_batch_size} --lr {lr} {seed} {epochs}", "[1]", False),
        ("true -n {gpus} --bs {device_batch_size} --lr {lr} {seed} {epochs}", "[1,2]", False),
        ("true --bs {global_batch_size} --lr {lr} {seed} {epochs}", "[1,2]", False),  # as DataParallel takes it
    ],
)
def test_command_without_its_gpus_is_remarked(capsys, words, gpus, is_remarked):
    lines = remarks(capsys, "trainable=command", f"trainable.argv='{words}'", f"sweep.axes.gpus={gpus}")
    assert any(line.startswith("trainable.argv") and "{gpus}" in line for line in lines) is is_remarked


@pytest.mark.parametrize(
    ("trainable", "axis", "copied"),
    [
        ("function", "'optimizer.momentum'=[0.5,0.9]", "'sweep.axes.\"trainable.momentum\"=[0.5,0.9]'"),
        ("function", "optimizer=[sgd,adam]", "trainable.optimizer_name"),
        ("function", "schedule=[constant,cosine]", ""),
        ("noop", "'optimizer.momentum'=[0.5,0.9]", ""),
        ("supervised", "'optimizer.momentum'=[0.5,0.9]", ""),
    ],
)
def test_axis_that_no_trial_receives_is_refused(trainable, axis, copied, capsys):
    given = ["trainable._target_=trainables.noop:train"] if trainable == "function" else []
    axes = ["sweep.axes.gpus=[1]", "sweep.axes.lr_rule=[none]", f"sweep.axes.{axis}"]
    status = main(["sweep=batch_scaling", "mode=plan", f"trainable={trainable}", *given, *axes])
    told = capsys.readouterr().err
    assert (status, copied in told, "does not reach" in told) == (2 if copied else 0, True, bool(copied)), told


@pytest.mark.parametrize(
    ("typed", "errors", "line"),
    [
        (["trian.py", "{batch_size}", "{learning_rate}"], 3, ["train.py", "{device_batch_size}", "{lr}"]),
        (
            ["trian.py", "--cfg=trian.py.yaml", "--bs={bs}", "{lr}"],
            3,
            ["train.py", "--cfg=trian.py.yaml", "--bs={device_batch_size}", "{lr}"],
        ),
        (["train.py", "--lr", "0.1"], 2, ["train.py", "--lr", "{lr}", "--bs", "{device_batch_size}"]),
        (["train.py", "{bs}", "{lr}"], 2, ["train.py", "{device_batch_size}", "{lr}"]),
        (["train.py", "{device_batch_size}", "{lr}"], 1, ["train.py", "{device_batch_size}", "{lr}"]),
    ],
)
def test_a_wrong_command_is_refused_once_with_the_whole_line(typed, errors, line, folder, capsys):
    (folder / "train.py").touch()
    plan = ["sweep=batch_scaling", "mode=plan"]
    assert main([*plan, "--", "python", *typed]) == 2
    *told, last = capsys.readouterr().err.splitlines()
    assert len(told) == errors
    words = shlex.split(last.removeprefix("write python -m orchestrator "))
    assert words[words.index("--") :] == ["--", "python", *line] and main(words) == 0


@pytest.mark.parametrize("sweep", [["sweep=batch_scaling"], []])
@pytest.mark.parametrize(
    ("own", "meant"),
    [
        (["gpus=1,2", "batch_size=32,64"], ["sweep.axes.gpus=[1,2]", "sweep.axes.device_batch_size=[32,64]"]),
        (["nonsense=1"], []),
        (["gpus=1"], ["sweep.axes.gpus=[1]"]),
    ],
)
def test_the_whole_line_has_what_is_meant_by_other_wrong_words(sweep, own, meant, folder, capsys):
    (folder / "train.py").touch()
    assert main([*sweep, *own, "mode=plan", "--", "python", "train.py", "{batch_size}", "{lr}"]) == 2
    *told, last = capsys.readouterr().err.splitlines()
    assert all(any(line.startswith(f"'{word}'") for line in told) for word in own)
    words = shlex.split(last.partition("python -m orchestrator ")[2])
    assert {*meant} <= {*words} and main(words) == 0


@pytest.mark.parametrize("sweep", [["sweep=batch_scaling"], []])
@pytest.mark.parametrize(
    ("own", "meant"),
    [
        ("mode=slurm", ["mode=launch", "launch.target=slurm"]),
        ("mode=slurm time=12h nodes=4", ["mode=launch", "launch.options={time_limit: 12h}", "launch.nodes=4"]),
        ("mode=launch launch.target=slurm time=12h", ["mode=launch", "launch.options={time_limit: 12h}"]),
        ("mode=plan time=12h", ["mode=plan", "time_limit_s=43200"]),
        ("mode=bogus", ["mode=plan"]),
    ],
)
def test_the_whole_line_has_what_unknown_choices_stand_for(sweep, own, meant, folder, capsys):
    (folder / "train.py").touch()
    assert main([*sweep, *own.split(), "--", "python", "train.py"]) == 2
    words = shlex.split(capsys.readouterr().err.splitlines()[-1].partition("python -m orchestrator ")[2])
    assert {*meant} <= {*words} and main(words) == 0


@pytest.mark.parametrize(("rates", "status"), [("lr: 0.3, reference_batch_size: 32", 0), ("lr: 0.1", 2), ("", 2)])
def test_rates_in_a_file_of_the_users_are_given(rates, status, folder, capsys):
    (folder / "sweep").mkdir()
    (folder / "train.py").touch()
    defaults = "defaults: [batch_scaling, {override /trainable: command}, _self_]"
    text = f"# @package _global_\n{defaults}\nsweep: {{name: mine}}\ntrainable: {{{rates}}}\n"
    (folder / "sweep" / "mine.yaml").write_text(text)
    argv = ["python", "train.py", "{device_batch_size}", "{gpus}", "{lr}"]
    asked = ["-cd", ".", "sweep=mine", "mode=plan"]
    assert main([*asked, f"trainable.argv={literal(argv)}"]) == main([*asked, "--", *argv]) == status
    told = capsys.readouterr().err
    assert told.count("the command takes {lr}") == status
    assert (" trainable.lr=0.1 trainable.reference_batch_size=32 -- " in told) is (rates == "")
    axis = 'sweep.axes."trainable.lr"=[0.1,0.2]'
    assert main([*asked, axis, "trainable.reference_batch_size=32", "--", *argv]) == 0


@pytest.mark.parametrize("own", [[], ["mode=init"], ["sweep=batch_scaling", "mode=plan"], ["-cd", "."]])
def test_a_submission_is_refused_with_a_line_that_works(own, folder, capsys):
    (folder / "train.py").touch()
    assert main([*own, "--", "sbatch", "--wait-all-nodes=1", "job.sh"]) == 2
    words = shlex.split(capsys.readouterr().err.partition("python -m orchestrator ")[2])
    assert "mode=launch" in words and main(words) == 0


@pytest.mark.parametrize(
    ("typed", "own", "command"),
    [
        ("train.py", [], "python train.py"),
        ("torchrun --nproc_per_node=2 train.py", [], "torchrun --nproc_per_node={gpus} train.py"),
        ("sweep=batch_scaling python train.py --steps 3", [], "python train.py --steps 3"),
        ("sort train.py mode=plan", ["mode=plan"], "sort train.py"),
        ("-cd . train.py mode=plan", ["-cd", "."], "python train.py"),
        ("gpus=1,2 train.py", ["sweep.axes.gpus=[1,2]"], "python train.py"),
        ("sbatch job.sh", ["mode=launch", "launch.target=slurm"], "torchrun --nproc_per_node={gpus} train.py"),
        ("-cd . -cn mine train.py", ["--config-name=mine"], "python train.py"),
        ("-m train.py", ["-m"], "python train.py"),
        ("sweep.name=mine train.py", ["sweep=batch_scaling", "sweep.name=mine"], "python train.py"),
        ("sweep.exclude=[{gpus:2}] train.py", ["sweep=batch_scaling"], "python train.py"),
        ("sweep.axes.gpus=[1,2] train.py", ["sweep=batch_scaling", "sweep.axes.gpus=[1,2]"], "python train.py"),
        ("sweep.axes.device_batch_size=[8] train.py", ["sweep.axes.device_batch_size=[8]"], "python train.py"),
        ("mode=launch train.py", ["mode=launch", "launch.target=slurm"], "python train.py"),
        ("--budget.epochs=3 python train.py --bs 8", ["budget.epochs=3"], "python train.py --bs {device_batch_size}"),
    ],
)
def test_a_command_without_dashes_is_told_with_them(typed, own, command, folder, monkeypatch, capsys):
    (folder / "train.py").touch()
    (folder / "mine.yaml").write_text("defaults: [config, override sweep: batch_scaling, _self_]\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without torchrun, as where jobs are only submitted
    assert main(typed.split()) == 2
    *told, line = capsys.readouterr().err.splitlines()
    assert all("sweep.axes.gpus=[1,2]" in other for other in told)
    words = shlex.split(line.partition("python -m orchestrator ")[2])
    place = words.index("--")
    assert {*own} <= {*words[:place]} and " ".join(words[place + 1 :]).startswith(command)
    assert main(["mode=plan", *words]) == 0


@pytest.mark.parametrize(
    ("typed", "command"), [("launch train.py", "python"), ("accelerate launch train.py", "accelerate")]
)
def test_modes_begin_no_command(typed, command, folder, capsys):
    (folder / "train.py").touch()
    assert main(typed.split()) == 2
    assert f" -- {command} " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "flags",
    [
        "-cd train.py",
        "trainable.argv=train.py",
        "mode=list",
        "mode=init train.py",
        "init train.py",
        "mode=report results/a.py",
    ],
)
def test_files_of_other_settings_are_no_command(flags, folder, capsys):
    (folder / "results" / "a.py").mkdir(parents=True)
    main(flags.split())
    assert "stands behind" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["qsub", "bsub", "flux batch"])
def test_a_submission_to_another_scheduler_is_refused_with_the_sweeps_command(command, folder, capsys):
    (folder / "train.py").touch()
    assert main(["--", *command.split(), "job.sh"]) == 2
    allocation, line = capsys.readouterr().err.splitlines()
    words = shlex.split(line.partition("python -m orchestrator ")[2])
    assert "qsub -I" in allocation and "launch" not in line and main([*words[:1], "mode=plan", *words[1:]]) == 0


@pytest.mark.parametrize(
    "command", ["sbatch --wait job.sh", "bsub -K job.sh", "qsub -sync y job.sh", "flux run a", "sky launch a"]
)
def test_a_submission_that_waits_is_a_command(command, folder, capsys):
    main(["sweep=batch_scaling", "mode=plan", "--", *command.split()])
    assert "mode=launch" not in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["mode=bogus", "mode=logs", "trainable.lr=abc"])
def test_a_command_without_a_sweep_has_its_other_errors(wrong, folder, capsys):
    (folder / "train.py").touch()
    assert main([wrong, "--", "python", "train.py"]) == 2
    *told, line = capsys.readouterr().err.splitlines()
    assert told and all(wrong.partition("=")[0] in error for error in told) and "mode=bogus" not in line


@pytest.mark.parametrize(
    ("own", "is_passed"), [("", True), ("epochs=3", True), ("steps=20", False), ("budget.seconds=9", False)]
)
def test_the_line_of_a_command_passes_the_epochs_of_its_budget(own, is_passed, folder, capsys):
    (folder / "train.py").write_text("add_argument('--num-epochs')")
    assert main([*own.split(), "mode=plan", "--", "python", "train.py"]) == 2
    words = shlex.split(capsys.readouterr().err.splitlines()[-1].partition("python -m orchestrator ")[2])
    assert ("{epochs}" in words) == is_passed and main(words) == 0


@pytest.mark.parametrize(
    ("typed", "before", "own", "command"),
    [
        ("-- python train.py {epochs} mode=plan", "", ["mode=plan"], "python train.py {epochs} --bs"),
        ("-- python train.py sweep.axes.seed=[0]", "", ["sweep.axes.seed=[0]"], "python train.py --bs"),
        ("-- python train.py mode=fast", "", [], "python train.py mode=fast --bs"),
        ("-- CUDA_VISIBLE_DEVICES=0 python train.py", "CUDA_VISIBLE_DEVICES=0 ", [], "python train.py --bs"),
        ("gpus=auto nodes=2 -- deepspeed train.py", "", ["nodes=2"], "torchrun --nproc_per_node={gpus_per_node}"),
    ],
)
def test_words_at_the_wrong_side_of_a_command_are_moved(typed, before, own, command, folder, capsys):
    (folder / "train.py").touch()
    assert main(typed.split()) == 2
    *_, line = capsys.readouterr().err.splitlines()
    told, _, line = line.partition("python -m orchestrator ")
    words = shlex.split(line)
    place = words.index("--")
    assert told.endswith(f": {before}") and {*own} <= {*words[:place]}
    assert " ".join(words[place + 1 :]).startswith(command)
    if "nodes=2" not in own:
        modes = [] if "mode=plan" in words else ["mode=plan"]
        assert main([*words[:place], *modes, *words[place:]]) == 0


def test_a_submission_has_all_its_corrections_at_once(capsys):
    assert main("sbatch nodes=2".split()) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in ("mode=launch", "launch.nodes=2", "choose a sweep"))


def test_a_command_is_not_forecast_but_run_with_one_seed(folder, capsys):
    (folder / "train.py").touch()
    own = ["sweep=batch_scaling", "mode=forecast", "trainable.lr=0.1", "trainable.reference_batch_size=32"]
    assert main([*own, "--", "python", "train.py", "{device_batch_size}", "{lr}"]) == 1
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("python -m orchestrator "))
    assert "sweep.axes.seed=[0]" in words and main(["mode=plan", *words]) == 0
