# mypy: ignore-errors
"""The training in this process: counts and times its steps, without evaluation and checkpoints.

The GPU is waited for only at the ends of uninterrupted training, so that the steps between run as they would.
"""

from __future__ import annotations

import os
import sys
import time
import weakref

from sweep_counts import Counts
from sweep_devices import Gpu, checksum, content_of, count_of, is_capturing, length_of, place, size_of, weights_of
from sweep_files import FOLDER, STOP_FILE, write_file

WRITE_EVERY_S = 0.5
CPU_EVERY_S = 0.05  # the CPU time costs a system call, which is slow in processes with many threads
WARMUP_STEPS = 10
WARMUP_S = 0.3
COMPARED_STEPS = 5  # after so many steps, the weights and the samples so far are compared between ranks
MOST_EVALUATIONS = 10
"""A module that evaluates in more steps, and in more than half of all, is a part of the model that is not trained."""
MOST_RATES, MOST_GROUPS = 64, 16
"""Points of the run at which learning rates are kept, and parameter groups of which they are."""
ENVIRONMENTS = ("gymnasium", "gym", "envpool", "pettingzoo", "brax", "dm_env")
"""Modules of reinforcement learning: with them, a pass without gradients collects samples."""


class Training:
    """The training in this process: the steps of all optimizers that share parameters."""

    def __init__(self):
        self.counts = Counts()
        self.others = []
        self.optimizer = self.stepped = self.first = self.counted = None
        self.row = self.optimizers = 0
        self.parameters, self.numbers = {}, set()
        self.sizes = {}
        self.last_taken = (0, 0)
        self.is_marked = False
        self.loss = None
        self.iterator = None
        self.pending = {}
        self.begun_s = {}
        self.evaluated = None
        self.silenced = weakref.WeakSet()
        self.not_trained = weakref.WeakKeyDictionary()
        self.trained = weakref.WeakKeyDictionary()
        self.watch = None
        self.input = [0, 0, 0.0]
        self.without_input = 0
        self.rows = {}
        self.paused = False
        self.last_s = self.first_s = None
        self.paused_s = self.written_s = self.looked_s = self.noted_s = 0.0
        self.iterators = self.placed = 0
        self.rates_every = 1
        self.contents = []
        self.stop_at = None
        self.gpu = Gpu()

    def step(self, optimizer):
        """Count a step of an optimizer, unless it belongs to a step that is counted, or the program marks its steps."""
        if self.is_marked or is_capturing() or not self.is_counted(optimizer):
            return
        self.count(*self.taken(), optimizer)
        if self.iterator is None and not self.trained and self.counts.whole.steps <= COMPARED_STEPS:
            self.await_forward()

    def mark(self, samples, tokens, loss):
        """Count a step that the program marks; from the first one on, no other steps count."""
        if not self.is_marked:
            self.counts = self.new_counts()
            self.last_s = self.first_s = None
            self.is_marked = True
        self.pending.clear()
        if hasattr(self.loss, "block_until_ready"):  # JAX runs far ahead of its devices
            self.loss.block_until_ready()
        self.loss = loss
        self.count(samples, tokens, None, None, None)

    def new_counts(self):
        """Return counts without steps, of the same process."""
        counts = Counts()
        counts.optimizers, counts.framework = self.counts.optimizers, self.counts.framework
        counts.saved = self.counts.saved
        return counts

    def begin_epoch(self, number):
        """Note that the training begins an epoch, counted from 1."""
        counts = self.counts
        if number != counts.epoch:
            counts.epoch, counts.completed, counts.completed_samples = number, counts.whole.steps, counts.whole.samples

    def end_epoch(self):
        """Add the time since the last marked step, in which its devices finished; then something else happens."""
        if not self.paused and self.last_s is not None:
            self.lengthen(time.perf_counter() - self.last_s)
        self.pause()

    def is_counted(self, optimizer):
        """Return whether a step of this optimizer is one of the training; begin another training if it shows one."""
        number = getattr(optimizer, "sweep_number", None)
        if number is None:  # an id may be given again
            self.optimizers += 1
            number = optimizer.sweep_number = self.optimizers
            self.sizes[number] = count_of(optimizer)
        self.row = self.row + 1 if number == self.stepped else 1
        self.stepped = number
        if self.optimizer is None:
            self.optimizer = self.first = number
        # Of several optimizers that step together the first one counts. One that steps twice in a row, or on a new
        # batch, is that of another phase; without common parameters it trains another model.
        if number != self.optimizer and self.row < 2:
            has_batch = any(not is_held_out for _, _, is_held_out, _ in self.pending.values())
            if not has_batch:
                return False
        elif number != self.optimizer:
            self.optimizer = number
            if number not in self.numbers and not any(map(self.has_parameter, weights_of(optimizer))):
                self.begin_another(number)
        if self.row > 1 or number == self.first:
            if number not in self.numbers:
                self.parameters.update({id(weights): weakref.ref(weights) for weights in weights_of(optimizer)})
            self.numbers.add(number)
        self.counts.other_optimizer_steps += number != self.first
        self.counted = number
        return True

    def has_parameter(self, weights):
        """Return whether an optimizer of the training has this parameter."""
        reference = self.parameters.get(id(weights))
        return reference is not None and reference() is weights

    def begin_another(self, number):
        """Count from now on as another training, such as that after a search for the learning rate."""
        before, self.counts = self.counts, self.new_counts()
        self.counts.dataset, self.counts.epoch = before.dataset, 1
        if self.counted == number:  # its first step has been counted
            before.whole.take_back(*self.last_taken)
            self.counts.whole.add(0.0, *self.last_taken)
        self.others.append(before)
        self.first, self.contents, self.rates_every = number, [], 1
        self.parameters, self.numbers = {}, set()

    def count(self, samples, tokens, content, begun_s, optimizer):
        """Count a step with these samples; `begun_s` is when its loader started, if that was after the last step."""
        counts = self.counts
        now_s = time.perf_counter()
        if self.first_s is None:
            write_at_ends()
        if now_s - self.noted_s >= CPU_EVERY_S:
            self.noted_s, counts.at_s, counts.cpu_s = now_s, time.time(), time.process_time()
        self.first_s = now_s if self.first_s is None else self.first_s
        # An evaluation ended when the training's next loader started. Its workers, and what came between the last step
        # and the evaluation, belong to the training.
        has_resumed = self.paused and begun_s is not None and begun_s > self.paused_s
        since_s = self.last_s
        if self.paused:
            since_s = begun_s - max(0.0, self.paused_s - self.last_s) if has_resumed and self.last_s else None
        if self.paused or self.last_s is None:
            now_s = self.gpu.synchronized()
        self.last_taken = samples, tokens
        if since_s is None:
            # The time since the last step is not that of a step alone.
            counts.whole.add(0.0, samples, tokens)
        else:
            seconds = now_s - since_s
            counts.whole.add(seconds, samples, tokens)
            if counts.whole.steps > WARMUP_STEPS and now_s - self.first_s >= WARMUP_S:
                counts.warm.add(seconds, samples, tokens)
            if counts.epoch > 1:
                counts.later.add(seconds, samples, tokens)
        # A module that does not train at this step, either, is a part of the model.
        for module in self.silenced:
            if not module.training:
                self.not_trained[module] = self.not_trained.get(module, 0) + 1
        self.silenced.clear()
        self.paused, self.evaluated = False, None
        self.last_s = now_s
        self.gpu.step()
        if optimizer is not None:
            self.compare(optimizer, content)
            self.keep_rates(optimizer)
        if now_s - self.written_s >= WRITE_EVERY_S:
            self.written_s = now_s
            if counts.whole.steps >= 2 * self.placed:  # it hardly changes later, and asking each GPU takes time
                self.placed = counts.whole.steps
                place(counts, optimizer)
            self.write()

    def compare(self, optimizer, content):
        """Note what other ranks have in common after the same first steps."""
        steps = self.counts.whole.steps
        if steps <= COMPARED_STEPS:
            self.contents.append(content)
        if steps == COMPARED_STEPS:
            self.counts.weights = checksum(optimizer)
            # Optimizers that stepped before the first one are those of an earlier training.
            sizes = [size for number, size in self.sizes.items() if number >= self.first]
            self.counts.n_params = sum(sizes) if all(sizes) else 0
            if None not in self.contents and len(set(self.contents)) > 1:  # else made for a benchmark
                self.counts.content = sum(self.contents)

    def keep_rates(self, optimizer):
        """Note the learning rates of the parameter groups, at fewer steps the longer the training is."""
        counts, groups = self.counts, optimizer.param_groups
        if counts.whole.steps % self.rates_every:
            return
        chosen = groups[:: max(1, -(-len(groups) // MOST_GROUPS))]
        rates = [group.get("lr", 0.0) for group in chosen]
        if all(isinstance(rate, (int, float)) for rate in rates):
            counts.rates.append([counts.whole.steps, *map(float, rates)])
        if len(counts.rates) > MOST_RATES:
            self.rates_every *= 2
            counts.rates = [point for point in counts.rates if point[0] % self.rates_every == 0]

    def taken(self):
        """Return the samples and tokens of the step, their content, and when their loader started."""
        candidates = [key for key, batch in self.pending.items() if not batch[2]]
        if not candidates and not self.input[0]:
            candidates = list(self.pending)
        key = candidates[-1] if candidates else None
        samples, tokens, _, content = self.pending[key] if key is not None else (0, 0, False, None)
        if key is not None and key != self.iterator:
            self.iterator = key
            self.begin_epoch(self.counts.epoch + 1)
        self.pending.clear()
        if self.iterator is None:  # without loaders, the rows of the model's inputs count
            samples, tokens, content = self.input
            self.input = [0, 0, 0.0]
            # More rows than usual are those of an evaluation with gradients.
            if len(self.rows) < MOST_RATES or samples in self.rows:
                self.rows[samples] = self.rows.get(samples, 0) + (samples > 0)
            usual = max(self.rows, key=self.rows.get)
            samples, tokens = (usual, 0) if samples > usual > 0 else (samples, tokens)
            self.counts.is_input |= samples > 0
            # The first steps come before the model is known, and are as large as the next one.
            self.without_input += not samples and not self.counts.is_input
            if samples and self.without_input:
                samples, tokens = (number * (1 + self.without_input) for number in (samples, tokens))
                self.without_input = 0
        return samples, tokens, content, self.begun_s.get(key)

    def begin(self, iterator):
        """Note that a loader starts to give batches, and number its iterator."""
        # The id of an iterator that has gone may be given again.
        self.iterators += 1
        iterator.sweep_number = self.iterators
        self.begun_s = {number: begun_s for number, begun_s in self.begun_s.items() if begun_s > self.paused_s}
        self.begun_s[self.iterators] = time.perf_counter()

    def batch(self, iterator, batch, indices):
        """Note a batch that a loader gives, from so many `indices`; those during an evaluation do not count."""
        # A batch may have other rows than samples: two for a pair, one for several that are packed.
        samples, tokens = size_of(batch)
        samples = indices or samples
        if not hasattr(iterator, "sweep_number"):
            self.begin(iterator)
        is_held_out = self.is_evaluating() or not sys.modules["torch"].is_grad_enabled()
        before = self.pending.pop(iterator.sweep_number, (0, 0, is_held_out, 0.0))
        content = self.content_with(before[3], batch)
        self.pending[iterator.sweep_number] = (before[0] + samples, before[1] + tokens, before[2], content)
        if indices and not before[2] and not self.counts.dataset:
            self.counts.dataset = length_of(iterator)

    def content_with(self, before, batch):
        """Return the content of the step's batches so far with this one; None if unknown, or compared no longer."""
        content = content_of(batch) if self.counts.whole.steps < COMPARED_STEPS else None
        return None if content is None or before is None else before + content

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
            if self.iterator is None and module not in self.trained:
                self.trained[module] = module.register_forward_pre_hook(self.given, with_kwargs=True)
                self.given(module, inputs, {})
            return
        if any(map(self.has_parameter, module.parameters())) and not any(name in sys.modules for name in ENVIRONMENTS):
            self.evaluation(module, is_silenced=False)

    def given(self, module, inputs, named):
        """Add the inputs of a model that is trained without a loader of PyTorch."""
        if sys.modules["torch"].is_grad_enabled() and self.iterator is None:
            samples, tokens = size_of(inputs)
            if not samples:
                samples, tokens = size_of(named)
            content = self.content_with(self.input[2], [*inputs, *named.values()])
            self.input = [self.input[0] + samples, self.input[1] + tokens, content]

    def evaluation(self, module, is_silenced=True):
        """Note that a module is set to evaluate, or else called without gradients; in most steps, that is training."""
        steps = self.counts.whole.steps
        if is_silenced:
            self.silenced.add(module)
        elif not self.paused:
            # The batch that it is called with is held out.
            for key in list(self.pending)[-1:]:
                samples, tokens, _, content = self.pending[key]
                self.pending[key] = (samples, tokens, True, content)
            self.not_trained[module] = self.not_trained.get(module, 0) + 1
        if self.not_trained.get(module, 0) <= max(MOST_EVALUATIONS, steps / 2):
            self.evaluated = weakref.ref(module)
            self.pause()
        elif not is_silenced:
            self.counts.gradless = True

    def is_evaluating(self):
        """Return whether an evaluation has begun since the last step, and its module does not train again."""
        module = self.evaluated and self.evaluated()
        return module is not None and not module.training

    def pause(self):
        """Note that something other than training happens: the time until the training goes on does not count."""
        self.catch_up()
        if not self.paused:
            self.paused_s = time.perf_counter()
        self.paused = True

    def note_saved(self, file):
        """Note a checkpoint that other trials may save under the same name, because it is not in the trial's folder."""
        if not isinstance(file, (str, os.PathLike)):
            return
        path, trial = os.path.realpath(file), os.path.dirname(os.path.realpath(FOLDER))
        # A name with the trial's id is no other trial's.
        if os.path.basename(trial) not in path:
            self.counts.saved = path

    def catch_up(self):
        """Add the time by which the GPU is behind the launches of the steps so far."""
        if not self.paused and self.last_s is not None:
            self.lengthen(self.gpu.behind(self.last_s))

    def lengthen(self, seconds):
        """Add time to the steps so far."""
        for tally in (self.counts.whole, self.counts.warm, self.counts.later):
            tally.seconds += seconds if tally.steps else 0.0

    def should_stop(self):
        """Return whether the trial asks to stop at this step, the same in all ranks."""
        now_s = time.perf_counter()
        if self.stop_at is None and now_s - self.looked_s >= 0.1:
            self.looked_s = now_s
            try:
                with open(os.path.join(FOLDER, STOP_FILE)) as file:
                    self.stop_at = int(file.read() or 0)
            except (OSError, ValueError):
                return False
        return self.stop_at is not None and self.counts.whole.steps >= self.stop_at

    def write(self):
        """Write the counts so far, of the longest training."""
        trainings = [*self.others, self.counts]
        counts = max(trainings, key=lambda training: training.whole.steps)
        counts.other_steps = sum(training.whole.steps for training in trainings) - counts.whole.steps
        if self.loss is not None:
            try:
                counts.loss = float(self.loss)  # waits for the device, and so does not happen in each step
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
