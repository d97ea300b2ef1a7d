"""A container, for the pause program: the Docker engine lists, freezes and continues its processes, and sets its memory limit."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from corral.node.run_freezer import CannotFreeze

ENGINE_MAX_S = 30.0  # how long the engine may take to freeze a container


class ContainerRun:
    others: list[tuple[int, float]]

    def __init__(self, engine: str, container: str) -> None:
        self._engine = engine
        self._container = container
        self._path = f"/containers/{container}"
        self.others = []

    def pids(self) -> list[int]:
        status, top = self._request("GET", f"{self._path}/top?ps_args={quote('-eo pid')}")
        if status in (404, 409, 500) and not self._is_running():
            return []
        if status != 200:
            raise CannotFreeze(f"the Docker engine does not list the processes of the container: {_message(top)}")
        pids = sorted({int(line[0]) for line in top["Processes"]})
        visible = [pid for pid in pids if is_inside(pid, self._container)]
        if pids and not visible and self._is_running():
            raise CannotFreeze("the agent does not see the processes of the container: does it run in a container itself?")
        return visible

    def freeze(self) -> list[int]:
        status, answer = self._request("POST", f"{self._path}/pause")
        if status >= 400 and not self._state().get("Paused"):
            raise CannotFreeze(f"the Docker engine does not pause the container: {_message(answer)}")
        return self.pids()

    def thaw(self) -> list[int]:
        status, answer = self._request("POST", f"{self._path}/unpause")
        if status >= 400 and self._state().get("Paused"):
            raise CannotFreeze(f"the Docker engine does not continue the container: {_message(answer)}")
        return self.pids()

    def memory(self) -> dict[str, tuple[int, int]]:
        config = self._inspect().get("HostConfig", {})
        if not config.get("Memory"):
            return {}
        _, usage = self._request("GET", f"{self._path}/stats?stream=false&one-shot=true")
        used = usage.get("memory_stats", {}).get("usage", 0) if isinstance(usage, dict) else 0
        return {"Memory": (int(config["Memory"]), int(used))}

    def set_limit(self, where: str, size: int) -> None:
        """Set the memory limit of the container. Its limit of memory and swap moves by the same number of bytes."""
        config = self._inspect().get("HostConfig", {})
        swap = int(config.get("MemorySwap") or 0)
        limits = {"Memory": size, "MemorySwap": swap + size - int(config["Memory"]) if swap > 0 else swap}
        status, answer = self._request("POST", f"{self._path}/update", limits)
        if status >= 400:
            raise CannotFreeze(f"the Docker engine does not change the memory limit of the container: {_message(answer)}")

    def room(self) -> int | None:
        return None  # the engine puts the cgroups of containers into one without a limit

    def _is_running(self) -> bool:
        return bool(self._state().get("Running"))

    def _state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._inspect().get("State", {})
        return state

    def _inspect(self) -> Mapping[str, Any]:
        status, about = self._request("GET", f"{self._path}/json")
        if status == 404:
            return {}
        if status >= 400:
            raise CannotFreeze(f"the Docker engine does not describe the container: {_message(about)}")
        found: Mapping[str, Any] = about
        return found

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Send a request to the engine. Return the status and the parsed response. HTTP/1.0 has no chunks."""
        text = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        response = b""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
                connection.settimeout(ENGINE_MAX_S)
                connection.connect(self._engine)
                connection.sendall(head.encode() + text)
                while part := connection.recv(65_536):
                    response += part
            start, _, content = response.partition(b"\r\n\r\n")
            status = int(start.split(b" ", 2)[1])
            return status, orjson.loads(content) if content.strip() else None
        except OSError as error:
            raise CannotFreeze(f"the Docker engine does not answer: {error}") from None
        except (ValueError, IndexError):
            raise CannotFreeze("the answer of the Docker engine was not understood") from None


def is_inside(pid: int, container: str) -> bool:
    """Whether a process of this machine is in a container. An agent in a container sees other processes with the same pids."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _message(answer: Any) -> str:
    return str(answer.get("message", answer)) if isinstance(answer, dict) else str(answer)
