"""Imported by every process of a Ray cluster started here: see `import_ahead`."""

from orchestrator.backends.ray.preload import prepare

prepare()
