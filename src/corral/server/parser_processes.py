"""Parses large bodies in other processes, because the parsers of JSON and XML stop all threads of a process while they run.

A process is started when it is needed, and ends when it has been idle for IDLE_S. If it is killed, or takes longer than
PARSE_MAX_S, the request gets an error, and the next request starts another process. `aws/parse/effort.py` decides which bodies are
parsed here.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corral import aws
from corral.aws.wire_errors import error_class
from corral.core.errors import ServiceUnavailable, api_error
from corral.server.parser_program import VERSION, receive, send

PROGRAM = "corral.server.parser_program"
PROCESSES_MAX = 2
PARSE_MAX_S = 20.0
IDLE_S = 30.0
KILLED = "The process that parsed the request has ended. Nothing was changed: send the request again."
TOO_SLOW = f"Parsing the request takes longer than {PARSE_MAX_S:.0f} seconds: send a smaller request."

RequestTooLarge = api_error("RequestEntityTooLarge", 413)


class ParserProcess:
    """One process, which parses one request at a time. The calling threads wait for it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "AWS_"))},
                cwd="/",
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.used_s = time.monotonic()

    def parse(self, job: bytes, body: bytes) -> tuple[Any, list[tuple[tuple[str, ...], list[Any]]] | None]:
        """Return what `parser_program.answer` yields. Raise an ApiError if the process does not answer."""
        self._socket.settimeout(PARSE_MAX_S)
        try:
            send(self._socket, job)
            send(self._socket, body)
            found, pieces = self._receive()
            return found, None if pieces is None else [self._receive() for _ in range(pieces)]
        except TimeoutError:
            self.end()
            raise RequestTooLarge(TOO_SLOW) from None
        except OSError:
            self.end()
            raise ServiceUnavailable(KILLED) from None

    def _receive(self) -> Any:
        message = receive(self._socket)
        if message is None:
            raise ConnectionResetError
        return marshal.loads(message)

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


class ParserProcesses:
    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[ParserProcess] = []  # the process that was used last is last

    async def params(self, call: aws.ApiCall) -> dict[str, Any]:
        """Return the parameters of a request, as `call.params` does."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(PROCESSES_MAX, thread_name_prefix="parsers")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._params, call)
        finally:
            loop.call_later(IDLE_S + 1, self._end_idle)

    def _params(self, call: aws.ApiCall) -> dict[str, Any]:
        request, codecs = call.request, (call.service, call.operation, call.protocol, call.codecs.wire)
        head = (request.method, request.path, request.query, dict(request.headers))
        job = marshal.dumps((codecs, dict(call.located), head), VERSION)
        try:
            process = self._idle.pop()
        except IndexError:
            process = ParserProcess()
        found, pieces = process.parse(job, request.body)
        process.used_s = time.monotonic()
        self._idle.append(process)
        if pieces is None:
            code, status, message, members = found
            raise error_class(code, status)(message, **members)
        for (*outer, name), elements in pieces:
            structure = found
            for part in outer:
                structure = structure[part]
            structure[name] += elements
        params: dict[str, Any] = found
        return params

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that are idle."""
        return [process.pid for process in self._idle]

    def close(self) -> None:
        for process in self._idle:
            process.end()
        self._idle.clear()

    def _end_idle(self) -> None:
        """End the processes that have been idle for a while, in a thread, because that takes some milliseconds."""
        assert self._threads is not None
        while self._idle and time.monotonic() - self._idle[0].used_s > IDLE_S:
            self._threads.submit(self._idle.pop(0).end)
