# mypy: ignore-errors
"""The training in this process: counts and times its steps, without evaluation and checkpoints.

The GPU is waited for only at the ends of uninterrupted training, so that the steps between run as they would.
"""

from __future__ import annotations

import math
import os
import sys
import time
import weakref

from sweep_batches import Batches, StepData
from sweep_counts import COMPARED_STEPS, Counts
from sweep_devices import StepTimer, is_capturing, place
from sweep_files import FOLDER, STOP_FILE, write_file
from sweep_optimizers import Optimizers, checksum

WRITE_EVERY_S = 0.5
CPU_EVERY_S = 0.05  # the CPU time costs a system call, which is slow in processes with many threads
STOP_EVERY_S = 0.1
MOST_EVALUATIONS = 10
"""A module that evaluates in more steps, and in more than half of all, is a part of the model that is not trained."""
MOST_RATES, MOST_GROUPS = 64, 16
"""Points of the run at which learning rates are kept, and parameter groups of which they are."""
ENVIRONMENTS = ("gymnasium", "gym", "envpool", "pettingzoo", "brax", "dm_env")
"""Modules of reinforcement learning: with them, a pass without gradients collects samples."""


class Evaluations:
    """The modules that evaluate, by which evaluations are told from parts of the model that are not trained."""

    def __init__(self):
        self._module = lambda: None  # a weak reference to the module of the evaluation since the last step
        self._silenced = weakref.WeakSet()  # modules that have been set to evaluate since the last step
        self._steps = weakref.WeakKeyDictionary()  # at how many steps each module did not train

    def silence(self, module):
        """Note that a module has been set to evaluate."""
        self._silenced.add(module)

    def count(self, module):
        """Note that a module does not train at the next step."""
        self._steps[module] = self._steps.get(module, 0) + 1

    def begins(self, module, steps):
        """Return whether an evaluation begins with this module, after so many steps of the training."""
        begins = self._steps.get(module, 0) <= max(MOST_EVALUATIONS, steps / 2)
        if begins:
            self._module = weakref.ref(module)
        return begins

    def is_running(self):
        """Return whether an evaluation has begun since the last step, and its module does not train again."""
        module = self._module()
        return module is not None and not module.training

    def end(self):
        """Note a step of the training."""
        # A module that does not train at this step, either, is a part of the model.
        for module in self._silenced:
            if not module.training:
                self.count(module)
        self._silenced.clear()
        self._module = lambda: None


class Training:
    """The training in this process: the steps of all optimizers that share parameters."""

    def __init__(self):
        # The training that runs, and its parts.
        self.counts = Counts()
        self.optimizers = Optimizers()
        self.batches = Batches()
        self.evaluations = Evaluations()
        self.stopwatch = StepTimer()
        self.others = []  # the counts of earlier trainings, such as a search for the learning rate
        self.is_marked = False  # whether the program marks its steps
        self._marked_epoch = None  # the epoch of the next marked step, from 1; None if the program numbers none
        self._first_epoch = None  # the program's number of its first epoch: 0, 1 or, from a checkpoint, another one
        self._loss = None  # that of the last marked step, perhaps still on its device
        self._last_batch = StepData()  # what the last step trained on
        self._contents = []  # the content of the first steps
        self._rates_every = 1  # of so many steps, one has its learning rates kept
        self.keras_iterator = lambda: None  # a weak reference to the latest iterator of Keras over its data
        # The calls of modules that are noticed.
        self.watch = None  # the handle of the hook for the next call of any module
        self._models = (
            weakref.WeakKeyDictionary()
        )  # models whose inputs are the samples, with the handles of their hooks
        # When something was last done, in seconds of `time.perf_counter`.
        self._written_s = self._noted_s = self._looked_s = 0.0
        self._placed = 0  # the number of steps when the place of the process was noted
        self._stop_at = None  # the step at which the trial asks to stop

    def step(self, optimizer):
        """Count a step of an optimizer, unless it belongs to a step that is counted, or the program marks its steps."""
        if self.is_marked or is_capturing():
            return
        step = self.optimizers.step(optimizer, has_batch=self.batches.has_one)
        if step is None:
            return
        if step.begins_training:
            self.begin_another(is_second=step.is_second)
        self.counts.other_optimizer_steps += not step.is_of_first
        self.count(self.batches.take(self.counts), optimizer)
        if self.batches.iterator is None and not self._models and self.counts.whole.steps <= COMPARED_STEPS:
            self.await_forward()

    def mark(self, samples, tokens, loss, epoch=None):
        """Count a step that the program marks, in this epoch if known; from the first one on, no other steps count."""
        if not self.is_marked:
            self.counts = self.counts.anew()
            self.stopwatch = StepTimer()
            self.is_marked = True
            self._placed = 0
        if epoch is not None:
            self.number_epoch(epoch)
        if self._marked_epoch is not None:
            self.counts.begin_epoch(self._marked_epoch)
        self.batches.drop()
        if hasattr(self._loss, "block_until_ready"):  # JAX runs far ahead of its devices
            self._loss.block_until_ready()
        self._loss = loss
        self.count(StepData(samples, tokens, content=None), None)

    def number_epoch(self, epoch, *, has_ended=False):
        """Note the epoch of the next marked step, or of the steps so far if it has ended."""
        if not math.isfinite(epoch):
            return
        if has_ended and not self.counts.whole.steps:  # an evaluation before the training
            self._marked_epoch = 1
            return
        if self._first_epoch is None:
            self._first_epoch = int(epoch)
        self._marked_epoch = int(epoch) + 1 - self._first_epoch + has_ended

    def begin_another(self, *, is_second):
        """Count from now on as another training; `is_second`: its first step has been counted as one of the last."""
        before = self.counts
        self.counts = before.anew()
        self.counts.dataset = before.dataset
        self.counts.epoch = 1
        if is_second:
            samples, tokens = self._last_batch[:2]
            before.whole.take_back(samples, tokens)
            self.counts.whole.add(0.0, samples, tokens)
        self.others.append(before)
        self._contents = []
        self._rates_every = 1
        self._placed = 0

    def count(self, batch, optimizer):
        """Count a step that trained on this batch; the optimizer is None if the program marks its steps."""
        counts = self.counts
        if self.stopwatch.running_s is None:
            write_at_ends()
        seconds = self.stopwatch.step(batch.begun_s)
        counts.add(seconds, batch.samples, batch.tokens, running_s=self.stopwatch.running_s)
        self._last_batch = batch
        self.evaluations.end()
        if optimizer is not None:
            self.compare(optimizer, batch.content)
            self.keep_rates(optimizer)
        now_s = time.perf_counter()
        if now_s - self._noted_s >= CPU_EVERY_S:
            self._noted_s, counts.at_s, counts.cpu_s = now_s, time.time(), time.process_time()
        if now_s - self._written_s >= WRITE_EVERY_S:
            self._written_s = now_s
            if counts.whole.steps >= 2 * self._placed:  # it hardly changes later, and asking each GPU takes time
                self._placed = counts.whole.steps
                place(counts, optimizer)
            self.write()

    def compare(self, optimizer, content):
        """Note what other ranks have in common after the same first steps."""
        counts = self.counts
        if counts.whole.steps <= COMPARED_STEPS:
            self._contents.append(content)
        if counts.whole.steps == COMPARED_STEPS:
            counts.weights, counts.n_params = checksum(optimizer), self.optimizers.n_params()
            if None not in self._contents and len(set(self._contents)) > 1:  # else made for a benchmark
                counts.content = sum(self._contents)

    def keep_rates(self, optimizer):
        """Note the learning rates of the parameter groups, at fewer steps the longer the training is."""
        counts, groups = self.counts, optimizer.param_groups
        if counts.whole.steps % self._rates_every:
            return
        chosen = groups[:: max(1, -(-len(groups) // MOST_GROUPS))]
        rates = [group.get("lr", 0.0) for group in chosen]
        if all(isinstance(rate, (int, float)) for rate in rates):
            counts.rates.append([counts.whole.steps, *map(float, rates)])
        if len(counts.rates) > MOST_RATES:
            self._rates_every *= 2
            counts.rates = [point for point in counts.rates if point[0] % self._rates_every == 0]

    def begin(self, iterator):
        """Note that a loader starts to give batches."""
        self.batches.begin(iterator, self.stopwatch.paused_s)

    def batch(self, iterator, batch, indices):
        """Note a batch that a loader gives, from so many `indices`; those during an evaluation do not count."""
        if not hasattr(iterator, "sweep_number"):
            self.begin(iterator)
        is_held_out = self.evaluations.is_running() or not sys.modules["torch"].is_grad_enabled()
        self.batches.add(iterator, batch, indices, self.counts, is_held_out=is_held_out)

    def await_forward(self):
        """Have the next module that is called noticed: an evaluation, or the model whose inputs are the samples."""
        if self.watch is None:
            module = sys.modules["torch.nn.modules.module"]
            self.watch = module.register_module_forward_pre_hook(self.forward)

    def forget_forward(self):
        """Notice the next call of a module no longer."""
        if self.watch is not None:
            self.watch.remove()
            self.watch = None

    def forward(self, module, inputs):
        """Note the first call of a module; its own modules are called without this hook, which compilers would see."""
        self.forget_forward()
        torch = sys.modules["torch"]
        if torch.is_grad_enabled():
            if self.batches.iterator is None and module not in self._models:
                self._models[module] = module.register_forward_pre_hook(self.given, with_kwargs=True)
                self.given(module, inputs, {})
            return
        is_trained = any(map(self.optimizers.has_parameter, module.parameters()))
        if is_trained and not any(name in sys.modules for name in ENVIRONMENTS):
            self.evaluation(module, is_silenced=False)

    def given(self, module, inputs, named):
        """Note the inputs of a model that is trained without a loader of PyTorch."""
        if sys.modules["torch"].is_grad_enabled() and self.batches.iterator is None:
            self.batches.add_inputs(inputs, named, self.counts)

    def evaluation(self, module, is_silenced=True):
        """Note that a module is set to evaluate, or else called without gradients; in most steps, that is training."""
        if is_silenced:
            self.evaluations.silence(module)
        elif not self.stopwatch.is_paused:
            self.batches.hold_out_last()  # it is called with that one
            self.evaluations.count(module)
        if self.evaluations.begins(module, self.counts.whole.steps):
            self.pause()
        elif not is_silenced:
            self.counts.gradless = True

    def pause(self):
        """Note that something other than training happens: the time until the training goes on does not count."""
        self.catch_up()
        self.stopwatch.pause()

    def catch_up(self):
        """Add the time by which the GPU is behind the launches of the steps so far."""
        self.counts.lengthen(self.stopwatch.behind_s())

    def end_epoch(self):
        """Add the time since the last marked step, in which its devices finished; then something else happens."""
        self.counts.lengthen(self.stopwatch.waited_s())
        self.stopwatch.pause()

    def note_saved(self, file):
        """Note a checkpoint that other trials may save under the same name, because it is not in the trial's folder."""
        if not isinstance(file, (str, os.PathLike)):
            return
        path, trial = os.path.realpath(file), os.path.dirname(os.path.realpath(FOLDER))
        # A name with the trial's id is no other trial's.
        if os.path.basename(trial) not in path:
            self.counts.saved = path

    def should_stop(self):
        """Return whether the trial asks to stop at this step, the same in all ranks."""
        now_s = time.perf_counter()
        if self._stop_at is None and now_s - self._looked_s >= STOP_EVERY_S:
            self._looked_s = now_s
            try:
                with open(os.path.join(FOLDER, STOP_FILE)) as file:
                    self._stop_at = int(file.read() or 0)
            except (OSError, ValueError):
                return False
        return self._stop_at is not None and self.counts.whole.steps >= self._stop_at

    def write(self):
        """Write the counts so far, of the longest training."""
        trainings = [*self.others, self.counts]
        counts = max(trainings, key=lambda training: training.whole.steps)
        counts.other_steps = sum(training.whole.steps for training in trainings) - counts.whole.steps
        if self._loss is not None:
            try:
                counts.loss = float(self._loss)  # waits for the device, and so does not happen in each step
            except (TypeError, ValueError):
                counts.loss = None
        write_file(f"{os.getpid()}.json", counts.to_json())


TRAINING = Training()


def after_fork():
    """Count anew in a child process."""
    global TRAINING
    TRAINING = Training()


def write_last():
    """Write the last counts; those of a process that could have trained, and took no step, too."""
    if FOLDER and ("torch" in sys.modules or TRAINING.is_marked):
        TRAINING.catch_up()
        TRAINING.write()


def write_at_ends():
    """Write the last counts where Python runs no exit functions, too.

    Children of multiprocessing end without them, and a notebook's kernel is killed after its last cell.
    """
    util, ipython = sys.modules.get("multiprocessing.util"), sys.modules.get("IPython")
    if util is not None:
        util.Finalize(None, write_last, exitpriority=0)
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.events.register("post_run_cell", lambda *_: write_last())


os.register_at_fork(after_in_child=after_fork)
