"""Optimizers, their schedules, and what becomes of a learning rate over a training."""
