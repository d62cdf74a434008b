"""Writes files that start a cluster and the sweep on it."""
