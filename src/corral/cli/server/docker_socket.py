"""Requests to the Docker engine of this machine."""

from __future__ import annotations

import json
import os
import socket
from typing import Any
from urllib.parse import quote

INSIDE_NETWORK = "corral-inside"
NETWORKS = ("corral", INSIDE_NETWORK)
SOCKET_S = 2.0


def engine_address() -> str:
    """Return the path of the engine's socket. If DOCKER_HOST is the address of another machine, return this address."""
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


def docker_get(path: str, what: str) -> Any:
    return docker_request(path, "GET", what)[1]


def docker_request(path: str, method: str, what: str) -> tuple[int, Any]:
    """Return the status and the document of a response. A response without a body has the document None."""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(SOCKET_S)
        engine.connect(path)
        engine.sendall(f"{method} {what} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        response = b""
        while part := engine.recv(65_536):
            response += part
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body.strip() else None


def running_containers(path: str, host_id: str) -> list[dict[str, Any]]:
    ours = {"label": [f"corral.host={host_id}"], "status": ["running"]}
    found: list[dict[str, Any]] = docker_get(path, f"/containers/json?filters={quote(json.dumps(ours))}")
    return found
