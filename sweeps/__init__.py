"""What a sweep runs: axes, trials and their identity, batches, and learning-rate rules. Pure Python."""
