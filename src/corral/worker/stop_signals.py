"""Handles SIGTERM and SIGINT while a worker runs."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
END = b"\0"


class StopSignals:
    """Calls `stop` at the first signal, in another thread. The second signal ends the process.

    Python runs signal handlers in the main thread, which may compute in a library for minutes. But the interpreter writes to the
    wakeup descriptor at once. A thread reads this descriptor and calls `stop`, so messages are returned meanwhile. If the worker
    does not run in the main thread, it cannot handle signals, and this class does nothing.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._received = 0
        self._is_installed = False
        self._watcher = threading.Thread(target=self._watch, name="worker-signals", daemon=True)

    def install(self) -> None:
        """Install the handlers before feeders are forked, so that a signal to the whole process group does not end the feeders."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._is_installed = True

    def watch(self) -> None:
        """Start the thread that reads the descriptor. Call this after feeders are forked."""
        if self._is_installed:
            self._watcher.start()

    def restore(self) -> None:
        if not self._is_installed:
            return
        signal.set_wakeup_fd(self._descriptor)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._writer.send(END)
        if self._watcher.is_alive():
            self._watcher.join()
        self._reader.close()
        self._writer.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received += 1
        if self._received > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _watch(self) -> None:
        while END not in (numbers := self._reader.recv(64)):
            if any(number in SIGNALS for number in numbers):
                self._stop()
