# mypy: ignore-errors
"""Callbacks for Hugging Face's Trainer and Lightning: they write rows of metrics, and end the training with the budget.

`sitecustomize.py` gives them to the Trainer, and the entry points of `sweep_hook` beside it to Lightning.
"""

import functools
import importlib
import json
import os
import sys

import sitecustomize


def emit(row):
    """Append a row to this process's file."""
    text = json.dumps(row, default=lambda value: value.item() if hasattr(value, "item") else str(value)) + "\n"
    try:
        path = os.path.join(sitecustomize.FOLDER, f"{os.getpid()}.jsonl")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
    except OSError as error:
        print(f"sweep hook: {error}", file=sys.stderr)


def emit_row(epoch, step, values):
    """Write a row of metrics under their own names, and under the usual ones."""
    row = {"epoch": epoch, "step": step}
    for key, value in values.items():
        try:
            row[key] = float(value)
        except (TypeError, ValueError):
            continue
        name = key.lower().replace("/", "_")
        held_out = name.startswith(("val", "eval", "valid"))
        if name in ("loss", "train_loss", "loss_epoch", "train_loss_epoch"):
            row["loss"] = row[key]
        elif held_out and name.endswith("loss"):
            row["val_loss"] = row[key]
        elif held_out and name.split("_", 1)[-1] in ("acc", "accuracy", "top1", "acc1"):
            row["val_accuracy"] = row[key]
        elif name in ("test_acc", "test_accuracy"):
            row["accuracy"] = row[key]
    emit(row)


@functools.cache
def length(name):
    """Return a length of the trial's budget; None if it has none of this kind."""
    text = os.environ.get(f"SWEEP_{name}", "")
    return float(text) if text else None


def is_over(epoch, step):
    """Return whether the trial's budget is used up, or it asks to stop."""
    epochs, steps = length("EPOCHS"), length("STEPS")
    is_used_up = (epochs is not None and epoch >= epochs - 1e-6) or (steps is not None and step >= steps)
    return is_used_up or sitecustomize.TRAINING.should_stop()


def begin(framework):
    """Note the framework, before it prints what its callback reports."""
    sitecustomize.TRAINING.counts.framework = framework
    sitecustomize.TRAINING.write()


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
            sitecustomize.TRAINING.pause()

        def on_save(self, args, state, control, **kwargs):
            sitecustomize.TRAINING.pause()

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
            sitecustomize.TRAINING.pause()

        def on_save_checkpoint(self, trainer, module, checkpoint):
            sitecustomize.TRAINING.pause()

        def on_test_end(self, trainer, module):
            if trainer.is_global_zero:
                emit_row(trainer.current_epoch, trainer.global_step, dict(trainer.callback_metrics))

    return SweepCallback()


def lightning_callbacks():
    """Entry point of `lightning.pytorch.callbacks_factory`."""
    return [lightning_callback("lightning.pytorch")] if sitecustomize.FOLDER else []


def pytorch_lightning_callbacks():
    """Entry point of `pytorch_lightning.callbacks_factory`."""
    return [lightning_callback("pytorch_lightning")] if sitecustomize.FOLDER else []
