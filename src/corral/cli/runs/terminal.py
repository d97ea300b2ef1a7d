"""Connects this terminal to the task of `corral run -i`. The task connects to a socket of this process."""

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
from contextlib import suppress
from pathlib import Path
from types import FrameType

from corral.channel import command_relay
from corral.channel.command_relay import BUFFER_MAX_BYTES, END_OF_INPUT, ERRORS, INPUT, PART_BYTES, SIZE, WINDOW, Frames, frame

SOCKET_PATH_MAX_BYTES = 100  # the system's limit is 107 bytes
DRAIN_S = 5.0


class RunTerminal:
    """Relays the input and output of one task. Call `listen` before the task starts, `start` when it starts, and `close` at the
    end.

    Until `start`, the terminal stays in its normal mode. So the user can read why the task waits, and can stop it with Ctrl-C.
    """

    def __init__(self, *, has_terminal: bool, out: int) -> None:
        self.has_terminal = has_terminal
        self.started = False
        self.connected = threading.Event()  # set when the task has connected
        self.ended = threading.Event()  # set when the task has disconnected
        self._closed = False
        self.output_closed = False  # True if the program that reads the output has closed the pipe
        self._out = out
        self._stdin = 0
        self._folder = _private_folder()
        self._path = self._folder / "s"
        self._listener = socket.socket(socket.AF_UNIX)
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._terminal_settings = termios.tcgetattr(0) if has_terminal else None

    def wrap(self, command: tuple[str, ...]) -> list[str]:
        kind = "tty" if self.has_terminal else "pipe"
        return [sys.executable, "-I", "-S", command_relay.__file__, kind, str(self._path), "--", *command]

    def listen(self) -> None:
        self._listener.bind(str(self._path))
        self._listener.listen(1)

    def start(self) -> None:
        if self.started:
            return
        self.started = True
        if self.has_terminal:
            signal.signal(signal.SIGWINCH, self._on_resize)
        self._thread.start()

    def close(self) -> None:
        """Receive the last output and restore the terminal. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self.started and (self.connected.is_set() or select.select([self._listener], [], [], 0)[0]):
            self._thread.join(DRAIN_S)
        os.write(self._wake_writer, b"q")
        self.restore()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _on_resize(self, number: int, stack: FrameType | None) -> None:
        os.write(self._wake_writer, b"w")

    def restore(self) -> None:
        if self._terminal_settings is not None:
            with suppress(termios.error):  # the terminal has closed
                termios.tcsetattr(0, termios.TCSADRAIN, self._terminal_settings)

    def _serve(self) -> None:
        events: list[int | socket.socket] = [self._listener, self._wake_reader]
        while self._listener not in select.select(events, [], [])[0]:
            if b"q" in os.read(self._wake_reader, PART_BYTES):
                return
        link, _ = self._listener.accept()
        self.connected.set()
        shutil.rmtree(self._folder, ignore_errors=True)  # so that no other process can connect
        try:
            if self.has_terminal:
                tty.setraw(0, termios.TCSADRAIN)
            self._relay(link)
        except BrokenPipeError:
            self.output_closed = True
        except OSError:
            pass  # the task or the terminal has disconnected
        finally:
            self.restore()
            link.close()
            self.ended.set()

    def _relay(self, link: socket.socket) -> None:
        frames, unsent, reading = Frames(), bytearray(), True
        if self.has_terminal:
            unsent += _window()
        while True:
            wanted: list[int | socket.socket] = [link, self._wake_reader]
            if reading and len(unsent) < BUFFER_MAX_BYTES:
                wanted.append(self._stdin)
            readable, writable, _ = select.select(wanted, [link] if unsent else [], [])
            if self._wake_reader in readable:
                if b"q" in os.read(self._wake_reader, PART_BYTES):
                    return
                unsent += _window()
            if self._stdin in readable:
                typed = os.read(self._stdin, PART_BYTES)
                unsent += frame(INPUT, typed) if typed else frame(END_OF_INPUT)
                reading = bool(typed)
            if link in writable:
                try:
                    del unsent[: link.send(unsent[:PART_BYTES])]
                except OSError:  # the task reads no more input, but its last output may still arrive
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
