"""Logs trials to tracking tools. Each tool has a module, the only one that imports it."""
