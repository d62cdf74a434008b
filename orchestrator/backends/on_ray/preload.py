"""Ray imports this in every process that it starts, where it was started here: see `import_ahead`."""

from orchestrator.backends.on_ray.import_ahead import prepare

prepare()
