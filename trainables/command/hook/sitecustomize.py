# mypy: ignore-errors
"""Started by Python in every process of a trial's command: counts and times its training steps, and reads its metrics.

The command's environment puts this folder on PYTHONPATH and names a folder in SWEEP_HOOK; without that variable nothing
happens. Each process that takes steps writes its counts to `<process id>.json` there, and `sweep_frameworks.py` rows of
metrics to `<process id>.jsonl`. It needs nothing but Python 3.9, and torch if the command uses it.

Times exclude evaluation and checkpoints: an interval between two steps in which either happens counts only from the
moment at which the training's next loader starts. The GPU is waited for only at the ends of uninterrupted training, so
that the steps between run as they would.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import sys
import time
import weakref

from sweep_counts import Counts  # beside this file

FOLDER = os.environ.get("SWEEP_HOOK", "")
STOP_FILE = "stop_at_step"
WRITE_EVERY_S = 0.5
CPU_EVERY_S = 0.05
"""The CPU time costs a system call, which is slow in processes with many threads."""
WARMUP_STEPS = 10
WARMUP_S = 0.3
COMPARED_STEPS = 5
"""After so many steps, the weights and the samples so far are compared between ranks."""
COMPARED_VALUES = 4096
MOST_EVALUATIONS = 10
"""A module that evaluates in more steps, and in more than half of all, is a part of the model that is not trained."""
MOST_RATES, MOST_GROUPS = 64, 16
"""Points of the run at which learning rates are kept, and parameter groups of which they are."""
ENVIRONMENTS = ("gymnasium", "gym", "envpool", "pettingzoo", "brax", "dm_env")
"""Modules of reinforcement learning: with them, a pass without gradients collects samples."""
WITHOUT_TORCH_DISTRIBUTED = ("horovod.torch", "mpi4py", "bagua", "ray.train")
"""Modules that exchange gradients by themselves."""
OF_SHARDS = ("placements", "_is_flat_param", "_fsdp_flattened", "ds_id", "tensor_model_parallel")
"""Attributes of parameters of which each rank has a part."""
SHARDING = ("deepspeed", "megatron", "colossalai", "fairscale", "torch.distributed.optim.zero_redundancy_optimizer")
"""Modules whose optimizers may have a part of the parameters."""


class Gpu:
    """The GPU of this process, which works behind the launches; on a CPU nothing is behind."""

    def __init__(self):
        self.began = self.ended = None
        self.synchronized_s = 0.0

    def synchronized(self):
        """Wait for the GPU if there is one, and return the time."""
        cuda = self.cuda()
        if cuda is not None:
            cuda.synchronize()
            if self.began is None:
                self.began, self.ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                for event in (self.began, self.ended):  # never freed: in a forked loader's worker that would abort
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))
            self.began.record()
        self.synchronized_s = time.perf_counter()
        return self.synchronized_s

    def step(self):
        """Note that a step has been launched."""
        if self.ended is not None:
            self.ended.record()

    def behind(self, launched_s):
        """Return how much later than its launch the last step ended on the GPU, and wait for it."""
        if self.ended is None:
            return 0.0
        self.ended.synchronize()
        worked_s = self.began.elapsed_time(self.ended) / 1e3
        return max(0.0, worked_s - (launched_s - self.synchronized_s))

    def cuda(self):
        """Return torch.cuda if it is in use."""
        torch = sys.modules.get("torch")
        return torch.cuda if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized() else None


class Training:
    """The training in this process: the steps of all optimizers that share parameters."""

    def __init__(self):
        self.counts = Counts()
        self.others = []
        self.optimizer = self.stepped = self.first = self.counted = None
        self.row = self.optimizers = 0
        self.parameters, self.numbers = {}, set()
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
            optimizers, framework = self.counts.optimizers, self.counts.framework
            self.counts = Counts()
            self.counts.optimizers, self.counts.framework = optimizers, framework
            self.last_s = self.first_s = None
            self.is_marked = True
        self.pending.clear()
        if hasattr(self.loss, "block_until_ready"):  # JAX runs far ahead of its devices
            self.loss.block_until_ready()
        self.loss = loss
        self.count(samples, tokens, None, None, None)

    def begin_epoch(self, number):
        """Note that the program begins an epoch, counted from 1."""
        if number != self.counts.epoch:
            counts = self.counts
            counts.epoch, counts.completed, counts.completed_samples = number, counts.whole.steps, counts.whole.samples

    def end_epoch(self):
        """Add the time since the last marked step, in which its devices finished; then something else happens."""
        if not self.paused and self.last_s is not None:
            for tally in (self.counts.whole, self.counts.warm, self.counts.later):
                tally.seconds += time.perf_counter() - self.last_s if tally.steps else 0.0
        self.pause()

    def is_counted(self, optimizer):
        """Return whether a step of this optimizer is one of the training, and begin another training if it shows one.

        Several optimizers may step together, of which the first one counts. One that steps twice in a row, or on a
        new batch, is that of another phase; without common parameters it trains another model.
        """
        number = getattr(optimizer, "sweep_number", None)
        is_new = number is None
        if is_new:  # an id may be given again
            self.optimizers += 1
            number = optimizer.sweep_number = self.optimizers
        self.row = self.row + 1 if number == self.stepped else 1
        self.stepped = number
        if self.optimizer is None:
            self.optimizer = self.first = number
        has_batch = any(not is_held_out for _, _, is_held_out, _ in self.pending.values())
        if number != self.optimizer and not has_batch and self.row < 2:
            return False
        if number != self.optimizer and self.row > 1:
            self.optimizer = number
            if number not in self.numbers and not any(map(self.has_parameter, weights_of(optimizer))):
                self.begin_another(number)
        if self.row > 1 or number == self.first:
            if number not in self.numbers:
                self.parameters.update({id(weights): weakref.ref(weights) for weights in weights_of(optimizer)})
            self.numbers.add(number)
        self.counts.further_steps += number != self.first
        self.counted = number
        return True

    def has_parameter(self, weights):
        """Return whether an optimizer of the training has this parameter."""
        reference = self.parameters.get(id(weights))
        return reference is not None and reference() is weights

    def begin_another(self, number):
        """Count from now on as another training, such as that after a search for the learning rate."""
        before, self.counts = self.counts, Counts()
        self.counts.optimizers, self.counts.framework = before.optimizers, before.framework
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
        """Return the samples and tokens of the step, their content, and when their loader started.

        They are those that the training's loader has given since the last step; without loaders, the rows of the
        model's inputs.
        """
        candidates = [key for key, batch in self.pending.items() if not batch[2]]
        if not candidates and not self.input[0]:
            candidates = list(self.pending)
        key = candidates[-1] if candidates else None
        samples, tokens, _, content = self.pending[key] if key is not None else (0, 0, False, None)
        if key is not None and key != self.iterator:
            self.iterator = key
            self.counts.epoch += 1
            self.counts.completed, self.counts.completed_samples = self.counts.whole.steps, self.counts.whole.samples
        self.pending.clear()
        if self.iterator is None:
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
        """Note that a loader starts to give batches; return its number."""
        # The id of an iterator that has gone may be given again.
        self.iterators += 1
        iterator.sweep_number = self.iterators
        self.begun_s = {number: begun_s for number, begun_s in self.begun_s.items() if begun_s > self.paused_s}
        self.begun_s[self.iterators] = time.perf_counter()

    def batch(self, iterator, batch, indices):
        """Note a batch that a loader gives, from so many `indices`; those during an evaluation do not count.

        A batch may have other rows than samples: two for a pair, one for several that are packed.
        """
        samples, tokens = size_of(batch)
        samples = indices or samples
        if not hasattr(iterator, "sweep_number"):
            self.begin(iterator)
        is_held_out = self.is_evaluating() or not sys.modules["torch"].is_grad_enabled()
        before = self.pending.pop(iterator.sweep_number, (0, 0, is_held_out, 0.0))
        content = content_of(batch) if self.counts.whole.steps < COMPARED_STEPS else None
        content = None if content is None or before[3] is None else before[3] + content
        self.pending[iterator.sweep_number] = (before[0] + samples, before[1] + tokens, before[2], content)
        if indices and not before[2] and not self.counts.dataset:
            self.counts.dataset = length_of(iterator)

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
            content = content_of([*inputs, *named.values()]) if self.counts.whole.steps < COMPARED_STEPS else None
            content = None if content is None or self.input[2] is None else self.input[2] + content
            self.input = [self.input[0] + samples, self.input[1] + tokens, content]

    def evaluation(self, module, is_silenced=True):
        """Note that a module evaluates: an evaluation begins, unless this happens in most steps.

        With `is_silenced` it is set to evaluate; else it is called without gradients.
        """
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

    def catch_up(self):
        """Add the time by which the GPU is behind the launches of the steps so far."""
        if not self.paused and self.last_s is not None:
            behind_s = self.gpu.behind(self.last_s)
            for tally in (self.counts.whole, self.counts.warm, self.counts.later):
                tally.seconds += behind_s if tally.steps else 0.0

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


def write_file(name, text):
    """Write a file of the trial, whole or not at all."""
    path = os.path.join(FOLDER, name)
    try:
        with open(f"{path}.part", "w") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    except OSError as error:
        print(f"sweep hook: {error}", file=sys.stderr)


TRAINING = Training()


def is_capturing():
    """Return whether a CUDA graph is captured, during which nothing may wait for the GPU."""
    torch = sys.modules["torch"]
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def place(counts, optimizer):
    """Note the process's rank and world size, GPUs that it uses, and whether it exchanges gradients.

    At the exit of the process, its process group has gone.
    """
    counts.connected = any(name in sys.modules for name in WITHOUT_TORCH_DISTRIBUTED)
    if "jax" in sys.modules and optimizer is None:
        place_jax(counts, sys.modules["jax"])
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "distributed"):
        return
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        counts.rank, counts.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        counts.connected |= counts.world > 1
    elif optimizer is not None:
        first = next(weights_of(optimizer), None)
        counts.connected |= first is not None and is_shared(first)
    if torch.cuda.is_initialized():
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
        counts.gpus = [str(getattr(torch.cuda.get_device_properties(index), "uuid", index)) for index in used]


def place_jax(counts, jax):
    """Note the devices that hold arrays, and the process's place among several ones."""
    devices = {f"{device.platform}:{device.id}" for array in jax.live_arrays() for device in array.devices()}
    counts.gpus = sorted(devices)
    if jax.process_count() > 1:
        counts.rank, counts.world, counts.connected = jax.process_index(), jax.process_count(), True


def weights_of(optimizer):
    """Yield the parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def length_of(iterator):
    """Return the samples of the data set of a loader's iterator; 0 if it is not known."""
    try:
        return len(iterator._dataset)
    except Exception:  # a stream has no length
        return 0


def is_shared(weights):
    """Return whether processes share the memory of these weights, as in Hogwild."""
    return weights.device.type == "cpu" and weights.is_shared()


def checksum(optimizer):
    """Return the sum of the first weights, which replicas have in common; None for a shard, or for shared memory."""
    first = next(weights_of(optimizer), None)
    if (
        first is None
        or is_shared(first)
        or any(hasattr(first, name) for name in OF_SHARDS)
        or any(name in sys.modules for name in SHARDING)
    ):
        return None
    return float(first.detach().double().sum())


def size_of(batch):
    """Return the samples of a batch, from its first tensor, and its tokens, if it has `input_ids`."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        ids, mask = (batch[name] if name in batch else None for name in ("input_ids", "attention_mask"))
        if hasattr(ids, "shape") and len(ids.shape):
            on_host = hasattr(mask, "shape") and getattr(getattr(mask, "device", None), "type", "") == "cpu"
            return int(ids.shape[0]), int(mask.sum()) if on_host else math.prod(ids.shape)
        batch = [batch[key] for key in batch.keys()]
    if hasattr(batch, "shape"):
        return (int(batch.shape[0]), 0) if len(batch.shape) else (0, 0)
    if isinstance(batch, (list, tuple)):
        for part in batch:
            samples, tokens = size_of(part)
            if samples:
                return samples, tokens
    return 0, 0


def content_of(batch):
    """Return the sum of the first values of each tensor of a batch; None if it has no tensors."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        batch = [batch[key] for key in batch.keys()]
    if isinstance(batch, (list, tuple)):
        sums = [content for content in map(content_of, batch) if content is not None]
        return sum(sums) if sums else None
    try:
        return float(batch.reshape(-1)[:COMPARED_VALUES].double().sum())
    except Exception:  # no tensor, or one of an unusual kind
        return None


def watch_optimizers(module):
    """Have each optimizer counted, and each of its steps."""
    begin = module.Optimizer.__init__

    def begin_counted(self, *args, **kwargs):
        TRAINING.counts.optimizers += 1
        return begin(self, *args, **kwargs)

    module.Optimizer.__init__ = begin_counted
    module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: TRAINING.step(optimizer))


def watch_loaders(module):
    """Have the samples of each batch counted: its indices, or its rows if the data set has none.

    Workers fetch ahead, so that the numbers of indices wait for their batches. An iterator that workers keep alive is
    reset for each epoch.
    """
    iterator = module._BaseDataLoaderIter
    start = iterator.__init__
    next_batch, next_index, reset = iterator.__next__, iterator._next_index, iterator._reset

    def starting(self, loader):
        TRAINING.begin(self)
        return start(self, loader)

    def following(self):
        batch = next_batch(self)
        waiting = getattr(self, "sweep_indices", None)
        TRAINING.batch(self, batch, waiting.pop(0) if waiting else None)
        return batch

    def following_index(self):
        index = next_index(self)
        if isinstance(index, list) and None not in index:
            self.__dict__.setdefault("sweep_indices", []).append(len(index))
        return index

    def begin(self, loader, first_iter=False):
        self.__dict__.pop("sweep_indices", None)
        if not first_iter:
            TRAINING.begin(self)
        return reset(self, loader, first_iter)

    iterator.__init__, iterator.__next__ = starting, following
    iterator._next_index, iterator._reset = following_index, begin


def watch_modes(module):
    """Have evaluations noticed. `train` stays as it is: many programs call it in each step, and it calls all layers."""
    evaluate = module.Module.eval

    def begin_evaluation(self):
        if self._modules:  # not a single layer
            TRAINING.evaluation(self)
        return evaluate(self)

    module.Module.eval = begin_evaluation


def watch_gradients(module):
    """Have passes without gradients noticed, in which a model may be evaluated without being set to evaluate."""
    for context in (module.no_grad, module.inference_mode):
        context.__enter__, context.__exit__ = awaiting(context.__enter__), forgetting(context.__exit__)


def awaiting(enter):
    """Return the method that also awaits the call of a module, unless an evaluation has begun."""

    def enter_and_await(self):
        entered = enter(self)
        if TRAINING.counts.whole.steps and not TRAINING.paused and not TRAINING.is_marked:
            TRAINING.await_forward()
        return entered

    return enter_and_await


def forgetting(leave):
    """Return the method that also awaits no call any longer."""

    def leave_and_forget(self, *error):
        TRAINING.forget_forward()
        return leave(self, *error)

    return leave_and_forget


def watch_checkpoints(module):
    """Have checkpoints noticed."""
    save = module.save

    def save_with_pause(*args, **kwargs):
        TRAINING.pause()
        return save(*args, **kwargs)

    module.save = save_with_pause


def watch_trainer(module):
    """Give every Trainer the callback."""
    from sweep_frameworks import transformers_callback  # beside this file

    module.DEFAULT_CALLBACKS.append(transformers_callback(module.TrainerCallback))


def watch_keras(module):
    """Give every training of Keras 3 the callback."""
    from sweep_frameworks import keras_callback  # beside this file

    begin = module.CallbackList.__init__

    def begin_with_callback(self, callbacks=None, *args, **kwargs):
        given = [] if callbacks is None else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        own = keras_callback(sys.modules["keras.src.callbacks.callback"].Callback)
        begin(self, [*given, own], *args, **kwargs)

    module.CallbackList.__init__ = begin_with_callback


def watch_keras_batches(module):
    """Have the batch size of each training of Keras noticed."""
    begin = module.EpochIterator.__init__

    def begin_noted(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        TRAINING.keras_iterator = weakref.ref(self)

    module.EpochIterator.__init__ = begin_noted


def watch_fastai(module):
    """Give every learner of fastai the callback."""
    from sweep_frameworks import fastai_callback  # beside this file

    module.defaults.callbacks = [*module.defaults.callbacks, fastai_callback(module.Callback)]


WATCHED = {
    "torch.optim.optimizer": watch_optimizers,
    "torch.utils.data.dataloader": watch_loaders,
    "torch.nn.modules.module": watch_modes,
    "torch.autograd.grad_mode": watch_gradients,
    "torch.serialization": watch_checkpoints,
    "transformers.trainer": watch_trainer,
    "keras.src.callbacks.callback_list": watch_keras,
    "keras.src.trainers.epoch_iterator": watch_keras_batches,
    "fastai.learner": watch_fastai,
}
"""What is done once a module has been imported."""


class Loader(importlib.abc.Loader):
    """Another loader, followed by what is done after the import."""

    def __init__(self, loader, after):
        self.loader, self.after = loader, after

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            self.after(module)
        except Exception as error:  # the command must not fail because it is watched
            print(f"sweep hook: {module.__name__}: {type(error).__name__}: {error}", file=sys.stderr)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the watched modules as the other finders do."""

    def find_spec(self, name, path=None, target=None):
        if name == "sweep_step":  # also beside a folder of this name
            return importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader, WATCHED[name])
                return spec
        return None


def after_fork():
    """Count anew in a child process."""
    global TRAINING
    TRAINING = Training()


def at_exit():
    """Write the last counts; those of a process that could have trained, and took no step, too."""
    if "torch" in sys.modules or TRAINING.is_marked:
        TRAINING.catch_up()
        TRAINING.write()


def run_next():
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if FOLDER:
    write_file(f"{os.getpid()}.started", "")
    sys.meta_path.insert(0, Finder())
    os.register_at_fork(after_in_child=after_fork)
    atexit.register(at_exit)
run_next()
