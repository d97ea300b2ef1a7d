"""The command's end of a person's session: it runs the command and passes its input and output on.

This file is run by path with the standard library alone, so that it starts quickly, as the leader of a session. It starts the
command and relays between it and a socket.

`corral run -i` and `-it`: it is the task's command. It connects to the socket at which `corral run` waits. What the command writes
also goes to this process's own standard output, which is the task's log. It ends as the command does.

`execute-command` (`beside`): a host starts it beside a task's container, with a connection to the core already open. It says how
the command ended. When the connection closes, the command has a moment to end, and is then killed.

With a terminal it opens one and makes it the controlling terminal of its session, so that everything stays in that one. The
command gets a process group of its own in the foreground.

Frames, both ways: a byte for the kind, four for the length, and that many more.

    to the command    i input     e no more of it     w window: rows, columns (the first frame, where there is a terminal)
    to the person     o output    r standard error, where there is no terminal     x its exit code (beside a task: the last frame)
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress

INPUT, NO_MORE, WINDOW, OUTPUT, ERRORS, EXIT = b"i", b"e", b"w", b"o", b"r", b"x"
HEAD = struct.Struct("!cI")
SIZE = struct.Struct("!HH")
CODE = struct.Struct("!I")
PART_BYTES = 65_536
BACKLOG_MAX_BYTES = 262_144  # then the one who writes has to wait, as with any terminal
GRACE_S = 2.0  # beside a task: from hearing that nobody is there any more to the end
FLUSH_S = 5.0  # for the last output to reach somebody who reads slowly
LAST_READS = 32  # more than a pipe holds
CANNOT_RUN, NOT_FOUND = 126, 127  # a shell's words for it
NOBODY_THERE = 125


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


class Frames:
    """Takes bytes as they come, gives whole frames."""

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


def main(words: list[str]) -> int:
    """`terminal.py (tty|pipe) SOCKET -- COMMAND…` or `terminal.py beside (tty|pipe) DESCRIPTOR -- COMMAND…`"""
    beside = words[0] == "beside"
    kind, place, _, *command = words[1:] if beside else words
    try:
        link = _link(place, beside)
    except OSError as error:
        print(f"corral: nobody waits at {place} for this task's input: {error.strerror}", flush=True)
        return NOBODY_THERE
    relay = Relay(link, beside=beside)
    for number in (signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    if kind == "tty":
        relay.start_in_a_terminal(command)
    else:
        relay.start_on_pipes(command)
    return relay.run()


def _link(place: str, beside: bool) -> socket.socket:
    if beside:
        given = socket.socket(fileno=int(place))
        given.set_inheritable(False)
        given.setblocking(True)
        return given
    link = socket.socket(socket.AF_UNIX)
    link.connect(place)
    return link


class Relay:
    def __init__(self, link: socket.socket, *, beside: bool = False) -> None:
        self._link: socket.socket | None = link
        self._beside = beside
        self._kill_at: float | None = None
        self._frames = Frames()
        self._to_person = bytearray()
        self._to_command = bytearray()
        self._no_more = False  # input ends once what is there has been passed on
        self._input: int | None = None
        self._outputs: dict[int, bytes] = {}  # descriptor → kind
        self._terminal: int | None = None
        self._child = 0
        self._woken, self._wake = os.pipe()

    # -- starting the command ------------------------------------------------------------------------------------

    def start_in_a_terminal(self, command: list[str]) -> None:
        ours, theirs = pty.openpty()
        self._terminal = self._input = ours
        self._outputs = {ours: OUTPUT}
        self._wait_for_window()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        self._child = os.fork()
        if self._child == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(theirs, os.getpid())
            _become(command, theirs, theirs, theirs)
        with suppress(OSError):  # it may have done so itself, and more
            os.setpgid(self._child, self._child)
        signal.signal(signal.SIGTERM, self._stopped)

    def start_on_pipes(self, command: list[str]) -> None:
        """In our own process group: whoever stops the task tells the command as well."""
        theirs_in, self._input = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_err, theirs_err = os.pipe()
        self._outputs = {ours_out: OUTPUT, ours_err: ERRORS}
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._child = os.fork()
        if self._child == 0:
            _become(command, theirs_in, theirs_out, theirs_err)
        for fd in (theirs_in, theirs_out, theirs_err):
            os.close(fd)

    def _wait_for_window(self) -> None:
        """The command must find its terminal as wide as the person's."""
        assert self._link is not None and self._terminal is not None
        while part := self._link.recv(PART_BYTES):
            for kind, payload in self._frames.feed(part):
                self._heard(kind, payload)
                if kind == WINDOW:
                    return

    # -- relaying ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        ended = os.pidfd_open(self._child)
        for fd in (self._input, *self._outputs):
            assert fd is not None
            os.set_blocking(fd, False)
        if self._link is not None:
            self._link.setblocking(False)
        while True:
            wait_s = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            readable, writable, _ = select.select([ended, self._woken, *self._wanted()], self._pending(), [], wait_s)
            if wait_s == 0.0:
                self._tell(signal.SIGKILL)
                self._kill_at = time.monotonic() + GRACE_S
            if self._woken in readable:
                os.read(self._woken, PART_BYTES)
                self._pass_on_the_stop()
            if self._link is not None and self._link in readable:
                self._hear()
            for fd in [fd for fd in self._outputs if fd in readable]:
                self._take(fd)
            if self._input is not None and self._input in writable:
                self._give()
            if self._link is not None and self._link in writable:
                self._send()
            if ended in readable:
                return self._finish()

    def _wanted(self) -> list[int | socket.socket]:
        wanted: list[int | socket.socket] = []
        if self._link is not None and len(self._to_command) < BACKLOG_MAX_BYTES:
            wanted.append(self._link)
        if len(self._to_person) < BACKLOG_MAX_BYTES:
            wanted += self._outputs
        return wanted

    def _pending(self) -> list[int | socket.socket]:
        pending: list[int | socket.socket] = []
        if self._input is not None and self._to_command:
            pending.append(self._input)
        if self._link is not None and self._to_person:
            pending.append(self._link)
        return pending

    def _hear(self) -> None:
        assert self._link is not None
        try:
            part = self._link.recv(PART_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._hang_up()
        for kind, payload in self._frames.feed(part):
            self._heard(kind, payload)

    def _heard(self, kind: bytes, payload: bytes) -> None:
        if kind == INPUT:
            self._to_command += payload
        elif kind == WINDOW and self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE.unpack(payload), 0, 0))
        elif kind == NO_MORE:
            self._no_more = True
            self._close_input_if_done()

    def _give(self) -> None:
        assert self._input is not None
        try:
            del self._to_command[: os.write(self._input, self._to_command[:PART_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # the command closed its input; what was meant for it is dropped
            self._to_command.clear()
            self._no_more = True
        self._close_input_if_done()

    def _close_input_if_done(self) -> None:
        if self._no_more and not self._to_command and self._terminal is None and self._input is not None:
            os.close(self._input)
            self._input = None

    def _take(self, fd: int) -> bool:
        """Some output: to the log, and to the person if there is one."""
        try:
            part = os.read(fd, PART_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            del self._outputs[fd]
            return False
        if not self._beside:
            with suppress(OSError):  # a full disk is no reason to stop the command
                os.write(1, part)
        if self._link is not None:
            self._to_person += frame(self._outputs[fd], part)
        return True

    def _send(self) -> None:
        assert self._link is not None
        try:
            del self._to_person[: self._link.send(self._to_person[:PART_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up()

    # -- ends ----------------------------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        """The person has gone: the command hears what it would hear when a terminal closes."""
        assert self._link is not None
        self._link.close()
        self._link = None
        self._to_person.clear()
        self._no_more = True
        self._tell(signal.SIGHUP)
        self._close_input_if_done()
        if self._beside:
            self._kill_at = time.monotonic() + GRACE_S

    def _stopped(self, number: int, stack: object) -> None:
        os.write(self._wake, b".")

    def _pass_on_the_stop(self) -> None:
        """A shell at a terminal ignores SIGTERM; it ends when its terminal does."""
        self._tell(signal.SIGTERM)
        if _ignores(self._child, signal.SIGTERM):
            self._tell(signal.SIGHUP)

    def _tell(self, number: signal.Signals) -> None:
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
            for _ in range(LAST_READS):  # what it left in the background may go on writing
                if not self._take(fd):
                    break
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        if self._link is not None:
            if self._beside:
                self._to_person += frame(EXIT, CODE.pack(code))
            self._link.settimeout(None if self._beside else FLUSH_S)
            with suppress(OSError):
                self._link.sendall(self._to_person)
        return code


def _become(command: list[str], stdin: int, stdout: int, stderr: int) -> None:
    """In the child. The descriptor that marks the task as alive stays inherited, as it came."""
    for number in (signal.SIGHUP, signal.SIGTTOU, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
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
