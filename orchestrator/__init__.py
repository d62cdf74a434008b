"""Sweeps over GPUs, batch sizes and learning-rate rules.

`run_sweep` runs one from a program or a notebook, `load_results` reads what a sweep has left; importing this has no
effects, and imports nothing heavy.
"""

from orchestrator.library import MistakesError, SweepResults, load_results, run_sweep

__all__ = ["MistakesError", "SweepResults", "load_results", "run_sweep"]
