"""The counts of one process of a trial's command, which the hook in it writes and the trial's adapter reads."""

from __future__ import annotations

import json

COMPARED_STEPS = 5  # after so many steps, the weights and the samples so far are compared between ranks
WARMUP_STEPS = 10
WARMUP_S = 0.3


class Tally:
    """Steps that count, with their seconds, samples and tokens."""

    def __init__(self, steps: int = 0, seconds: float = 0.0, samples: int = 0, tokens: int = 0) -> None:
        self.steps, self.seconds, self.samples, self.tokens = steps, seconds, samples, tokens

    def add(self, seconds: float, samples: int, tokens: int) -> None:
        """Count a step."""
        self.steps += 1
        self.seconds += seconds
        self.samples += samples
        self.tokens += tokens

    def take_back(self, samples: int, tokens: int) -> None:
        """Count a step without a time no longer."""
        self.steps -= 1
        self.samples -= samples
        self.tokens -= tokens

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / max(1, self.steps)


class Counts:
    """The counts of one process so far."""

    def __init__(self) -> None:
        self.at_s = 0.0  # the time of the last step, in seconds since 1970; 0 without a step
        self.cpu_s = 0.0  # the CPU time of the process at that time
        self.optimizers = 0  # optimizers that were made, whether or not they took a step
        self.epoch = 0  # passes over the loader that trains, including one that has begun
        self.completed = 0  # steps of the passes before the current one
        self.completed_samples = 0  # their samples
        self.dataset = 0  # samples of the data set of the loader; 0 if unknown
        self.is_input = False  # whether the samples are the rows of the model's inputs, because no loader gave them
        self.rates: list[list[float]] = []
        """Learning rates along the training: the step, and the rate of each parameter group."""
        self.other_optimizer_steps = 0  # steps of other optimizers than the first one, among those that count
        self.other_steps = 0  # steps that trained another model, and do not count
        self.gradless = False  # whether the model also runs without gradients in most steps, which counts as training
        self.loss: float | None = None  # the last loss of a step that the program marked
        self.weights: float | None = None
        """The sum of the first weights after the same step in all ranks; None for a shard, or before that step."""
        self.content: float | None = None
        """The sum of the first batches; None if they are all the same, or have no tensors."""
        self.n_params = 0  # parameters that the optimizers train; 0 if unknown, because each rank has a part of them
        self.rank = 0
        self.world = 1  # ranks of the process group; 1 without one
        self.connected = False  # whether the process exchanges gradients with others
        self.gpus: list[str] = []  # the ids of the GPUs on which the process has memory
        self.framework = ""  # `transformers` or `lightning`, if their callbacks report the metrics
        self.saved = ""  # the last checkpoint outside the trial's folder
        self.whole = Tally()  # all steps
        self.warm = Tally()  # steps after the warm-up
        self.later = Tally()  # steps from the second pass on

    @property
    def is_compared(self) -> bool:
        """True if the samples of the next step are compared between ranks."""
        return self.whole.steps < COMPARED_STEPS

    def begin_epoch(self, number: int) -> None:
        """Note that the training begins an epoch, counted from 1."""
        if number != self.epoch:
            self.epoch, self.completed, self.completed_samples = number, self.whole.steps, self.whole.samples

    def add(self, seconds: float | None, samples: int, tokens: int, *, running_s: float) -> None:
        """Count a step, `running_s` after the first one; `seconds` is None if the time is not that of a step alone."""
        self.whole.add(seconds or 0.0, samples, tokens)
        if seconds is None:
            return
        if self.whole.steps > WARMUP_STEPS and running_s >= WARMUP_S:
            self.warm.add(seconds, samples, tokens)
        if self.epoch > 1:
            self.later.add(seconds, samples, tokens)

    def lengthen(self, seconds: float) -> None:
        """Add time to the steps so far."""
        for tally in (self.whole, self.warm, self.later):
            tally.seconds += seconds if tally.steps else 0.0

    def anew(self) -> Counts:
        """Return counts without steps, of the same process."""
        counts = Counts()
        counts.optimizers, counts.framework, counts.saved = self.optimizers, self.framework, self.saved
        return counts

    def to_json(self) -> str:
        """Return the counts as one line."""
        return json.dumps(self, default=vars)  # json.dump is slower

    @staticmethod
    def of_json(text: str) -> Counts:
        """Read the counts that another process wrote."""
        counts = Counts()
        for name, value in json.loads(text).items():
            setattr(counts, name, Tally(**value) if isinstance(value, dict) else value)
        return counts
