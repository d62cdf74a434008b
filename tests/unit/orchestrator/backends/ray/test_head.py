"""Servers that answer at the address of a cluster's head, and a head that is lost.

Servers listen on all interfaces, because Ray calls this machine by its address in the network.
"""

import os
import pty
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from ray.core.generated.gcs_service_pb2 import GetClusterIdReply, GetClusterIdRequest

from orchestrator.backends.ray import head
from orchestrator.backends.ray.head import check_head


@contextmanager
def listener(says):
    """Takes connections, says this on each and closes it; None: says nothing and keeps them."""
    with socket.create_server(("", 0)) as server:
        kept: list[socket.socket] = []

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if says is not None:
                    connection.sendall(says)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


@contextmanager
def server_of(status):
    """One of gRPC, which has no service (None), or has that of a head and refuses with this status; OK answers."""

    def answer(request, context):
        assert status is not None
        if status is not grpc.StatusCode.OK:
            context.abort(status, "no")
        return GetClusterIdReply()

    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    if status is not None:
        method = grpc.unary_unary_rpc_method_handler(
            answer, GetClusterIdRequest.FromString, GetClusterIdReply.SerializeToString
        )
        service = grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", {"GetClusterId": method})
        server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.mark.parametrize("says", [None, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-x\r\n"])
def test_server_that_is_no_head_is_refused(says, monkeypatch):
    monkeypatch.setattr(head, "ANSWER_S", 1.0)
    with listener(says) as address, pytest.raises(ConnectionError, match=r"^no Ray cluster answers at .*:\d+"):
        check_head(address)


def test_other_grpc_server_is_refused():
    with server_of(None) as address, pytest.raises(ConnectionError, match=r"\d is not the head"):
        check_head(address)


def test_ended_cluster_found_by_auto_is_named(monkeypatch):
    monkeypatch.setattr(head.private, "found_address", lambda address: "127.0.0.1:1")
    with pytest.raises(ConnectionError, match="127.0.0.1:1, .*auto"):
        check_head("auto")


@pytest.mark.parametrize("status", [grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED])
def test_head_that_demands_another_token_has_answered(status):
    with server_of(status) as address:
        check_head(address)


PROGRAM = """
import time
from types import SimpleNamespace
from orchestrator.backends.ray import head
head.LOOK_EVERY_S, head.PATIENCE_S = 0.01, 0.1
head.ray.get_runtime_context = lambda: SimpleNamespace(gcs_address="127.0.0.1:1")
with head.head_watched():
    time.sleep(60)  # as in a call of Ray's
"""


def test_lost_head_ends_the_driver_and_restores_the_cursor():
    """And leaves its terminal as it was."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "127.0.0.1:1" in err
    assert "\x1b[?25h" in os.read(ours, 1000).decode()
    os.close(ours)


@pytest.mark.parametrize("address", ["head", "/root", ":6379"])
def test_an_address_without_host_and_port_is_refused(address):
    with pytest.raises(ConnectionError, match="HOST:6379"):
        check_head(address)
