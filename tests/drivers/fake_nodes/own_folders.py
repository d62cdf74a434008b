"""Nodes for tests of Ray's autoscaler: processes on this machine, each with its own folder, as real hosts have.

Ray's fake nodes share a folder, and each new one unpacks the shipped code again, over the running code.
"""

import itertools
from functools import partial
from typing import Any
from unittest.mock import patch

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

_numbers = itertools.count(1)


class Provider(FakeMultiNodeProvider):  # type: ignore[misc]
    """A node provider, named in an autoscaler's config; Ray imports it in its monitor process."""

    def _create_node_with_resources_and_labels(self, *given: Any) -> None:
        own = partial(parameter.RayParams, runtime_env_dir_name=f"runtime_resources_{next(_numbers)}")
        with patch.object(parameter, "RayParams", own):
            super()._create_node_with_resources_and_labels(*given)
