"""The relay of an interactive session. It starts a command and relays the command's input and output over a socket.

The relay is a separate process, `python command_relay.py`. This file imports only the standard library, so that the relay starts
quickly. The relay must be the leader of a Unix session. It has two modes:

For `corral run -i`, the relay is the main process of the task. It connects to a socket of `corral run`. It also copies the
command's output to its own standard output, which becomes the task's log. The relay exits with the command's exit code.

For ExecuteCommand (mode `exec`), the agent starts the relay with one end of a socket pair. The agent passes all frames on to the
server, and the server passes the data on to the client. The relay sends the command's exit code as well. If the session ends, the
relay kills the command after a short grace period.

If the client (`corral run`, or the caller of ExecuteCommand) has a terminal, the relay opens a pseudo terminal and makes it the
controlling terminal of its session. The command then runs in a process group of its own, the foreground group of this terminal.
Otherwise the command runs in the relay's process group.

Both ends of the connection send frames. A frame has one byte for its kind, four bytes for the length of its payload, and the
payload. The kinds are:

    to the command    i input     e end of input      w window size: rows, columns (the first frame, if there is a terminal)
    to the client     o output    r standard error (without a terminal)       x exit code (mode exec: the last frame)
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

INPUT, END_OF_INPUT, WINDOW, OUTPUT, ERRORS, EXIT = b"i", b"e", b"w", b"o", b"r", b"x"
HEAD = struct.Struct("!cI")
SIZE = struct.Struct("!HH")
CODE = struct.Struct("!I")
PART_BYTES = 65_536
BUFFER_MAX_BYTES = 262_144  # if a buffer is full, the relay stops reading until the buffer has space
GRACE_S = 2.0  # in mode exec: seconds between the loss of the connection and SIGKILL
FLUSH_S = 5.0  # the maximum time that `corral run` may take to read the last output; mode exec has no such limit
LAST_READS = 32  # the maximum number of reads after the command has ended; enough to empty a pipe
CANNOT_RUN, NOT_FOUND = 126, 127  # a shell uses the same exit codes
NO_CLIENT = 125
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


class Frames:
    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._bytes += part
        while len(self._bytes) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._bytes)
            end = HEAD.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[HEAD.size : end])
            del self._bytes[:end]
            yield kind, payload


def main(arguments: list[str]) -> int:
    """Run `command_relay.py (tty|pipe) SOCKET -- COMMAND…` or `command_relay.py exec (tty|pipe) DESCRIPTOR -- COMMAND…`."""
    for number in FORWARDED:  # until the command has started, each of these signals ends the relay
        signal.signal(number, signal.SIG_DFL)
    exec_mode = arguments[0] == "exec"
    kind, address, _, *command = arguments[1:] if exec_mode else arguments
    try:
        link = _link(address, exec_mode)
    except OSError as error:
        print(f"corral: this interactive task cannot connect to `corral run` at {address}: {error.strerror}", flush=True)
        return NO_CLIENT
    relay = CommandRelay(link, exec_mode=exec_mode)
    for number in (signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    if kind == "tty":
        relay.start_in_a_terminal(command)
    else:
        relay.start_on_pipes(command)
    return relay.run()


def _link(address: str, exec_mode: bool) -> socket.socket:
    if exec_mode:
        given = socket.socket(fileno=int(address))
        given.set_inheritable(False)
        given.setblocking(True)
        return given
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    return link


class CommandRelay:
    def __init__(self, link: socket.socket, *, exec_mode: bool = False) -> None:
        self._link: socket.socket | None = link
        self._exec_mode = exec_mode
        self._kill_at: float | None = None
        self._frames = Frames()
        self._to_client = bytearray()
        self._to_command = bytearray()
        self._input_ended = False  # True: close the command's input when the buffer is empty
        self._input: int | None = None
        self._outputs: dict[int, bytes] = {}  # descriptor → kind of the frames for its output
        self._terminal: int | None = None
        self._child = 0
        self._woken, self._wake = os.pipe()

    # -- start the command ---------------------------------------------------------------------------------------

    def start_in_a_terminal(self, command: list[str]) -> None:
        import termios  # imported here, because the server imports this module only for its frames

        ours, theirs = os.openpty()
        self._terminal = self._input = ours
        self._outputs = {ours: OUTPUT}
        self._wait_for_window()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        self._child = os.fork()
        if self._child == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(theirs, os.getpid())
            _exec(command, theirs, theirs, theirs)
        with suppress(OSError):  # fails if the child has already set its group and called exec
            os.setpgid(self._child, self._child)
        for number in FORWARDED:
            signal.signal(number, self._signalled)

    def start_on_pipes(self, command: list[str]) -> None:
        """Start the command in the relay's own process group, so that a signal to the task reaches both processes."""
        theirs_in, self._input = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe()
        self._outputs = {ours_out: OUTPUT, ours_err: ERRORS}
        self._child = os.fork()
        if self._child == 0:
            _exec(command, theirs_in, theirs_out, theirs_err)
        for number in FORWARDED:  # the command is in the same process group, so it receives each signal itself
            signal.signal(number, signal.SIG_IGN)
        for fd in (theirs_in, theirs_out, theirs_err):
            os.close(fd)

    def _wait_for_window(self) -> None:
        """Wait for the frame with the window size, so that the command starts with the right size."""
        assert self._link is not None and self._terminal is not None
        is_sized = False
        while not is_sized and (part := self._link.recv(PART_BYTES)):
            for kind, payload in self._frames.feed(part):  # also the frames after the size: `run` would not find them
                self._handle_frame(kind, payload)
                is_sized = is_sized or kind == WINDOW

    # -- relay input and output ----------------------------------------------------------------------------------

    def run(self) -> int:
        ended = os.pidfd_open(self._child)
        for fd in (self._input, *self._outputs):
            assert fd is not None
            os.set_blocking(fd, False)
        if self._link is not None:
            self._link.setblocking(False)
        while True:
            wait_s = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            readable, writable, _ = select.select([ended, self._woken, *self._readable()], self._writable(), [], wait_s)
            if wait_s == 0.0:
                self._signal(signal.SIGKILL)
                self._kill_at = time.monotonic() + GRACE_S
            if self._woken in readable:
                for number in os.read(self._woken, PART_BYTES):
                    self._forward(signal.Signals(number))
            if self._link is not None and self._link in readable:
                self._receive()
            for fd in [fd for fd in self._outputs if fd in readable]:
                self._read_output(fd)
            if self._input is not None and self._input in writable:
                self._write_input()
            if self._link is not None and self._link in writable:
                self._send()
            if ended in readable:
                return self._finish()

    def _readable(self) -> list[int | socket.socket]:
        wanted: list[int | socket.socket] = []
        if self._link is not None and len(self._to_command) < BUFFER_MAX_BYTES:
            wanted.append(self._link)
        if len(self._to_client) < BUFFER_MAX_BYTES:
            wanted += self._outputs
        return wanted

    def _writable(self) -> list[int | socket.socket]:
        pending: list[int | socket.socket] = []
        if self._input is not None and self._to_command:
            pending.append(self._input)
        if self._link is not None and self._to_client:
            pending.append(self._link)
        return pending

    def _receive(self) -> None:
        assert self._link is not None
        try:
            part = self._link.recv(PART_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._disconnect()
        for kind, payload in self._frames.feed(part):
            self._handle_frame(kind, payload)

    def _handle_frame(self, kind: bytes, payload: bytes) -> None:
        if kind == INPUT:
            self._to_command += payload
        elif kind == WINDOW and self._terminal is not None:
            import termios

            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE.unpack(payload), 0, 0))
        elif kind == END_OF_INPUT:
            self._input_ended = True
            self._close_input_if_done()

    def _write_input(self) -> None:
        assert self._input is not None
        try:
            del self._to_command[: os.write(self._input, self._to_command[:PART_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # the command has closed its input, so discard the rest
            self._to_command.clear()
            self._input_ended = True
        self._close_input_if_done()

    def _close_input_if_done(self) -> None:
        if self._input_ended and not self._to_command and self._terminal is None and self._input is not None:
            os.close(self._input)
            self._input = None

    def _read_output(self, fd: int) -> bool:
        """Read output of the command. Return False if there was none.

        Send the output to the client if one is connected. Except in mode exec, also write it to the log.
        """
        try:
            part = os.read(fd, PART_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            del self._outputs[fd]
            return False
        if not self._exec_mode:
            with suppress(OSError):  # the log's disk may be full, but the command must continue
                os.write(1, part)
        if self._link is not None:
            self._to_client += frame(self._outputs[fd], part)
        return True

    def _send(self) -> None:
        assert self._link is not None
        try:
            del self._to_client[: self._link.send(self._to_client[:PART_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect()

    # -- end the session -----------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        """Handle the end of the connection: send SIGHUP to the command, as the kernel does when a terminal closes."""
        assert self._link is not None
        self._link.close()
        self._link = None
        self._to_client.clear()
        self._input_ended = True
        self._signal(signal.SIGHUP)
        self._close_input_if_done()
        if self._exec_mode:
            self._kill_at = time.monotonic() + GRACE_S

    def _signalled(self, number: int, stack: object) -> None:
        os.write(self._wake, bytes([number]))

    def _forward(self, number: signal.Signals) -> None:
        """Forward a signal to the command in a terminal. An interactive shell ignores SIGTERM, so also send SIGHUP to it."""
        self._signal(number)
        if number == signal.SIGTERM and _ignores(self._child, signal.SIGTERM):
            self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        groups = {os.getpgid(0)}
        if self._terminal is not None:
            groups = {self._child}
            with suppress(OSError):
                groups.add(os.tcgetpgrp(self._terminal))
        for group in groups - {0}:
            with suppress(OSError):
                os.killpg(group, number)

    def _finish(self) -> int:
        _, status = os.waitpid(self._child, 0)
        for fd in list(self._outputs):
            for _ in range(LAST_READS):  # limited, because background processes may continue to write
                if not self._read_output(fd):
                    break
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        if self._link is not None:
            if self._exec_mode:
                self._to_client += frame(EXIT, CODE.pack(code))
            self._link.settimeout(None if self._exec_mode else FLUSH_S)
            with suppress(OSError):
                self._link.sendall(self._to_client)
                if self._exec_mode:  # wait until the agent has read everything: input that it sends now would end the connection
                    self._link.shutdown(socket.SHUT_WR)
                    while self._link.recv(PART_BYTES):
                        pass
        return code


def _exec(command: list[str], stdin: int, stdout: int, stderr: int) -> None:
    """Replace the child process with the command.

    The command also inherits the descriptor of a locked file (`node/lock_files.py`). By this lock, the agent finds all processes of
    the run, or of the session in mode exec.
    """
    for number in (signal.SIGHUP, signal.SIGTTOU, *FORWARDED, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"corral: {command[0]}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN)


def _ignores(pid: int, number: signal.Signals) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigIgn:")]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
