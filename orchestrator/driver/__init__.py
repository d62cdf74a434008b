"""A driver's time with a sweep, from its lock to its report."""
