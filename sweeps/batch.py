"""Batch arithmetic: global_batch_size = device_batch_size × devices × grad_accum_steps.

A rank is a process; it drives one device, or several, among which its share is divided again.
"""

from __future__ import annotations

from sweeps.number import is_whole
from sweeps.trial import Batch


def divide_global(
    global_batch_size: int, ranks: int, *, devices_per_rank: int = 1, grad_accum_steps: int = 1, uneven: bool = False
) -> Batch:
    """The shares of a global batch. Raises ValueError if it does not divide evenly, unless `uneven`.

    Uneven shares differ by at most one sample, the larger ones first.
    """
    _check_positive("global_batch_size", global_batch_size)
    micro_batch, rest = divmod(global_batch_size, grad_accum_steps)
    if rest:
        raise ValueError(
            f"global_batch_size={global_batch_size} is not divisible by grad_accum_steps={grad_accum_steps}"
        )
    share, larger = divmod(micro_batch, ranks)
    if larger and not uneven:
        raise ValueError(
            f"global_batch_size={global_batch_size} is not divisible by {ranks} ranks × {grad_accum_steps}"
            " accumulation steps (uneven_batch=true allows unequal shares)"
        )
    if not share:
        raise ValueError(f"global_batch_size={global_batch_size} leaves some of {ranks} ranks without a sample")
    shares = tuple(share + (rank < larger) for rank in range(ranks))
    return Batch(
        global_batch_size=global_batch_size,
        grad_accum_steps=grad_accum_steps,
        shares=shares,
        devices_per_rank=devices_per_rank,
    )


def multiply_device(
    device_batch_size: int, ranks: int, *, devices_per_rank: int = 1, grad_accum_steps: int = 1
) -> Batch:
    """The batch in which every device takes `device_batch_size` samples per pass."""
    _check_positive("device_batch_size", device_batch_size)
    share = device_batch_size * devices_per_rank
    return Batch(
        global_batch_size=share * ranks * grad_accum_steps,
        grad_accum_steps=grad_accum_steps,
        shares=(share,) * ranks,
        devices_per_rank=devices_per_rank,
    )


def _check_positive(name: str, value: int) -> None:
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
