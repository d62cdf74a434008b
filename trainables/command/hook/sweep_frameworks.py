# mypy: ignore-errors
"""Callbacks for Hugging Face's Trainer, Lightning, Keras 3 and fastai: they write rows of metrics and end trainings.

Those of Keras and fastai also mark the steps. Lightning gets its callback from the entry points of `sweep_hook` beside
this file, and the others from the functions at its end.
"""

import functools
import importlib
import json
import os
import sys
import weakref

import sweep_training
from sweep_files import ENDED_S, FOLDER
from sweep_torch import noted


def emit_row(epoch, step, values, at_s=None):
    """Write a row of metrics under their own names; `at_s` is when the epoch ended, if that is to time the epochs."""
    row = {} if epoch is None else {"epoch": epoch, "step": step}
    if at_s is not None:
        row[ENDED_S] = at_s
    for key, value in values.items():
        try:
            row[key] = float(value)
        except (TypeError, ValueError):
            continue
    try:
        path = os.path.join(FOLDER, f"{os.getpid()}.jsonl")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, json.dumps(row, default=float).encode() + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        print(f"sweep hook: {error}", file=sys.stderr)


@functools.cache
def length(name):
    """Return a length of the trial's budget; None if it has none of this kind."""
    text = os.environ.get(f"SWEEP_{name}", "")
    return float(text) if text else None


def is_over(epoch, step):
    """Return whether the trial's budget is used up, or it asks to stop."""
    epochs, steps = length("EPOCHS"), length("STEPS")
    is_used_up = (epochs is not None and epoch >= epochs - 1e-6) or (steps is not None and step >= steps)
    return is_used_up or sweep_training.TRAINING.should_stop()


def begin(framework):
    """Note the framework, before it prints what its callback reports."""
    sweep_training.TRAINING.counts.framework = framework
    sweep_training.TRAINING.write()


def transformers_callback(base):
    """Return the class of a callback for Hugging Face's Trainer."""

    class SweepCallback(base):
        def on_train_begin(self, args, state, control, **kwargs):
            begin("transformers")

        def on_step_end(self, args, state, control, **kwargs):
            # An epoch ends in on_epoch_end: state.epoch reaches it with the last step.
            if is_over(-1, state.global_step):
                control.should_training_stop = True

        def on_epoch_end(self, args, state, control, **kwargs):
            if is_over(state.epoch or 0, state.global_step):
                control.should_training_stop = True

        def on_evaluate(self, args, state, control, **kwargs):
            sweep_training.TRAINING.pause()

        def on_save(self, args, state, control, **kwargs):
            sweep_training.TRAINING.pause()

        def on_log(self, args, state, control, logs=None, **kwargs):
            if state.is_world_process_zero and logs and not any(key.startswith("train_") for key in logs):
                emit_row(state.epoch, state.global_step, logs)

    return SweepCallback


def lightning_callback(package):
    """Return a callback for Lightning, from the package's base class."""
    base = importlib.import_module(f"{package}.callbacks").Callback

    class SweepCallback(base):
        def __reduce__(self):  # for processes that are spawned
            return lightning_callback, (package,)

        def on_train_start(self, trainer, module):
            begin("lightning")

        def on_train_batch_end(self, trainer, module, *rest, **kwargs):
            if is_over(-1, trainer.global_step):
                trainer.should_stop = True

        def on_train_epoch_end(self, trainer, module):
            if trainer.is_global_zero:
                emit_row(trainer.current_epoch + 1, trainer.global_step, dict(trainer.callback_metrics))
            if is_over(trainer.current_epoch + 1, trainer.global_step):
                trainer.should_stop = True

        def on_validation_start(self, trainer, module):
            sweep_training.TRAINING.pause()

        def on_save_checkpoint(self, trainer, module, checkpoint):
            sweep_training.TRAINING.pause()

        def on_test_end(self, trainer, module):
            if trainer.is_global_zero:
                emit_row(trainer.current_epoch, trainer.global_step, dict(trainer.callback_metrics))

    return SweepCallback()


def lightning_callbacks():
    """Entry point of `lightning.pytorch.callbacks_factory`."""
    return [lightning_callback("lightning.pytorch")] if FOLDER else []


def pytorch_lightning_callbacks():
    """Entry point of `pytorch_lightning.callbacks_factory`."""
    return [lightning_callback("pytorch_lightning")] if FOLDER else []


def keras_callback(base):
    """Return a callback for Keras 3, which trains with torch, JAX or TensorFlow."""

    class SweepCallback(base):
        def on_train_begin(self, logs=None):
            begin("keras")
            self.samples = keras_samples()
            self.last = -1

        def on_epoch_begin(self, epoch, logs=None):
            self.last, self.epoch = -1, epoch + 1

        def on_train_batch_end(self, batch, logs=None):
            # With `steps_per_execution` a call stands for several steps.
            for _ in range(batch - self.last):
                sweep_training.TRAINING.mark(self.samples, 0, None, self.epoch)
            self.last = batch
            if is_over(-1, -1):
                self.model.stop_training = True

        def on_test_begin(self, logs=None):
            self.wait()

        def wait(self):
            if "jax" in sys.modules:  # its steps have only been launched
                sys.modules["jax"].block_until_ready([weights.value for weights in self.model.trainable_variables])
            sweep_training.TRAINING.end_epoch()

        def on_epoch_end(self, epoch, logs=None):
            self.wait()
            # Keras calls the metrics of the training `accuracy` and `loss`.
            values = {key if key.startswith("val_") else f"train_{key}": value for key, value in (logs or {}).items()}
            emit_row(epoch + 1, sweep_training.TRAINING.counts.whole.steps, values)
            if is_over(epoch + 1, -1):
                self.model.stop_training = True

    return SweepCallback()


def keras_samples():
    """Return the mean samples of a step of the training of Keras that begins; 0 if its data do not tell."""
    adapter = getattr(sweep_training.TRAINING.keras_iterator(), "data_adapter", None)
    size, batches = getattr(adapter, "batch_size", None), getattr(adapter, "num_batches", None)
    if not size or not batches:
        return size or 0
    last = (getattr(adapter, "partial_batch_size", 0) or 0) if getattr(adapter, "has_partial_batch", False) else 0
    return ((batches - 1) * size + (last or size)) / batches


def fastai_callback(base):
    """Return the class of a callback for fastai."""

    class SweepCallback(base):
        order = 60  # after the recorder
        run_valid = True

        def before_fit(self):
            begin("fastai")

        def after_batch(self):
            if self.training:
                inputs = self.xb[0] if len(self.xb) else None
                samples = len(inputs) if hasattr(inputs, "__len__") else 0
                sweep_training.TRAINING.mark(samples, 0, self.loss.detach(), self.epoch + 1)

        def before_validate(self):
            sweep_training.TRAINING.pause()

        def after_epoch(self):
            names = self.recorder.metric_names[1:-1]  # without the epoch and the time
            values = {
                # Metrics of fastai are those of the validation set.
                name if name in ("train_loss", "valid_loss") else f"valid_{name}": value
                for name, value in zip(names, self.recorder.log[1:])
            }
            emit_row(self.epoch + 1, sweep_training.TRAINING.counts.whole.steps, values)

    return SweepCallback


def watch_trainer(module):
    """Give every Trainer the callback."""
    module.DEFAULT_CALLBACKS.append(transformers_callback(module.TrainerCallback))


def watch_keras(module):
    """Give every training of Keras 3 the callback."""
    original_init = module.CallbackList.__init__

    def begin_with_callback(self, callbacks=None, *args, **kwargs):
        given = [] if callbacks is None else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        own = keras_callback(sys.modules["keras.src.callbacks.callback"].Callback)
        original_init(self, [*given, own], *args, **kwargs)

    module.CallbackList.__init__ = begin_with_callback


def watch_keras_batches(module):
    """Have the batch size of each training of Keras noticed."""

    def keep(result, iterator, *args, **kwargs):
        sweep_training.TRAINING.keras_iterator = weakref.ref(iterator)

    noted(module.EpochIterator, "__init__", after=keep)


def watch_fastai(module):
    """Give every learner of fastai the callback."""
    module.defaults.callbacks = [*module.defaults.callbacks, fastai_callback(module.Callback)]
