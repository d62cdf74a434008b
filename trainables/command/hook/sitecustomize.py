# mypy: ignore-errors
"""Started by Python in every process of a trial's command: counts and times its optimizer steps, and reads its metrics.

The command's environment puts this folder on PYTHONPATH and names a folder in SWEEP_HOOK; without that variable nothing
happens. Each process that takes steps writes its counts to `<process id>.json` there, and `sweep_frameworks.py` rows of
metrics to `<process id>.jsonl`. It needs nothing but Python 3.9, and torch if the command uses it.

Times exclude evaluation and checkpoints: an interval between two steps in which either happens does not count. The GPU
is waited for only at the ends of uninterrupted training, so that the steps between run as they would.
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
"""A module that is set to evaluate in more steps, and in more than half of all, is a frozen part of the model."""
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
    """The training in this process."""

    def __init__(self):
        self.counts = Counts()
        self.optimizer = None
        self.iterator = None
        self.pending = {}
        self.evaluated = None
        self.evaluations = weakref.WeakKeyDictionary()
        self.paused = False
        self.last_s = self.first_s = None
        self.written_s = self.looked_s = self.noted_s = 0.0
        self.iterators = self.placed = 0
        self.contents = []
        self.stop_at = None
        self.gpu = Gpu()

    def step(self, optimizer):
        """Count a step of the first optimizer that takes one."""
        if self.optimizer is None:
            self.optimizer = id(optimizer)
        if id(optimizer) != self.optimizer or is_capturing():
            return
        counts = self.counts
        samples, tokens, content = self.taken()
        now_s = time.perf_counter()
        if now_s - self.noted_s >= CPU_EVERY_S:
            self.noted_s, counts.at_s, counts.cpu_s = now_s, time.time(), time.process_time()
        self.first_s = now_s if self.first_s is None else self.first_s
        if self.paused or self.last_s is None:
            # The time since the last step is not that of a step alone.
            now_s = self.gpu.synchronized()
            counts.whole.add(0.0, samples, tokens)
        else:
            seconds = now_s - self.last_s
            counts.whole.add(seconds, samples, tokens)
            if counts.whole.steps > WARMUP_STEPS and now_s - self.first_s >= WARMUP_S:
                counts.warm.add(seconds, samples, tokens)
            if counts.epoch > 1:
                counts.later.add(seconds, samples, tokens)
        self.paused, self.evaluated = False, None
        self.last_s = now_s
        self.gpu.step()
        self.compare(optimizer, content)
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, (int, float)) and rate > counts.lr:
                counts.lr = float(rate)
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

    def taken(self):
        """Return the samples and tokens that the training's loader has given since the last step, and their content."""
        candidates = [key for key, each in self.pending.items() if not each[2]] or list(self.pending)
        key = candidates[-1] if candidates else None
        samples, tokens, _, content = self.pending[key] if key is not None else (0, 0, False, None)
        if key is not None and key != self.iterator:
            self.iterator = key
            self.counts.epoch += 1
            self.counts.completed = self.counts.whole.steps
        self.pending.clear()
        return samples, tokens, content

    def batch(self, iterator, batch, indices):
        """Note a batch that a loader gives, from so many `indices`; those during an evaluation do not count.

        A batch may have other rows than samples: two for a pair, one for several that are packed.
        """
        samples, tokens = size_of(batch)
        samples = indices or samples
        if not hasattr(iterator, "sweep_number"):  # the id of an iterator that has gone may be given again
            self.iterators += 1
            iterator.sweep_number = self.iterators
        before = self.pending.pop(iterator.sweep_number, (0, 0, self.is_evaluating(), 0.0))
        content = content_of(batch) if self.counts.whole.steps < COMPARED_STEPS else None
        content = None if content is None or before[3] is None else before[3] + content
        self.pending[iterator.sweep_number] = (before[0] + samples, before[1] + tokens, before[2], content)

    def evaluation(self, module):
        """Note that a module is set to evaluate: an evaluation begins, unless this happens in most steps."""
        count, step = self.evaluations.get(module, (0, None))
        steps = self.counts.whole.steps
        count += step != steps
        self.evaluations[module] = count, steps
        if count <= max(MOST_EVALUATIONS, steps / 2):
            self.evaluated = weakref.ref(module)
            self.pause()

    def is_evaluating(self):
        """Return whether an evaluation has begun since the last step, and its module does not train again."""
        module = self.evaluated and self.evaluated()
        return module is not None and not module.training

    def pause(self):
        """Note that something other than training happens: the time until the next step does not count."""
        self.catch_up()
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
        """Write the counts so far."""
        path = os.path.join(FOLDER, f"{os.getpid()}.json")
        try:
            with open(f"{path}.part", "w") as file:
                file.write(self.counts.to_json())
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
    torch = sys.modules["torch"]
    counts.connected = any(name in sys.modules for name in WITHOUT_TORCH_DISTRIBUTED)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        counts.rank, counts.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        counts.connected |= counts.world > 1
    else:
        shared = next((weights for group in optimizer.param_groups for weights in group["params"]), None)
        counts.connected |= shared is not None and shared.device.type == "cpu" and shared.is_shared()
    if torch.cuda.is_initialized():
        used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
        counts.gpus = [str(getattr(torch.cuda.get_device_properties(index), "uuid", index)) for index in used]


def checksum(optimizer):
    """Return the sum of the first weights, which replicas have in common; None for a shard."""
    first = next((weights for group in optimizer.param_groups for weights in group["params"]), None)
    if (
        first is None
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
    next_batch, next_index, reset = iterator.__next__, iterator._next_index, iterator._reset

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
        for name in ("sweep_indices", "sweep_number"):
            self.__dict__.pop(name, None)
        return reset(self, loader, first_iter)

    iterator.__next__, iterator._next_index, iterator._reset = following, following_index, begin


def watch_modes(module):
    """Have evaluations noticed. `train` stays as it is: many programs call it in each step, and it calls all layers."""
    evaluate = module.Module.eval

    def begin_evaluation(self):
        if self._modules:  # not a single layer
            TRAINING.evaluation(self)
        return evaluate(self)

    module.Module.eval = begin_evaluation


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


WATCHED = {
    "torch.optim.optimizer": watch_optimizers,
    "torch.utils.data.dataloader": watch_loaders,
    "torch.nn.modules.module": watch_modes,
    "torch.serialization": watch_checkpoints,
    "transformers.trainer": watch_trainer,
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
    if "torch" in sys.modules:
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
    sys.meta_path.insert(0, Finder())
    os.register_at_fork(after_in_child=after_fork)
    atexit.register(at_exit)
run_next()
