# mypy: ignore-errors
"""Changes to PyTorch by which the training in this process notices its steps, batches, evaluations and checkpoints."""

from __future__ import annotations

import sweep_training


def watch_optimizers(module):
    """Have each optimizer counted, and each of its steps."""
    begin = module.Optimizer.__init__

    def begin_counted(self, *args, **kwargs):
        sweep_training.TRAINING.counts.optimizers += 1
        return begin(self, *args, **kwargs)

    module.Optimizer.__init__ = begin_counted
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: sweep_training.TRAINING.step(optimizer))


def watch_loaders(module):
    """Have the samples of each batch counted: its indices, or its rows if the data set has none."""
    iterator = module._BaseDataLoaderIter
    start = iterator.__init__
    next_batch, next_index, reset = iterator.__next__, iterator._next_index, iterator._reset

    def starting(self, loader):
        sweep_training.TRAINING.begin(self)
        return start(self, loader)

    def following(self):
        batch = next_batch(self)
        waiting = getattr(self, "sweep_indices", None)
        sweep_training.TRAINING.batch(self, batch, waiting.pop(0) if waiting else None)
        return batch

    # Workers fetch ahead, so that the numbers of indices wait for their batches.
    def following_index(self):
        index = next_index(self)
        if isinstance(index, list) and None not in index:
            self.__dict__.setdefault("sweep_indices", []).append(len(index))
        return index

    # An iterator that workers keep alive is reset for each epoch.
    def begin(self, loader, first_iter=False):
        self.__dict__.pop("sweep_indices", None)
        if not first_iter:
            sweep_training.TRAINING.begin(self)
        return reset(self, loader, first_iter)

    iterator.__init__, iterator.__next__ = starting, following
    iterator._next_index, iterator._reset = following_index, begin


def watch_modes(module):
    """Have evaluations noticed. `train` stays as it is: many programs call it in each step, and it calls all layers."""
    evaluate = module.Module.eval

    def begin_evaluation(self):
        if self._modules:  # not a single layer
            sweep_training.TRAINING.evaluation(self)
        return evaluate(self)

    module.Module.eval = begin_evaluation


def watch_gradients(module):
    """Have passes without gradients noticed, in which a model may be evaluated without being set to evaluate."""
    for context in (module.no_grad, module.inference_mode):
        context.__enter__, context.__exit__ = watched(context.__enter__, context.__exit__)


def watched(enter, leave):
    """Return these methods of a context, in which the call of a module is awaited unless an evaluation has begun."""

    def enter_and_await(self):
        entered = enter(self)
        training = sweep_training.TRAINING
        if training.counts.whole.steps and not training.paused and not training.is_marked:
            training.await_forward()
        return entered

    def leave_and_forget(self, *error):
        sweep_training.TRAINING.forget_forward()
        return leave(self, *error)

    return enter_and_await, leave_and_forget


def watch_checkpoints(module):
    """Have checkpoints noticed."""
    save = module.save

    def save_with_pause(*args, **kwargs):
        sweep_training.TRAINING.pause()
        sweep_training.TRAINING.note_saved(args[1] if len(args) > 1 else kwargs.get("f"))
        return save(*args, **kwargs)

    module.save = save_with_pause
