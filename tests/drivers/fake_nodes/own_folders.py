"""Ray's nodes for tests of its autoscaler, processes on this machine, each with a folder of its own as hosts have it.

Theirs share one, and each that comes unpacks the code that travels once more, over what runs there.
"""

import itertools
from functools import partial
from typing import Any
from unittest.mock import patch

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

_numbers = itertools.count(1)


class Provider(FakeMultiNodeProvider):  # type: ignore[misc]
    """Named in an autoscaler's config; Ray imports it in the process of its monitor."""

    def _create_node_with_resources_and_labels(self, *given: Any) -> None:
        own = partial(parameter.RayParams, runtime_env_dir_name=f"runtime_resources_{next(_numbers)}")
        with patch.object(parameter, "RayParams", own):
            super()._create_node_with_resources_and_labels(*given)
