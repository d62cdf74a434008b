"""The driver of a sweep, from taking its lock to writing its report."""
