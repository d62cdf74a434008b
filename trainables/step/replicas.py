"""How many models a trial trains: one for all ranks together, or one on each, which know nothing of each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainables.context import Batch, Context
from trainables.process_group import Gang
from trainables.seeds import derive

INDEPENDENT = "independent"


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """As one rank sees them."""

    count: int
    """Models."""
    context: Context
    """Of the rank's own model: its ranks, its batch, its seed. Its metrics and remarks are the trial's."""
    gang: Gang
    """The ranks that train it."""
    ranks: Gang
    """All ranks of the trial."""

    @staticmethod
    def of(context: Context, ranks: Gang) -> Replicas:
        """Where the strategy is `independent`, the first model is the one that a trial of one rank would train."""
        if context.strategy != INDEPENDENT or ranks.world_size == 1:
            return Replicas(count=1, context=context, gang=ranks, ranks=ranks)
        share, passes = context.batch.shares[context.rank], context.batch.grad_accum_steps
        own = replace(
            context,
            rank=0,
            world_size=1,
            seed=derive(context.seed, "replica", context.rank) if context.rank else context.seed,
            batch=Batch(global_batch_size=share * passes, grad_accum_steps=passes, shares=(share,)),
        )
        alone = Gang(rank=0, world_size=1, device=ranks.device, gang_id="")
        return Replicas(count=ranks.world_size, context=own, gang=alone, ranks=ranks)

    def summarize(self, accuracy: float) -> None:
        """Summarize the accuracies of all models; the trial's own is the first one's."""
        if self.count == 1:
            return
        every = self.ranks.each(accuracy)
        self.context.summarize({"replica_accuracies": list(every)})
        accuracies = ", ".join(f"{each:.4f}" for each in every)
        self.context.remark(
            f"{self.count} independent models, of which the first is reported; accuracies: {accuracies}"
        )
