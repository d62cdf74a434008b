"""Which trial starts next, and on which node: no clock, no processes, only values."""
