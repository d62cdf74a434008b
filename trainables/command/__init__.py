"""Any training command as a trainable: found, started, read while it runs, and ended as a whole."""
