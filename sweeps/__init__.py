"""Sweeps as plain values: axes, trials and their identity, batches, and learning-rate rules. Pure Python."""
