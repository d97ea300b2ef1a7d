"""The person's end of `corral run -i` and `-it`: a socket at which the task calls, and a relay between it and this terminal."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import termios
import threading
import tty
from pathlib import Path
from types import FrameType

from corral.channel import command_relay
from corral.channel.command_relay import BUFFER_MAX_BYTES, END_OF_INPUT, ERRORS, INPUT, PART_BYTES, SIZE, WINDOW, Frames, frame

SOCKET_PATH_MAX_BYTES = 100  # the system's own bound is 107
DRAIN_S = 5.0


class Attached:
    """One task's input and output: `listen` before it starts, `begin` when it does, `close` in any case.

    Until `begin` the terminal is the person's own, so that one can read why the task waits, and stop it by Ctrl-C.
    """

    def __init__(self, *, has_terminal: bool, out: int) -> None:
        self.has_terminal = has_terminal
        self.begun = False
        self.called = threading.Event()  # the task has called, and has this terminal
        self.ended = threading.Event()  # it has hung up
        self._closed = False
        self.unread = False  # whoever read our output has gone
        self._out = out
        self._stdin = 0
        self._folder = _private_folder()
        self._path = self._folder / "s"
        self._listener = socket.socket(socket.AF_UNIX)
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._cooked = termios.tcgetattr(0) if has_terminal else None

    def wrap(self, command: tuple[str, ...]) -> list[str]:
        kind = "tty" if self.has_terminal else "pipe"
        return [sys.executable, "-I", "-S", command_relay.__file__, kind, str(self._path), "--", *command]

    def listen(self) -> None:
        self._listener.bind(str(self._path))
        self._listener.listen(1)

    def begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        if self.has_terminal:
            signal.signal(signal.SIGWINCH, self._resized)
        self._thread.start()

    def close(self) -> None:
        """Let the last output arrive, and leave the terminal as it was. Twice is once."""
        if self._closed:
            return
        self._closed = True
        if self.begun and (self.called.is_set() or select.select([self._listener], [], [], 0)[0]):
            self._thread.join(DRAIN_S)
        os.write(self._wake, b"q")
        self._restore()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _resized(self, number: int, stack: FrameType | None) -> None:
        os.write(self._wake, b"w")

    def _restore(self) -> None:
        if self._cooked is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._cooked)

    def _serve(self) -> None:
        calls: list[int | socket.socket] = [self._listener, self._woken]
        while self._listener not in select.select(calls, [], [])[0]:
            if b"q" in os.read(self._woken, PART_BYTES):
                return
        link, _ = self._listener.accept()
        self.called.set()
        shutil.rmtree(self._folder, ignore_errors=True)  # nobody else is to call
        try:
            if self.has_terminal:
                tty.setraw(0, termios.TCSADRAIN)
            self._relay(link)
        except BrokenPipeError:
            self.unread = True
        except OSError:
            pass  # the task's end or the person's has gone
        finally:
            self._restore()
            link.close()
            self.ended.set()

    def _relay(self, link: socket.socket) -> None:
        frames, unsent, reading = Frames(), bytearray(), True
        if self.has_terminal:
            unsent += _window()
        while True:
            wanted: list[int | socket.socket] = [link, self._woken]
            if reading and len(unsent) < BUFFER_MAX_BYTES:
                wanted.append(self._stdin)
            readable, writable, _ = select.select(wanted, [link] if unsent else [], [])
            if self._woken in readable:
                said = os.read(self._woken, PART_BYTES)
                if b"q" in said:
                    return
                unsent += _window()
            if self._stdin in readable:
                typed = os.read(self._stdin, PART_BYTES)
                unsent += frame(INPUT, typed) if typed else frame(END_OF_INPUT)
                reading = bool(typed)
            if link in writable:
                try:
                    del unsent[: link.send(unsent[:PART_BYTES])]
                except OSError:  # it does not listen any more; what it said last may still be on its way
                    unsent.clear()
                    reading = False
            if link in readable:
                part = link.recv(PART_BYTES)
                if not part:
                    return
                for kind, payload in frames.feed(part):
                    _write(2 if kind == ERRORS else self._out, payload)


def _private_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="corral-")
    if len(folder) + 2 > SOCKET_PATH_MAX_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="corral-", dir="/tmp")
    return Path(folder)


def _window() -> bytes:
    size = os.get_terminal_size(0)
    return frame(WINDOW, SIZE.pack(size.lines, size.columns))


def _write(fd: int, payload: bytes) -> None:
    while payload:
        payload = payload[os.write(fd, payload) :]
