"""Imported by every process of a Ray cluster started here: see `import_ahead`."""

from orchestrator.backends.on_ray.import_ahead import prepare

prepare()
