"""Whether a results directory is as it must be."""
