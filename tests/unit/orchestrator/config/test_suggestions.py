"""Suggestions for keys that people write from habit: they can be copied, and work."""

import functools
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose

from orchestrator.cli.app import main, without_dashes
from orchestrator.config import synonyms
from orchestrator.config.compose import initialised, parsed_axes
from orchestrator.config.hydra_private import apply_override, error_line
from orchestrator.config.key_checks import axis_value_errors, structure_errors, unread_keys, value_errors
from orchestrator.config.overrides import key_of, rewritten
from orchestrator.config.schema import SCHEMA
from orchestrator.config.search_path import Groups, primary
from orchestrator.config.suggestions import (
    instead_of_choice,
    instead_of_key,
    instead_of_section,
    instead_of_word,
    no_choice,
)
from orchestrator.config.synonyms import Synonyms, Typed, copyable, given_in
from orchestrator.config.yaml_private import resolved
from orchestrator.store import files

TABLES = files.load(Path(synonyms.__file__).with_suffix(".yaml").read_text())


def words_of(entry):
    return (entry if isinstance(entry, str) else entry.get("words", "")).split()


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
    "max_hours=3": "time_limit_s=10800",
    "deadline=01:12:00:00": "sweep.budget.wall_s=129600",
    "deadline=1-12:00:00": "sweep.budget.wall_s=129600",
    "half=true": "trainable.precision=fp16",
    "precision=16-mixed": "trainable.precision=fp16",
    "trainable.precision=bfloat16": "trainable.precision=bf16",
    "trainable.compile=true": "trainable.compile=default",
    "optimizer=SGD": "optimizer=sgd",
    "optim=Nesterov": "optimizer=sgd",
    "network=mlp": "model=mlp",
    "model=small": "model=small_cnn",
    "per_device_train_batch_size=8": "sweep.axes.device_batch_size=[8]",
    "batch-size=64..512": "sweep.axes.device_batch_size=[64,128,256,512]",
    "sweep.axes.device_batch_size=1k": "sweep.axes.device_batch_size=[1024]",
    "num_gpus=1-8": "sweep.axes.gpus=[1,2,4,8]",
    "gpus=all": "sweep.axes.gpus=auto",
    "--gres=gpu:h100:4": "sweep.axes.gpus=[4]",
    "--gpus 1 2 4": "sweep.axes.gpus=[1,2,4]",
    "--format json": "format=json",
    "--no-cuda": "resources.device=cpu",
    "--no-html": "report.html=false",
    "-b 64": "sweep.axes.device_batch_size=[64]",
    "lr=1e-4..1e-2": 'sweep.axes."trainable.lr"=[1e-4,0.001,1e-2]',
    "budget.samples=1M": "budget.samples=1000000",
    "budget.samples=1e6": "budget.samples=1000000",
    "report.html=no": "report.html=false",
    "report.objective=cheapest": "report.objective=cost",
    "Budget.Epochs=3": "budget.epochs=3",
    "currency=EUR": "report.currency=EUR",
    "report.pric=2": "report.price_per_gpu_hour=2",
    "warmup_ratio=0.1": "schedule=cosine",
    "gradient_clip_val=1.0": "trainable.clip_grad_norm=1.0",
    "max_grad_norm=1.0": "trainable.clip_grad_norm=1.0",
    "trainer.max_epochs=5": "budget.epochs=5",
    "gradient_checkpointing=true": "trainable.activation_checkpointing=full",
    "max_failures=2": "retries=2",
    "report_to=tensorboard": "tracker.tensorboard.enabled=true",
    "deepspeed=ds.json": "strategy=fsdp",
    "limit_train_batches=0.5": "budget.epochs=0.5",
    "-p gpu": "launch.options={partition: gpu}",
    "wandb_project=mine": "tracker.wandb.project=mine",
    "batch=32,64": "sweep.axes.device_batch_size=[32,64]",
    "models=mlp,small_cnn": "sweep.axes.model=[mlp,small_cnn]",
    "strategies=ddp,fsdp": "sweep.axes.strategy=[ddp,fsdp]",
    "batchsizes=32,64": "sweep.axes.device_batch_size=[32,64]",
    "lr=0.1,0.2": 'sweep.axes."trainable.lr"=[0.1,0.2]',
    "cost_per_hour=2.5": "report.price_per_gpu_hour=2.5",
    "retry=true": "rerun=failed",
    "gpu=H100": "cluster.gpu_type=H100",
    "margin=0.5%": "report.margin=0.005",
    "+amp=true": "trainable.precision=bf16",
    "+trainable.amp=true": "trainable.precision=bf16",
    "++sweep.budget.hours=1": "sweep.budget.wall_s=3600",
    "wandb.project=mine": "tracker.wandb.project=mine",
    "parameters.lr.values=[0.1,0.2]": 'sweep.axes."trainable.lr"=[0.1,0.2]',
    "parameters.lr={values:[0.1,0.3]}": 'sweep.axes."trainable.lr"=[0.1,0.3]',
    "parameters.lr={min:0.001,max:0.1}": 'sweep.axes."trainable.lr"=[0.001,0.01,0.1]',
    "resources_per_trial={cpu:2}": "resources.cpus_per_worker=2",
    "early_terminate.type=hyperband": "sweep.early_stop=asha",
    "--overwrite-output-dir": "rerun=all",
    "~sweep.axes.sqrt": "sweep.exclude=[{lr_rule: sqrt}]",
    "hydra/launcher=submitit_slurm": "mode=launch",
    "exclude=sqrt": "sweep.exclude=[{lr_rule: sqrt}]",
    "--exclude sqrt": "sweep.exclude=[{lr_rule: sqrt}]",
    "lr_rule!=sqrt": "sweep.exclude=[{lr_rule: sqrt}]",
    "sweep.axes.lr_rule!=none,sqrt": "sweep.exclude=[{lr_rule: [none,sqrt]}]",
    "sweep.axes.lr_rule-=[sqrt]": "sweep.exclude=[{lr_rule: sqrt}]",
    "~sweep.axes.lr_rule=sqrt": "sweep.exclude=[{lr_rule: sqrt}]",
    "~sweep.axes.lr_rule.sqrt": "sweep.exclude=[{lr_rule: sqrt}]",
    "sweep.axes.lr=loguniform(1e-3,1e-1)": 'sweep.axes."trainable.lr"=[1e-3,0.01,1e-1]',
    "lr=tune.loguniform(1e-3,1e-1)": 'sweep.axes."trainable.lr"=[1e-3,0.01,1e-1]',
    "sweep.axes.device_batch_size=choice([32,64])": "sweep.axes.device_batch_size=[32,64]",
    "scheduler=asha": "sweep.early_stop=asha",
    "max_gpus=4": "sweep.axes.gpus=[1,2,4]",
    "max_gpus=1": "sweep.axes.gpus=[1]",
    "metric.name=val_loss": "report.metric=val_loss",
    "run.name=mine": "sweep.name=mine",
    "--no-report": "report.html=false",
    "report=false": "report.html=false",
    "wandb.mode=disabled": "tracker.wandb.enabled=false",
    "warmup=off": "warmup_epochs=0",
    "amp=bf16": "trainable.precision=bf16",
    "val_split=0.2": "trainable.val_fraction=0.2",
    "dashboard=off": "cluster.dashboard=false",
    "sweep.budget.gpu_hours=20h": "sweep.budget.gpu_hours=20",
}


def suggestions(line):
    """Yield the overrides that an error offers."""
    for part in re.split(r"write |did you mean |brackets, |spaces: ", line)[1:]:
        for offered in re.split(r" or ", re.split(r"\?\)|; | \(for |, not of", part)[0]):
            yield from (word for word in shlex.split(re.sub(r" \(.*", "", offered)) if "=" in word)


def suggestion(line):
    """Return the first of the overrides that an error offers."""
    return next(suggestions(line))


def with_each_key_once(overrides):
    """Return one override of each key; the lengths of a budget exclude each other."""
    by_key: dict[str, str] = {}
    for override in overrides:
        by_key.setdefault(re.sub(r"^budget\..*", "budget", key_of(override)), override)
    return list(by_key.values())


ALONE = ("-p gpu", "--no-report", "report=false")
"""Words that have another meaning beside further ones."""


def test_suggestions_can_be_copied(capsys):
    pending = list(WISHES)
    while pending:
        # A composition takes long: each request has as many errors as are told at once, and the others come later.
        wishes = [pending[0]] if pending[0] in ALONE else with_each_key_once(w for w in pending if w not in ALONE)
        assert main(["sweep=batch_scaling", *(word for wish in wishes for word in wish.split(" "))]) == 2
        lines = capsys.readouterr().err.splitlines()
        told = []
        for wish in wishes:
            key = wish.partition("=")[0]
            names = (key, f"unknown {key}", key.removeprefix("sweep.axes."))
            starts = tuple(f"{name}{end}" for name in names for end in (" ", "' ", ":"))
            by_wish = [line for line in lines if repr(wish) in line]
            for line in by_wish or [line for line in lines if line.removeprefix("axis '").startswith(starts)]:
                assert suggestion(line) == WISHES[wish] and len(line) <= 4 * 80
                told.append(wish)
        assert told and len(told) == len({*told})
        pending = [wish for wish in pending if wish not in told]


RUN_AGAIN = {
    "~sweep.axes.lr_scaling": "~sweep.axes.lr_rule",
    "~sweep.axes.sed": "~sweep.axes.seed",
    "rerun=gpus=1": "'rerun={gpus: 1}'",
    "rerun=gpus=1,lr_rule=sqrt": "'rerun={gpus: 1, lr_rule: sqrt}'",
}


@pytest.mark.parametrize(
    "offered", dict.fromkeys([*WISHES.values(), *(text.strip("'") for text in RUN_AGAIN.values())])
)
def test_a_suggestion_composes_alone(offered):
    assert refusals(["sweep=batch_scaling"], offered) == []


@pytest.mark.slow
def test_suggestions_can_be_planned(capsys):
    untried = list(dict.fromkeys(WISHES.values()))
    while untried:
        offered = with_each_key_once(untried)
        # 1: the devices are not here
        assert main(["sweep=batch_scaling", *dict.fromkeys([*offered, "mode=plan"])]) in (0, 1)
        assert "trials" in capsys.readouterr().out
        untried = [override for override in untried if override not in offered]


SAMPLES = {
    "sweep.axes.lr_rule": "sqrt",
    "sweep.baseline": "{gpus: 1}",
    "sweep.name": "mine",
    "report.metric": "val_loss",
    "results_dir": "out",
    "cluster.address": "auto",
    "launch.target": "aws",
    "cluster.gpu_type": "H100",
    "tracker.mlflow.uri": "file:mlruns",
    "model.pretrained": "false",
    "data.root": "data",
    "schedule.warmup": "0.1",
    **{key: next(iter(values)).partition(" ")[0] for key, values in TABLES["values"].items()},
}
"""A value that each key can have, where 3 is none."""

CHOSEN = {
    "model.": ["sweep=lm_scaling"],
    "model.batch_norm": ["sweep=batch_scaling", "model=resnet18"],
    "model.config": ["sweep=lm_scaling", "model=hf", "model.path=none"],
    "model.lora": ["sweep=lm_scaling", "model=hf", "model.path=none"],
    "model.pretrained": ["sweep=lm_scaling", "model=hf", "model.path=none"],
    "data.": ["sweep=batch_scaling", "data=cifar10"],
    "data.size": ["sweep=batch_scaling", "data=imagefolder", "data.path=none"],
    "schedule.": ["sweep=batch_scaling", "schedule=cosine"],
}
"""The choices that have the keys of a group."""


@functools.cache
def composed(*choices):
    return compose(primary(), list(choices))


@functools.cache
def groups():
    with initialised():
        return list(Groups([]).names)


def refusals(choices, *given):
    """Return why a config does not compose or has wrong values; no trial is made. Only choices are composed with."""
    with initialised():
        overrides = rewritten(given)
        own = [override for override in overrides if key_of(override) in groups()]
        whole = composed(*choices, *own).copy()
        for override in overrides:
            if override not in own:
                apply_override(override, whole)
        config = resolved(whole)
    errors = [*structure_errors(config), *unread_keys(config), *value_errors(config, SCHEMA)]
    return [*errors, *axis_value_errors(parsed_axes(config["sweep"]["axes"]))]


def offered_by(target):
    """Return the overrides of this key that are offered in place of the first name that the table has for it."""
    key = target.partition("=")[0]
    name, equals, given = words_of(TABLES["keys"][target])[0].partition("=")
    given = {"n": "3", "TEXT": "H100"}.get(given, given) if equals else SAMPLES.get(key, "3")
    section = key.rpartition(".")[0] if key.startswith(("launch.options", "model.lora", "model.config")) else key
    return [override for override in suggestions(instead_of_key(Typed(name, given))) if section in override]


@pytest.mark.parametrize("begin", CHOSEN)
def test_what_the_names_of_the_table_offer_composes(begin):
    offered = []
    for target in (target for target, entry in TABLES["keys"].items() if words_of(entry)):
        if max((start for start in CHOSEN if target.startswith(start)), key=len, default="data.") == begin:
            assert offered_by(target), target
            offered += offered_by(target)
    # Each alone: one may hide what another one lacks.
    assert offered and {line: refusals(CHOSEN[begin], line) for line in offered} == dict.fromkeys(offered, [])


def test_values_of_the_table_compose():
    targets = [(key, value) for key, values in TABLES["values"].items() for value in values]
    offered = [copyable(*target).replace("'", "").split(" ") for target in targets]
    assert len(offered) > 30
    assert [refusals(["sweep=batch_scaling"], *overrides) for overrides in offered] == [[]] * len(offered)


@pytest.mark.parametrize("action", [entry["do"] for entry in TABLES["actions"] if "write " in entry["do"]])
def test_what_an_action_offers_composes(action):
    offered = re.split(
        r"; | for | with | of | \(or|, and",
        Synonyms(actions={"x": action}).action("x", Typed("x", "1")).partition("write ")[2],
    )[0].replace("METRIC", "x")
    assert refusals(["sweep=batch_scaling"], *(word for word in shlex.split(offered) if "=" in word)) == []


def test_no_word_has_both_an_override_and_an_action():
    tables = Synonyms.read()
    words = [{word for word in table if not word.startswith("~")} for table in (tables.replacements, tables.actions)]
    assert words[0].isdisjoint(words[1])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        *(
            (word, ["CUDA_VISIBLE_DEVICES=0,1", "'sweep.axes.gpus=[1,2]'"])
            for word in (
                "devices=[0,1]",
                "gpu_ids=0,1",
                "gpus=0,1",
                "resources.gpu_ids=[0,1]",
                "sweep.axes.gpu_ids=[0,1]",
            )
        ),
        *(
            (word, ["CUDA_VISIBLE_DEVICES=1", "'sweep.axes.gpus=[1]'"])
            for word in ("device=cuda:1", "CUDA_VISIBLE_DEVICES=1")
        ),
        ("metric.goal=minimize", ["report.metric={name: METRIC, better: lower}"]),
        ("gpu_memory=40GB", ["mode=forecast"]),
        ("tracker=off", ["by default"]),
    ],
)
def test_words_with_two_meanings_have_the_likely_one(word, told):
    with given_in([word]):
        assert all(part in instead_of_key(Typed(*word.split("="))) for part in told)


@pytest.mark.parametrize(
    ("name", "key"),
    [("val_acc", "trainable.metrics.val_accuracy"), *((name, f"+trainable.metrics.{name}") for name in ("f1", "dice"))],
)
def test_a_metric_that_a_command_prints_has_its_whole_line(name, key, capsys):
    own = ["sweep=batch_scaling", "mode=plan", "trainable.lr=0.1", "trainable.reference_batch_size=32"]
    command = ["--", "true", "{device_batch_size}", "{lr}"]
    assert main([*own, f"trainable.metrics.{name}='{name} is ([0-9.]+)'", *command]) == 2
    line = capsys.readouterr().err.strip()
    (override,) = shlex.split(line.partition("write ")[2])
    assert override.startswith(f"{key}=") and main([*own, "warmup_epochs=0", override, *command]) == 0


CELL = "{gpus: 1, device_batch_size: 128, lr_rule: sqrt}"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("sweep.exclude=sqrt", "'sweep.exclude=[{lr_rule: sqrt}]'"),
        ("sweep.exclude=[sqrt]", "'sweep.exclude=[{lr_rule: sqrt}]'"),
        ("sweep.exclude={lr_rule: sqrt}", "'sweep.exclude=[{lr_rule: sqrt}]'"),
        ("sweep.skip={gpus: 2, lr_rule: sqrt}", "'sweep.exclude=[{gpus: 2, lr_rule: sqrt}]'"),
        ("sweep=/home/me/my/sweep/mine.yaml", "-cd /home/me/my sweep=mine"),
        ("config=/home/me/my/sweep/mine.yaml", "-cd /home/me/my sweep=mine"),
        ("--config mine.yaml", "-cd my sweep=mine"),
        ("mine.yaml", "-cd my sweep=mine"),
        ("only=gpus=1,lr_rule=linear", "'sweep.axes.gpus=[1]' 'sweep.axes.lr_rule=[linear]'"),
        ("mode=slurm", "mode=launch launch.target=slurm"),
        ("report.price_per_gpu_hour=2.5€", "report.price_per_gpu_hour=2.5 (of one GPU)"),
        ("target=slurm", "launch.target=slurm"),
        ("price=3€", "report.price_per_gpu_hour=3 (of one GPU)"),
        ("budget=50€", "sweep.budget.cost=50 report.price_per_gpu_hour=PRICE (the most that the sweep may cost)"),
        ("mode=k8s", "mode=launch launch.target=kuberay"),
        ("-m sweep.axes.gpus=1,2", "'sweep.axes.gpus=[1,2]'"),
        ("-m gpus=1,2 schedule=cosine,constant", "'sweep.axes.gpus=[1,2]'"),
        ("exclude=1x128-sqrt", f"'sweep.exclude=[{CELL}]'"),
        ("sweep.exclude=1×128 sqrt", f"'sweep.exclude=[{CELL}]'"),
        ("verbose", "verbose=true"),
        ("goal=fastest", "report.objective=time"),
        ("optimize=cost", "report.objective=cost"),
        ("baseline=1x128-sqrt", f"'sweep.baseline={CELL}'"),
        ("sweep.baseline=1x128 sqrt", f"'sweep.baseline={CELL}'"),
        ("sweep.baseline=1×128 sqrt", f"'sweep.baseline={CELL}'"),
        ("-m sweep.axes.seed=range(0,3)", "\"sweep.axes.seed='range(0,3)'\""),
        *RUN_AGAIN.items(),
        ("mode=compare results/a results/b", "mode=compare results_dir=results/a compare.with=results/b"),
        ("mode=compare results/b", "mode=compare compare.with=results/b"),
        ("mode=status results/a", "mode=status results_dir=results/a"),
        ("model=timm/vit_b", "model.name=timm:create_model +model.model_name=vit_b 'trusted_modules=[timm]'"),
    ],
)
def test_the_line_to_type_ends_the_error(given, line, capsys):
    words = given.split(" ") if given.startswith(("-", "mode=")) else [given]
    assert main([*([] if "mode=" in given else ["sweep=batch_scaling", "mode=plan"]), *words]) == 2
    assert capsys.readouterr().err.strip().endswith(f"write {line}")


@pytest.mark.parametrize(
    ("side", "label", "cell"),
    [
        ("device", "2x64", "{gpus: 2, device_batch_size: 64}"),
        ("device", "2x64-sqrt", "{gpus: 2, device_batch_size: 64, lr_rule: sqrt}"),
        ("device", "2x512", "unknown device_batch_size '512'; valid: 64, 128"),
        ("device", "8x64", "unknown gpus '8'; valid: 1, 2"),
        ("global", "2x64", "{gpus: 2, global_batch_size: 128}"),
        ("global", "2x128", "unknown global_batch_size '256'; valid: 64, 128"),
    ],
)
@pytest.mark.parametrize("key", ["exclude", "baseline", "sweep.exclude", "sweep.baseline"])
def test_a_label_stands_for_a_cell_of_this_sweep(key, side, label, cell, capsys):
    asked = ["sweep=batch_scaling", "trainable=noop", "mode=plan", "sweep.axes.gpus=[1,2]"]
    asked += [f"sweep.axes.{side}_batch_size=[64,128]"]
    assert main([*asked, f"{key}={label}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    if cell.startswith("unknown"):
        assert line.endswith(f": {cell}")
        return
    (written,) = shlex.split(line.partition(": write ")[2])
    assert cell in written and main([*asked, written]) == 0


def test_only_cells_are_named_by_labels(capsys):
    asked = ["sweep=batch_scaling", "trainable=noop", "mode=plan"]
    assert main([*asked, "cluster.labels=2x64"]) == 2
    assert "gpus" not in capsys.readouterr().err
    asked += ["sweep.axes.global_batch_size=[128,256]"]
    assert main([*asked, "only=2x64"]) == 2
    written = shlex.split(capsys.readouterr().err.partition(": write ")[2])
    assert main([*asked, *written]) == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("$lr ${seed} %gpus% {{lr_rule}} <epochs>", ["lr", "seed", "gpus", "lr_rule", "epochs"]),
        ("bash -c $lr_${seed}_$HOME", ["seed"]),
        ("$HOME %x% {{x}} run-{{seed}} {{{lr}}} ${{lr}} d$lr", []),
    ],
)
def test_names_in_other_braces_are_refused(words, names, capsys):
    command = ["--", "python", *words.split(" "), "{gpus}", "{device_batch_size}", "{lr}", "{lr_rule}"]
    rates = ["trainable.lr=1", "trainable.reference_batch_size=32"]
    main(["sweep=batch_scaling", "mode=plan", *rates, *command])
    assert re.findall(r"in place of \S+: write \{(\w+)\}", capsys.readouterr().err) == names


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (["sweep=batch_scaling", "sweep.axes.batch=[8]", "sweep.axes.devices=[1]"], 2),  # axes, all at once
        (["describe", "trial", "12ab"], 1),  # one of several words says what was meant
        (["foo", "bar"], 2),
        (["sweep=batch_scaling", 'sweep.axes."trainable.lr"={a: 1}'], 1),
        (["sweep=batch_scaling", "trainable=[{a: [1]}]"], 1),
        (["sweep=batch_scaling", "mode=plan", "cluster.gpu_type=[null]"], 1),
        (["sweep=batch_scaling", "mode=[plan]"], 1),
    ],
)
def test_each_error_is_one_line(given, lines, capsys):
    assert main(given) == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_a_glob_of_choices_is_several_sweeps(capsys):
    folders = "results_dir=results/${hydra:job.num}"
    assert main(["-m", "sweep=batch_scaling", "mode=plan", "schedule=glob(co*)", folders]) == 0
    assert capsys.readouterr().out.count("trials to run") == 2


def test_values_of_a_multirun_are_offered_as_an_axis(capsys):
    assert main(["-m", "sweep=batch_scaling", "optimizer.lr=0.1,0.01"]) == 2
    assert "'sweep.axes.\"optimizer.lr\"=[0.1,0.01]'" in capsys.readouterr().err


@pytest.mark.parametrize("wish", ["b=/tmp/x", "+resume=x", "+amp=maybe"])
def test_a_suggestion_that_does_not_work_is_not_made(wish, capsys):
    assert main(["sweep=batch_scaling", "mode=plan", *wish.split(" ")]) == 2
    assert not list(suggestions(capsys.readouterr().err))


READ = {
    "+mine=0.3 trainable.lr=${mine}": True,
    "+mine=0.3": False,
    "+model.foo=1": False,
    "+trainable.depth=3": False,
    "+trainable.depth=3 trainable=function trainable._target_=mine:train": True,
    "+mine.depth=3 trainable=function trainable._target_=mine:train": True,
    "+trainable.a=3 -- python -c x {trainable.a} {gpus} {device_batch_size} {lr} {lr_rule}": True,
    "+trainable.a=3 -- python -c x {gpus} {device_batch_size} {lr} {lr_rule}": False,
}


@pytest.mark.parametrize("line", READ)
def test_a_key_that_nothing_reads_is_refused(line, capsys):
    rates = ["trainable.lr=1", "trainable.reference_batch_size=32"] * (" -- " in line)
    main(["sweep=batch_scaling", "mode=plan", *rates, *line.split(" ")])
    assert ("there is no key" in capsys.readouterr().err) is not READ[line]


def test_a_key_and_its_value_have_one_suggestion_or_none():
    assert instead_of_key(Typed("colour", "x")) == instead_of_key(Typed("mode", "colour")) == ""
    assert all("again" in instead_of_key(Typed("resume", value)) for value in ("true", "results/a"))
    assert instead_of_key(Typed("gpus", "auto")) == "write sweep.axes.gpus=auto"
    assert instead_of_key(Typed("gpus", "[1,2]")) == "write 'sweep.axes.gpus=[1,2]'"
    assert instead_of_key(Typed("launch.partition", "gpu")) == "write 'launch.options={partition: gpu}'"


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("json", "write format=json"),
        ("compare", "write mode=compare"),
        ("gpus", "write 'sweep.axes.gpus=[…]'"),
        ("epochs", "write budget.epochs=…"),
        ("colour", ""),
    ],
)
def test_a_word_is_a_flag_a_mode_or_a_key(word, written):
    assert instead_of_word(word) == written


@pytest.mark.parametrize(
    ("section", "value", "written"),
    [
        ("budget", "2h", ["budget.seconds=7200", "sweep.budget.wall_s=7200"]),
        ("sweep.budget", "2h", ["sweep.budget.wall_s=7200"]),
        ("tracker", "mlflow", ["tracker.mlflow.enabled=true"]),
        ("cluster", "h100", []),
        ("cluster", "slurm", ["launch.target=slurm", "mode=launch"]),
    ],
)
def test_a_value_of_a_section_names_the_keys_that_take_it(section, value, written):
    text = instead_of_section(section, value)
    assert sorted(re.findall(r"[a-z_.]+=[a-z0-9]+", text)) == written


@pytest.mark.parametrize("flags", [["-m"], ["-cd", "my"], ["-cdmy"], ["--cfg", "job"], ["--conf", "x"], ["-h"]])
def test_flags_are_no_keys(flags):
    assert without_dashes(flags) == (flags, {})


def test_an_unknown_letter_names_the_help(capsys):
    assert main(["sweep=batch_scaling", "-z", "2"]) == 2
    assert "--help" in capsys.readouterr().err


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_tracker_names_its_extra_at_once(is_installed, monkeypatch):
    monkeypatch.setattr(synonyms, "find_spec", lambda name: object() if is_installed else None)
    written = instead_of_key(Typed("mlflow", "true"))
    assert written.startswith("write tracker.mlflow.enabled=true")
    assert ("pip install 'sweep-orchestrator[mlflow]'" in written) is not is_installed


def test_a_prediction_is_a_forecast_of_more_gpus():
    command = "write mode=forecast 'forecast.gpus=[8,16]'"
    offered = [instead_of_key(Typed("predict.gpus", "[8]")), instead_of_key(Typed("mode", "predict"))]
    assert {*offered, instead_of_choice(Typed("mode", "predict"))} == {command}


@pytest.mark.parametrize("key", ["gpu", "device", "gpu_type", "gpus"])
def test_a_gpu_that_is_not_here_is_forecast_from_shapes(key):
    with given_in(["mode=forecast"]):
        assert instead_of_key(Typed(key, "H100")).startswith("write forecast.device=H100")
    assert "forecast" not in instead_of_key(Typed(key, "H100"))


def test_a_limit_of_trials_names_the_keys_that_have_one():
    assert {"sweep.axes", "sweep.budget.gpu_hours"} <= {
        *re.findall(r"[a-z_.]+[a-z_]", instead_of_key(Typed("max_trials", "10")))
    }


@pytest.mark.parametrize("mode", ["show", "logs", "stop", "clean", "runn"])
def test_mode_that_does_not_exist_is_told_before_the_missing_sweep(mode, capsys):
    assert main([f"mode={mode}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"unknown mode {mode!r}" in line and "choose a sweep" not in line


@pytest.mark.parametrize(
    "error", [ValueError("x " * 10_000), RecursionError("maximum recursion depth exceeded, full_key: " + "[0]" * 900)]
)
def test_what_hydra_says_is_one_short_line(error):
    assert len(error_line(error)) < 1100 and "[0]" not in error_line(error)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["metric=val_loss", "direction=minimize"], ["{name: val_loss, better: lower}"]),
        (["max_cost=20"], ["sweep.budget.cost=20 report.price_per_gpu_hour=PRICE"]),
        (["metric.name=val_loss", "metric.goal=minimize", "a.best=max"], ["{name: val_loss, better: lower}'\n"]),
        (["mode=max", "greater_is_better=False"], ["METRIC, better: higher}'\n", "METRIC, better: lower}'\n"]),
        (["higher_is_better=no"], ["better: lower}'\n"]),
        (["metric_mode=max"], ["better: higher}'\n"]),
        (["direction=x", "a.b=min"], ["better: higher}' (or lower)\n"]),
        (["mode=clean", "results_dir=/x"], ["rm -r /x/batch_scaling"]),
        (["settle.max_seeds=4"], ["'sweep.axes.seed=[0,1,2,3]'"]),
        (["mode=launch", "launch.gpus=4"], ["cluster.gpus_per_node=4"]),
        (["mode=attach"], ["mode=watch"]),
        (["mode=clean", "study.sweep=abc", "x.results_dir=y"], ["rm -r results/batch_scaling"]),
        (["only=2x32-sqrt"], ["sweep.axes.gpus=[2]", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[sqrt]"]),
        (["cost.gpu_hour=3.5"], ["report.price_per_gpu_hour=3.5"]),
        (["sweep.axes.momentum=[0.8,0.9]"], ["'sweep.axes.\"optimizer.momentum\"=[0.8,0.9]'"]),
        (["mode=compare", "a", "b"], ["results_dir=a compare.with=b"]),
        (["program=mine.py"], ["-- python mine.py"]),
        (["model.pretrained=true"], ["model=hf model.path=FOLDER model.pretrained=true\n"]),
        (["model.num_classes=100"], ["leave it out"]),
    ],
)
def test_what_the_user_wrote_is_in_the_line_to_type(arguments, parts, capsys):
    assert main(["sweep=batch_scaling", *arguments]) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in parts)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("mode=delete results_dir=results/kept", "rm -r results/kept,"),
        ("mode=delete results_dir=results/kept/", "rm -r results/kept,"),
        ("mode=cost results_dir=results/kept", "write mode=report"),
        ("mode=cost results_dir=results", "write mode=forecast"),
    ],
)
def test_a_folder_of_results_is_in_the_line_to_type(words, part, folder, capsys):
    (folder / "results" / "kept").mkdir(parents=True)
    (folder / "results" / "kept" / "journal.jsonl").touch()
    assert main(words.split()) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize("text", ["loss ({a|b})", "{val|test}", "{x.results_dir|results}", "{results_dir}"])
def test_braces_of_the_user_are_not_filled(text):
    with given_in(["results_dir=/x", "a=1", "val=2"]):
        assert text in no_choice("sweep", text, ["mine"])


@pytest.mark.parametrize(
    ("defaults", "rest", "wrong"),
    [
        (("model: resnet19", "data: digit"), "epochs: 3\nreport: {margn: 1}", ("resnet19", "digit", "epochs", "margn")),
        ((), "model: resnet19\nreport: 5\ndata: digit", ("resnet19", "digit", "report")),
        ((), "optimizer: adamm\nepochs: 3\nbudget: {epochs: 3x}", ("/optimizer: adam]", "epochs", "3x")),
    ],
)
def test_all_errors_of_a_sweep_file_are_reported_at_once(defaults, rest, wrong, tmp_path, capsys):
    (tmp_path / "sweep").mkdir()
    listed = "".join(f"  - override /{choice}\n" for choice in defaults)
    axes = "gpus: [1], device_batch_size: [32], lr_rule: [none], seed: [0]"
    text = f"# @package _global_\ndefaults:\n  - _self_\n{listed}sweep: {{name: own, axes: {{{axes}}}}}\n{rest}\n"
    (tmp_path / "sweep" / "own.yaml").write_text(text)
    assert main(["-cd", str(tmp_path), "sweep=own", "mode=plan"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(wrong) and all(any(word in line for line in lines) for word in wrong)
