# mypy: ignore-errors
"""Changes to PyTorch by which the training in this process notices its steps, batches, evaluations and checkpoints."""

from __future__ import annotations

import sweep_training


def noted(owner, name, before=None, after=None):
    """Have each call of a function noted: `before` gets its arguments, and `after` its result and its arguments."""
    function = getattr(owner, name)

    def called(*args, **kwargs):
        if before is not None:
            before(*args, **kwargs)
        result = function(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    setattr(owner, name, called)


def watch_optimizers(module):
    """Have each optimizer counted, and each of its steps."""

    def count(*args, **kwargs):
        sweep_training.TRAINING.counts.optimizers += 1

    noted(module.Optimizer, "__init__", before=count)
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: sweep_training.TRAINING.step(optimizer))


def watch_loaders(module):
    """Have the samples of each batch counted: its indices, or its rows if the data set has none."""

    def count(batch, iterator):
        waiting = getattr(iterator, "sweep_indices", None)
        sweep_training.TRAINING.batch(iterator, batch, waiting.pop(0) if waiting else None)

    # Workers fetch ahead, so that the numbers of indices wait for their batches.
    def keep(index, iterator):
        if isinstance(index, list) and None not in index:
            iterator.__dict__.setdefault("sweep_indices", []).append(len(index))

    # An iterator that workers keep alive is reset for each epoch.
    def begin_again(iterator, loader, first_iter=False):
        iterator.__dict__.pop("sweep_indices", None)
        if not first_iter:
            sweep_training.TRAINING.begin(iterator)

    iterator = module._BaseDataLoaderIter
    noted(iterator, "__init__", before=lambda iterator, loader: sweep_training.TRAINING.begin(iterator))
    noted(iterator, "__next__", after=count)
    noted(iterator, "_next_index", after=keep)
    noted(iterator, "_reset", before=begin_again)


def watch_modes(module):
    """Have evaluations noticed. `train` stays as it is: many programs call it in each step, and it calls all layers."""

    def begin(module):
        if module._modules:  # not a single layer
            sweep_training.TRAINING.evaluation(module)

    noted(module.Module, "eval", before=begin)


def watch_gradients(module):
    """Have passes without gradients noticed, in which a model may be evaluated without being set to evaluate."""

    def await_forward(*args):
        training = sweep_training.TRAINING
        if training.counts.whole.steps and not training.stopwatch.is_paused and not training.is_marked:
            training.await_forward()

    for context in (module.no_grad, module.inference_mode):
        noted(context, "__enter__", after=await_forward)
        noted(context, "__exit__", before=lambda *args: sweep_training.TRAINING.forget_forward())


def watch_checkpoints(module):
    """Have checkpoints noticed."""

    def begin(*args, **kwargs):
        sweep_training.TRAINING.pause()
        sweep_training.TRAINING.note_saved(args[1] if len(args) > 1 else kwargs.get("f"))

    noted(module, "save", before=begin)
