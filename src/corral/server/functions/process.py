"""One process of a Lambda function. It runs one invocation at a time, and its output is written to CloudWatch Logs.

The program of the process is `functions/supervisor.py`. The lifeline is a socket between the server and the process. The process
ends when the server closes the lifeline. So the process also ends when the server is killed. When the process ends by itself, it
writes the reason to the lifeline. An exit status cannot carry the reason, because a function can end with any exit status.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import logging
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import rmtree
from time import monotonic
from typing import Annotated, TypeVar
from zipfile import ZipFile

import msgspec
from msgspec import Meta, Struct

from corral.core.clock import Clock
from corral.core.errors import ApiError
from corral.model.function import InvocationOrder, InvocationOutcome
from corral.model.run import LOG_EVENT_MAX_BYTES
from corral.server.lanes import Lane
from corral.services.logs.ingestion import write_events
from corral.telemetry import LogStore

log = logging.getLogger("corral")

Message = TypeVar("Message")

PROGRAM = Path(__file__).parents[2] / "functions" / "supervisor.py"
TOO_MUCH_MEMORY = "memory"  # the reason if the function has used more memory than its limit (`functions/supervisor.py`)
# The code of a function may take this long to load, or as long as the timeout of the function if the timeout is longer. The timeout
# of an invocation begins when the code is loaded.
LOAD_MAX_S = 60.0
END_MAX_S = 10.0  # how long the server waits for the end of a process before it kills the process
RESULT_MAX_BYTES = 6 * 1024 * 1024
TAIL_BYTES = 4096  # the response of Invoke can contain this many bytes from the end of the log of the invocation
REASON_MAX_BYTES = 16
FLUSH_S = 0.2  # output is written to the log at this interval while the function runs
# If a process prints more than this between two writes to the log, the server reads its output only after the next write.
PENDING_MAX_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
TIME_MAX_MS = 1e9
LENGTH = struct.Struct(">I")
INHERITED = ("LANG", "LD_LIBRARY_PATH", "PATH")  # the environment variables of the server that a function sees


class ProcessEnded(Exception):
    """The process has ended before it sent the result."""


class ResultTooLarge(Exception):
    """The process wants to send a result of more than RESULT_MAX_BYTES."""


class InvalidMessage(Exception):
    """The process has sent a message that `functions/handler_loop.py` never sends: the code of a function can use its socket."""


class Loaded(Struct, frozen=True):
    """The first message of a process: how long it took to load the code. It has no time if the code cannot be loaded."""

    init_ms: Annotated[float, Meta(ge=0, le=TIME_MAX_MS)] | None = None


class Ended(Struct, frozen=True):
    """The message before the result of an invocation."""

    duration_ms: Annotated[float, Meta(ge=0, le=TIME_MAX_MS)]
    max_memory_mib: Annotated[int, Meta(ge=0, le=2**40)]
    error: bool = False


class FunctionLog:
    """The output of one process. Complete lines become log events."""

    def __init__(self, lane: Lane[LogStore], clock: Clock, place: tuple[str, str, str], owner: str) -> None:
        """`place` has the region, the log group and the log stream, which belongs to `owner`."""
        self._lane = lane
        self._clock = clock
        self._place, self._owner = place, owner
        self._events: list[tuple[int, str]] = []
        self._rest = b""  # an incomplete line
        self._tail = b""
        self.pending_bytes = 0

    def begin(self) -> None:
        self._tail = b""

    def tail(self) -> bytes:
        return self._tail

    def add(self, output: bytes) -> None:
        self.pending_bytes += len(output)
        *lines, self._rest = (self._rest + output).split(b"\n")
        while len(self._rest) > LOG_EVENT_MAX_BYTES:
            end = LOG_EVENT_MAX_BYTES
            while self._rest[end] & 0xC0 == 0x80 and end > LOG_EVENT_MAX_BYTES - 4:  # inside a character of UTF-8
                end -= 1
            lines.append(self._rest[:end])
            self._rest = self._rest[end:]
        for line in lines:
            self._add_line(line)

    def add_line(self, text: str) -> None:
        """Add a line of the server itself, after the output of the function."""
        if self._rest:
            self.add(b"\n")
        self._add_line(text.encode())

    def _add_line(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").replace("\r", "\n").rstrip("\n")
        encoded, at_ms = text.encode(), int(self._clock.wall_s() * 1000)
        self._tail = (self._tail + encoded + b"\n")[-TAIL_BYTES:]
        if not text:
            return
        size = len(text) if len(encoded) <= LOG_EVENT_MAX_BYTES else LOG_EVENT_MAX_BYTES // 4  # a character has up to four bytes
        self._events += [(at_ms, text[at : at + size]) for at in range(0, len(text), size)]

    async def flush(self) -> None:
        events, self._events, self.pending_bytes = self._events, [], len(self._rest)
        if events:
            region, group, stream = self._place
            try:
                await self._lane.submit(lambda tx: write_events(tx, region, group, stream, events, self._owner))
            except ApiError as error:  # for example, the disk is full; the invocation has still succeeded
                log.warning("the log of a function could not be written to %s: %s", group, error)


class FunctionProcess:
    def __init__(self, folder: Path, log: FunctionLog, order: InvocationOrder, on_end: Callable[[FunctionProcess], None]) -> None:
        self.folder = folder
        self.key = order.function_arn, order.revision
        self.started_s = monotonic()
        self._log = log
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._is_loaded = False
        self._paused = False
        self.has_ended = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = self._output = -1  # file descriptors; -1: closed
        self._end_reason = ""  # from the lifeline; empty: the process has not ended, or the supervisor was killed

    async def start(self, code: bytes, order: InvocationOrder, stream: str) -> None:
        with ExitStack() as opened:  # the ends of pipes that only the child process needs
            ours, lifeline = socket.socketpair()
            opened.enter_context(lifeline)
            ours.setblocking(False)
            self._lifeline = ours.detach()
            self._output, output = os.pipe()
            opened.callback(os.close, output)
            own, other = socket.socketpair()
            opened.enter_context(other)
            os.set_blocking(self._output, False)
            await asyncio.to_thread(extract, code, self.folder)
            environment = {
                **{name: os.environ[name] for name in INHERITED if name in os.environ},
                "TZ": ":UTC",
                "HOME": str(self.folder / "tmp"),
                "TMPDIR": str(self.folder / "tmp"),
                "LAMBDA_TASK_ROOT": str(self.folder / "code"),
                **order.environment,
                "AWS_LAMBDA_LOG_STREAM_NAME": stream,
            }
            command = [
                sys.executable, str(PROGRAM), str(lifeline.fileno()), str(other.fileno()), str(order.memory_mib),
                str(self.folder / "code"), order.handler,
            ]  # fmt: skip
            passed = lifeline.fileno(), other.fileno()
            process = self._process = await asyncio.to_thread(self._spawn, command, environment, output, passed)
            self._exit = os.pidfd_open(process.pid)
            self._loop.add_reader(self._exit, self._ended)
            self._loop.add_reader(self._output, self._read_output)
            self._reader, self._writer = await asyncio.open_connection(sock=own)

    def _spawn(
        self, command: list[str], environment: dict[str, str], output: int, passed: tuple[int, ...]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=self.folder / "code",
            pass_fds=passed, start_new_session=True,
        )  # fmt: skip

    @property
    def is_usable(self) -> bool:
        return self._is_loaded and not self.has_ended.is_set()

    async def run(self, order: InvocationOrder) -> InvocationOutcome:
        """Run one invocation. If the invocation takes longer than its timeout, end the process."""
        self._log.begin()
        self._log.add_line(f"START RequestId: {order.id} Version: $LATEST")
        began_s, init_ms, ended = monotonic(), 0.0, None
        flusher = asyncio.create_task(self._flush_regularly())
        try:
            if not self._is_loaded:
                init_ms = await self._send_first(order)
            else:
                self._send(order)
            began_s = monotonic()
            async with asyncio.timeout(order.timeout_s):
                ended = _decoded(await self._read(), Ended)
                result = await self._read()
            succeeded = not ended.error
        except ResultTooLarge as error:
            await self.close()  # the rest of the result is not read
            succeeded, result = False, _failure("Function.ResponseSizeTooLarge", str(error))
        except TimeoutError:
            await self.close()
            succeeded, result = False, self._timed_out(order)
        except ProcessEnded:
            succeeded, result = False, self._exited(order)
        except InvalidMessage as error:
            await self.close()
            log.warning("the function %s was ended: its process sent a message that is not valid (%s)", order.function, error)
            succeeded, result = (
                False,
                _failure("Runtime.InvalidMessage", "The process of the function sent a message that is not valid."),
            )
        finally:
            flusher.cancel()
        self._drain()
        duration_ms = ended.duration_ms if ended is not None else (monotonic() - began_s) * 1000
        self._report(order, duration_ms, init_ms, ended.max_memory_mib if ended is not None else None)
        await self._flush()
        return InvocationOutcome(succeeded, result, self._log.tail(), duration_ms)

    async def _send_first(self, order: InvocationOrder) -> float:
        """Send the first event, and wait until the code is loaded. Return how many milliseconds the load took."""
        self._send(order)
        async with asyncio.timeout(max(LOAD_MAX_S, order.timeout_s)):
            init_ms = _decoded(await self._read(), Loaded).init_ms
        self._is_loaded = init_ms is not None
        return init_ms or 0.0

    def _send(self, order: InvocationOrder) -> None:
        request = {"id": order.id, "arn": order.function_arn, "timeout_s": order.timeout_s}
        if order.context != "null":
            request["client_context"] = json.loads(order.context)
        for message in (json.dumps(request).encode(), order.payload):
            self._writer.write(LENGTH.pack(len(message)) + message)

    async def _read(self) -> bytes:
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > RESULT_MAX_BYTES:
                raise ResultTooLarge(
                    f"Response payload size ({length} bytes) exceeded maximum allowed payload size ({RESULT_MAX_BYTES} bytes)."
                )
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.has_ended.wait(), END_MAX_S)
            raise ProcessEnded from None

    def _timed_out(self, order: InvocationOrder) -> bytes:
        message = f"RequestId: {order.id} Error: Task timed out after {order.timeout_s:.2f} seconds"
        self._log.add_line(message)
        return _failure("Sandbox.Timedout", message)

    def _exited(self, order: InvocationOrder) -> bytes:
        reason = self._end_reason
        if not reason and self._process is not None:
            reason = str(self._process.returncode)
        if reason == TOO_MUCH_MEMORY:
            why = f"signal: killed, because the function used more than its MemorySize of {order.memory_mib} MB"
        elif reason.startswith("-"):
            why = f"signal {reason[1:]}"
        else:
            why = f"exit status {reason}"
        message = f"RequestId: {order.id} Error: Runtime exited with error: {why}"
        self._log.add_line(message)
        return _failure("Runtime.ExitError", message)

    def _report(self, order: InvocationOrder, duration_ms: float, init_ms: float, max_memory_mib: int | None) -> None:
        self._log.add_line(f"END RequestId: {order.id}")
        parts = [
            f"REPORT RequestId: {order.id}",
            f"Duration: {duration_ms:.2f} ms",
            f"Billed Duration: {-(-duration_ms // 1):.0f} ms",
            f"Memory Size: {order.memory_mib} MB",
            *([f"Max Memory Used: {max_memory_mib} MB"] if max_memory_mib is not None else []),
            *([f"Init Duration: {init_ms:.2f} ms"] if init_ms else []),
        ]
        self._log.add_line("\t".join(parts))

    # Output

    def _read_output(self) -> int:
        """Read the available output. Return the number of bytes."""
        try:
            chunk = os.read(self._output, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._output)
            return 0
        self._log.add(chunk)
        if self._log.pending_bytes > PENDING_MAX_BYTES and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._output)
        return len(chunk)

    def _drain(self) -> None:
        """Read the output that is still in the pipe. The function wrote it before its result.

        Do not read more than the pipe can contain, because a thread of the function may print without end.
        """
        left = fcntl.fcntl(self._output, fcntl.F_GETPIPE_SZ)
        while left > 0 and (read := self._read_output()):
            left -= read

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._flush()

    async def _flush(self) -> None:
        await self._log.flush()
        if self._paused:
            self._paused = False
            self._loop.add_reader(self._output, self._read_output)

    # End

    def _ended(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        assert self._process is not None
        self._process.wait()
        with suppress(OSError):  # the lifeline is closed
            self._end_reason = os.read(self._lifeline, REASON_MAX_BYTES).decode(errors="replace")
        self.has_ended.set()
        self._on_end(self)

    async def close(self) -> None:
        """End the process and all processes that it has started, and wait until they have ended."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._process is None:  # it could not be started
            return
        try:
            await asyncio.wait_for(self.has_ended.wait(), END_MAX_S)
        except TimeoutError:
            self._process.kill()
            await self.has_ended.wait()

    async def discard(self) -> None:
        """End the process, and delete its folder."""
        await self.close()
        if self._output >= 0:
            with suppress(AttributeError):
                self._writer.close()
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1
        await asyncio.to_thread(rmtree, self.folder, ignore_errors=True)


def extract(code: bytes, folder: Path) -> None:
    """Extract a zip file into FOLDER/code. Files keep their permission to be executed."""
    (folder / "tmp").mkdir(parents=True, mode=0o700)
    target = folder / "code"
    target.mkdir(mode=0o700)
    with ZipFile(io.BytesIO(code)) as archive:
        for entry in archive.infolist():
            path = archive.extract(entry, target)  # removes ".." and a leading "/" from the name
            if not entry.is_dir() and (entry.external_attr >> 16) & stat.S_IXUSR:
                os.chmod(path, 0o700)


def _decoded(message: bytes, type_: type[Message]) -> Message:
    try:
        return msgspec.json.decode(message, type=type_)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(str(error)[:200]) from None


def _failure(type_: str, message: str) -> bytes:
    return json.dumps({"errorType": type_, "errorMessage": message}).encode()
