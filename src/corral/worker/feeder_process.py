"""A feeder in a separate process. So receiving, fetching, decoding and settling use another CPU core than `predict`.

The parent and the child exchange frames over a pair of sockets. Arrays are sent as they are in memory (pickle protocol 5 with
buffers out of band), so a decoded image is copied only once.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import struct
import threading
from contextlib import suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from .errors import WorkerError
from .feeder import Feeder, FeederEvents, FeederOptions
from .items import Item
from .settlement import Fate, Settlement

HEAD = struct.Struct("!QI")  # bytes of the pickle, number of buffers
SIZE = struct.Struct("!Q")
SOCKET_BYTES = 4 * 1024 * 1024
REPORTS_MAX = 64  # the maximum number of reports in one frame
# The time limit of `close` in a child whose parent has ended. Also how much longer than `within_s` a parent waits for its child.
ABANDONED_S = 10.0


class FeederProcess:
    """Controls the feeder of a child process. `settle`, `stop`, `return_all` and `close` call the same method in the child."""

    def __init__(self, number: int, options: FeederOptions, events: FeederEvents, context: BaseContext) -> None:
        self.number = number
        self._events = events
        self._options = options
        self._context = context
        self._sending = threading.Lock()
        self._is_closing = False
        self._reader = threading.Thread(target=self._read, name=f"worker-feeder-{number}", daemon=True)

    def fork(self) -> None:
        """Start the process. Call this before the worker starts its first thread."""
        self._socket, theirs = socket.socketpair()
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        arguments = (theirs, self._socket, self.number, self._options)
        name = f"worker-feeder-{self.number}"
        self._process: BaseProcess = self._context.Process(target=_child, args=arguments, name=name)  # type: ignore[attr-defined]
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerError(f"decode cannot be sent to a process: define it at the top level of a module. {error}") from error
        theirs.close()

    def start(self) -> None:
        self._reader.start()

    def settle(self, settlements: list[Settlement]) -> None:
        self._order("settle", settlements)

    def stop(self) -> None:
        self._order("stop")

    def return_all(self) -> None:
        self._order("return_all")

    def close(self, within_s: float) -> None:
        self._is_closing = True
        self._order("close", within_s)
        self._process.join(within_s + ABANDONED_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._socket.close()

    def abandon(self) -> None:
        """Close the connection. Then the child returns its messages and ends."""
        self._is_closing = True
        with suppress(OSError):
            # `close` is not enough, because feeders that were forked later have copies of the socket.
            self._socket.shutdown(socket.SHUT_RDWR)

    def _order(self, *words: Any) -> None:
        try:
            with self._sending:
                send_frame(self._socket, words)
        except OSError:
            pass  # the child has ended, which the reader reports

    def _read(self) -> None:
        try:
            while (frame := receive_frame(self._socket)) is not None:
                for report in frame:
                    getattr(self._events, report[0])(*report[1:])
        except OSError:
            pass
        if not self._is_closing:
            self._process.join(1.0)
            code = self._process.exitcode
            self._events.broken(
                self.number,
                WorkerError(
                    f"Feeder process {self.number} ended with exit code {code}. Its messages return when their visibility timeout "
                    "ends. Negative codes are signals: -9 usually means too little memory (pass fewer processes or a lower "
                    "prefetch), and -11 a crash in the decode function."
                ),
            )


class _Reports:
    """The FeederEvents in the child process. It sends each event to the parent as a report, and several reports in one frame."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="worker-reports", daemon=True)
        self._thread.start()

    def ready(self, items: list[Item]) -> None:
        self._waiting.put(("ready", items))

    def holds(self, feeder: int, count: int) -> None:
        self._waiting.put(("holds", feeder, count))

    def settled(self, fate: Fate, count: int) -> None:
        self._waiting.put(("settled", fate, count))

    def broken(self, feeder: int, error: Exception) -> None:
        self._waiting.put(("broken", feeder, error))

    def empty(self, feeder: int) -> None:
        self._waiting.put(("empty", feeder))

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _send(self) -> None:
        is_open = True
        while is_open:
            reports = [self._waiting.get()]
            while not self._waiting.empty() and len(reports) < REPORTS_MAX:
                reports.append(self._waiting.get())
            is_open = None not in reports
            try:
                self._send_all([report for report in reports if report is not None])
            except OSError:
                return  # the parent has ended

    def _send_all(self, reports: list[tuple[Any, ...]]) -> None:
        try:
            send_frame(self._connection, reports)
        except OSError:
            raise
        except Exception:  # nothing was sent yet, so find the item that causes the error
            for report in reports:
                _make_picklable(report)
            send_frame(self._connection, reports)


def _make_picklable(report: tuple[Any, ...]) -> None:
    for item in report[1] if report[0] == "ready" else ():
        try:
            pickle.dumps(item, protocol=5)
        except Exception as error:
            kind, item.data = type(item.data).__name__, None
            item.fail(
                f"decode returned a value of type {kind}, which cannot be sent to another process ({error}): "
                "return a NumPy array or bytes"
            )


def _child(connection: socket.socket, parents_end: socket.socket, number: int, options: FeederOptions) -> None:
    """The main function of the child. It executes the parent's calls until the parent calls `close` or closes the connection."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # a terminal and Corral send signals to the whole group; only the parent handles them
    signal.set_wakeup_fd(-1)
    parents_end.close()
    reports = _Reports(connection)
    try:
        feeder = Feeder(number, options, reports)
    except Exception as error:
        reports.broken(number, WorkerError(f"Feeder process {number} did not start: {type(error).__name__}: {error}"))
        reports.close()
        return
    feeder.start()
    within_s = ABANDONED_S
    try:
        while (order := receive_frame(connection)) is not None:
            if order[0] == "close":
                within_s = order[1]
                break
            getattr(feeder, order[0])(*order[1:])
        else:
            feeder.return_all()
    except OSError:
        feeder.return_all()
    feeder.stop()
    closing = threading.Thread(target=feeder.close, args=(within_s,), daemon=True)
    closing.start()
    reader = threading.Thread(target=_settle_until_closed, args=(connection, feeder), daemon=True)
    reader.start()
    closing.join()
    reports.close()
    os._exit(0)  # end the process even if threads of the user's decode function still run


def _settle_until_closed(connection: socket.socket, feeder: Feeder) -> None:
    """Execute the parent's calls of `settle` while the feeder closes. When the connection ends, return all messages."""
    try:
        while (order := receive_frame(connection)) is not None:
            if order[0] == "settle":
                feeder.settle(*order[1:])
    except OSError:
        pass
    feeder.return_all()


def send_frame(connection: socket.socket, content: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = b"".join(SIZE.pack(view.nbytes) for view in views)
    connection.sendall(b"".join((HEAD.pack(len(body), len(views)), sizes, body)))
    for view in views:
        connection.sendall(view)


def receive_frame(connection: socket.socket) -> Any:
    """Return the next frame, or None if the other process has closed the connection."""
    head = _exactly(connection, HEAD.size)
    if head is None:
        return None
    length, count = HEAD.unpack(head)
    rest = _exactly(connection, count * SIZE.size + length)
    if rest is None:
        return None
    sizes = [SIZE.unpack_from(rest, at * SIZE.size)[0] for at in range(count)]
    space = _exactly(connection, sum(sizes))
    if space is None:
        return None
    whole, buffers, at = memoryview(space), [], 0
    for size in sizes:
        buffers.append(whole[at : at + size])
        at += size
    return pickle.loads(memoryview(rest)[count * SIZE.size :], buffers=buffers)


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    space = bytearray(size)
    view, at = memoryview(space), 0
    while at < size:
        got = connection.recv_into(view[at:], 0, socket.MSG_WAITALL)
        if not got:
            return None
        at += got
    return space
