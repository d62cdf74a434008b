"""Ray imports this in every process that it starts, where it was started here: see `prepared`."""

from orchestrator.backends.on_ray.prepared import prepare

prepare()
