"""The wording of errors and plans, pinned in golden files; what they say is tested with the code that says it."""

import shlex

import pytest

from orchestrator.cli.app import main
from orchestrator.plan import printout
from tests.unit.orchestrator.plan.planned import TRIALS, ended, plan

REQUESTS = {
    # Many wrong values at once: all are reported.
    "values": """
mode=plam retries=-1 hang_s=0 equal_failures=1 verbose=no rerun=al sweep.name=../up sweep.scaling=wek \
    sweep.phases=[train] sweep.early_stop=asher sweep.early_stop_after=1 sweep.budget.wall_s=-1 results_dir= \
    local_results_dir=s3://bucket cluster.wait_s=long cluster.gpu_type=[] cluster.dashboard=no nodes=0 \
    resources.cpus_per_worker=1.5 report.price_per_gpu_hour=cheap report.objective=speed budget.epochs=ten \
    budget.seconds=inf tracker.mlflow.enabled=maybe tracker.wandb.mode=offlin launch.target=slrm optimizer.momentum=2 \
    optimizer.nesterov=1 data.augment=5 model.width=0 trainable._target_=a.b.train
sweep.baseline=gpus:1 sweep.exclude=[gpus] sweep.zip=null sweep.axes=3 cluster.labels=null resources=null \
    forecast.bandwidth_gb_s=0
sweep.name=. sweep.exclude=null sweep.zip=[gpus] grad_accum_steps=0 warmup_epochs=-1 report.margin=null \
    'tune.callbacks=[{name: x}]' launch.nodes=0 'launch.setup=module load'
retries=-1 resources=null
sweep.axes.gpus=[3] budget.epochs=0 report.objective=speed
""",
    "axes": """
sweep.axes.gpus=[all,0] sweep.axes.device_batch_size=[0,32] sweep.axes.lr_rule=[linaer] \
    sweep.axes.lr_multiplier=[-1] sweep.axes.seed=[a]
sweep.axes.seed=[0,0] sweep.axes.gpus=[] sweep.axes.workers=[warm,fresh] 'sweep.baseline={gpu: 1}' \
    'sweep.exclude=[{gpu: 1}]'
"sweep.axes.seed='[1,'" "sweep.axes.gpus='[2,'"
'sweep.axes."optimizer.momentumm"=[1]'
'sweep.axes."resources.timing"=[fast]'
sweep.axes.model=[mpl]
'sweep.baseline={lr_rule: lnear}'
sweep.axes.gpus=[1] "sweep.axes.seed='range(0,1000000000000)'"
lr=3 sweep.axes.lr_rule=[nope]
""",
    "composition": """
swep=x modle=mlp gpus=2 epochs=3 lr=0.1 batch_size=64 report.colour=x report.margn=1 trainable.depth=3 \
    batch_scaling train.py 64] report.margin=.1,.2 sweep.axes.gpus=1,2 sweep.axes.seed=range(0,3) \
    cluster.labels={spot} '+trainable.argv=python train.py --bs {gpus}'
sweep=mine
sweep
scale=small schedule=null trainable=train.py model=small_cn data=imagenet
trainable=mine.train:fit model=mine:Net
trainable=null
model=mlp,small_cnn
sweep.axes.gpus=[1,2
'sweep.axes.gpus = [1]'
trainable=command "trainable.argv=a 'b' {gpus}"
hydra.job.chdir=true
data=npz data.path=none.npz model.name=resnet20 optimizer.name=sdg
trainable=function data=npz model=torchvision
""",
    "rules": """
sweep.search=tune
plan.format=json
sweep.budget.cost=5
results_dir=ftp://host/path
'cluster.labels={spot: yes}'
"sweep.claims=[{sentence: s, expression: 'speedup(gpu=2) > 1'}]"
trainable._target_=os:system
modle=mlp retries=-1 sweep.axes.seed=[a] sweep.axes.gpus=1,2
-cd nope
--config-name=mine
--config-path=mine
--batch-size 32
mode=init init.kind=comand
mode=launch
""",
}
"""Wrong requests for `sweep=batch_scaling mode=plan`, one a line, by golden file."""


@pytest.mark.parametrize("name", REQUESTS)
def test_errors(name, golden, capsys, folder):
    lines = []
    for given in map(shlex.split, REQUESTS[name].strip().splitlines()):
        mode = () if any(word.startswith("mode=") for word in given) else ("mode=plan",)
        arguments = [*(() if given == ["sweep=mine"] else ("sweep=batch_scaling",)), *given, *mode]
        status = main(arguments)
        out, err = capsys.readouterr()
        assert (status, out) == (2, ""), given
        lines += [*(f"$ {word}" for word in given), *err.splitlines(), ""]
    assert not list(folder.iterdir())
    golden(f"requests/{name}.txt", "\n".join(lines))


def test_plan(golden):
    first = next(trial for trial in TRIALS if trial.gpus == 1)
    nothing_yet = printout.as_text(plan(), None, ["a remark"])
    some_ended = printout.as_text(plan(ended(first, wall_s=7200)), 1.5)
    golden("plan/plan.txt", f"{nothing_yet}\n\n{some_ended}\n")
    golden("plan/plan.json", printout.as_json(plan(ended(first, wall_s=7200)), 1.5, ["a remark"]) + "\n")
