"""The noise of gradients, and what it allows: its scale, and AdaScale."""
