"""Files that start a cluster and a sweep on it."""
