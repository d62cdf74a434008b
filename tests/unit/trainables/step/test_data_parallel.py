import pytest
import torch
from torch import nn

from sweeps.layout import Layout
from tests.unit.trainables.ranks import CONFIG, request, run, supervised_trial
from trainables.context import Context
from trainables.step import strategies

EXACT = {"trainable": CONFIG["trainable"] | {"precision": "fp64"}}


def test_data_parallel_refuses_compiled_models():
    model = nn.Linear(2, 2)
    model.compile()
    with pytest.raises(ValueError, match="trainable.compile=off"):
        strategies.prepare(model, Context.alone(device="cuda:0", layout=Layout(strategy="data_parallel")))


@pytest.mark.parametrize(("gpus", "remarks"), [(1, []), (2, [strategies.COPIES_THE_MODEL])])
def test_several_gpus_add_a_remark(gpus, remarks):
    layout = Layout(strategy="data_parallel", replicas=gpus)
    context = Context.alone(device="cuda:0", layout=layout, gpus_per_rank=gpus)
    prepared = strategies.prepare(nn.Linear(2, 2), context)
    assert context.remarks == remarks
    assert prepared.loss_scale == 1 / 32 and prepared.uncapturable


def parameters(**asked):
    told = request(config=EXACT, device="cuda", **asked)
    torch.manual_seed(1)
    trial = supervised_trial(told)
    trial.train()
    return torch.cat([parameter.detach().flatten().cpu() for parameter in trial.replica.model.parameters()])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's own threads, without a context
def test_two_gpus_match_one():
    both = parameters(strategy="data_parallel", gpus_per_rank=2, shares=(97,))
    torch.testing.assert_close(both, parameters(gpus_per_rank=1, shares=(97,)), atol=1e-10, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's own threads, without a context
def test_trial_on_two_gpus_has_a_remark():
    answer = run(request(strategy="data_parallel", device="cuda", gpus_per_rank=2))
    assert (answer["status"], answer["note"]) == ("ok", strategies.COPIES_THE_MODEL)
