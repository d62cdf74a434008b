import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.trainables.ranks import rendezvous
from trainables import process_group
from trainables.context import Context
from trainables.inputs.feed import Form, Part, Split
from trainables.step.precision import PRECISIONS
from trainables.step.shares import Replicas
from trainables.supervised.evaluation import Evaluation
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.workload import Workload

FORM = Form(device="cpu", dtype=torch.float64, channels_last=False, mean=(0.5,), std=(0.5,))


def material(count, *, dense):
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=source)
    targets = torch.randint(0, 3, (count, 4, 4) if dense else (count,), generator=source)
    head = nn.Conv2d(1, 3, 1) if dense else nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, generator=source)
    return head.double(), images, targets


def evaluation(images, targets, *, rank_group=None, **other):
    part = Part(images=images, targets=targets)
    workload = Workload(
        split=Split(train=part, validation=part, test=part),
        form=FORM,
        precision=PRECISIONS["fp64"],
        input_shape=(1, 4, 4),
        num_classes=3,
    )
    settings = TrainingSettings(**{"eval_batch_size": 2} | other)
    alone = Context.alone()
    return Evaluation(part, workload, settings, Replicas.of(alone, rank_group or process_group.join(alone)))


def score(rank, world_size, meet, count, dense):
    rank_group = process_group.join(Context.alone(rank=rank, world_size=world_size, rendezvous=meet, gang_id=f"{meet}"))
    model, images, targets = material(count, dense=dense)
    return evaluation(images, targets, rank_group=rank_group).score(model)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("count", [1, 7, 13])
def test_every_sample_counts_once_for_any_ranks(pair, count, dense):
    model, images, targets = material(count, dense=dense)
    outputs = model((images.double() / 255 - 0.5) / 0.5)
    accuracy = (outputs.argmax(1) == targets).double().mean().item()
    loss = F.cross_entropy(outputs, targets).item()
    meet = rendezvous()
    alone = score(0, 1, None, count, dense)
    two = pair.call(score, *((rank, 2, meet, count, dense) for rank in range(2)))
    for scored in (alone, *two):
        assert scored.accuracy == pytest.approx(accuracy, abs=1e-12)
        assert scored.loss == pytest.approx(loss, abs=1e-10)


def test_hooks_are_called_and_the_training_mode_stays():
    model, images, targets = material(5, dense=False)
    seen: list[int] = []
    modes: set[tuple[bool, bool]] = set()
    model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    model.register_forward_pre_hook(lambda *_: modes.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled())))
    evaluation(images, targets).score(model)
    assert seen == [2, 2, 1] and model.training
    assert modes == {(False, False)}


@pytest.mark.parametrize("dense", [False, True])
def test_mirrored_evaluation_averages_both_views(dense):
    model, images, targets = material(9, dense=dense)
    views = [model(FORM.normalise(view[:, 0, :, :, None])) for view in (images, images.flip(-1))]
    outputs = (views[0] + (views[1].flip(-1) if dense else views[1])) / 2
    scored = evaluation(images, targets, eval_batch_size=4, eval_mirrored=True).score(model)
    assert scored.loss == pytest.approx(F.cross_entropy(outputs, targets).item(), abs=1e-10)


def test_batch_is_halved_until_it_fits_and_stays_so():
    model, images, targets = material(5, dense=False)
    tried: list[int] = []

    def take(module, given):
        tried.append(len(given[0]))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.register_forward_pre_hook(take)
    shrinking = evaluation(images, targets, eval_batch_size=1024, micro_batch="auto")
    shrinking.score(model)
    assert tried == [5, 2, 2, 1]
    shrinking.score(model)
    assert tried[4:] == [2, 2, 1] and model.training


def test_oom_if_one_sample_does_not_fit_or_without_shrinking():
    model, images, targets = material(5, dense=False)
    tried: list[int] = []

    def take(module, given):
        tried.append(len(given[0]))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    model.register_forward_pre_hook(take)
    for micro_batch, seen in (("auto", [4, 2, 1]), ("off", [4])):
        tried.clear()
        with pytest.raises(torch.OutOfMemoryError):
            evaluation(images, targets, eval_batch_size=4, micro_batch=micro_batch).score(model)
        assert tried == seen
