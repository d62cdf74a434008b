"""Whether the head of a Ray cluster answers at an address, asked before Ray connects.

Where something else listens, or what `auto` finds has ended since, `ray.init` would print a warning every few seconds
for a quarter of an hour.
"""

from __future__ import annotations

import ray
from ray._private.services import canonicalize_bootstrap_address

ANSWER_S = 30.0
"""How long a busy head may take."""


def check_head(address: str) -> None:
    """Raise ConnectionError, in one line, if no head answers. One that wants a token, or another one, has answered."""
    found = canonicalize_bootstrap_address(address)  # of `auto`: the cluster that was started here last
    if found is None:  # `auto` found none, which Ray says by itself
        return
    try:  # nothing of it is Ray's public interface
        import grpc
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
        from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
    except ImportError:  # another version of Ray, which then connects without having been asked
        return
    where = f"{found}, which auto stands for" if address == "auto" else address
    with init_grpc_channel(found) as channel:
        try:
            NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=ANSWER_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                told = f"what answers at {where} is not the head of a cluster of Ray {ray.__version__}"
                raise ConnectionError(told) from error
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ConnectionError(f"no Ray cluster answers at {where}") from error
