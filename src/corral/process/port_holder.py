"""Finds the process that listens on a port, for messages about a port that is in use."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from pwd import getpwuid

LISTENING = "0A"  # a socket's state in /proc/net/tcp
COMMAND_MAX = 80  # characters of a command line that a message shows


def port_holder(port: int, host: str = "") -> str | None:
    """Describe the process that listens on a port, for example `process 4711 (nginx -g daemon off;)`.

    The description of a Corral server names its data folder. If another user owns the process, it names only the user. With `host`,
    prefer a listener that excludes another one on this address. Return None if no process listens on the port in this network.
    """
    found = list(_listeners(port))
    if not found:
        return None
    conflicting = [each for each in found if not host or each[0] in (_hexadecimal(host), "0" * len(each[0]))]
    _, uid, inode = (conflicting or found)[0]
    pid = _owner_of(f"socket:[{inode}]")
    return _process(pid) if pid is not None else f"a process of {_user(int(uid))}"


def _listeners(port: int) -> Iterator[tuple[str, str, str]]:
    """Yield the address (hexadecimal), the user id and the inode of each socket that listens on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            address, _, its_port = fields[1].rpartition(":")
            if fields[3] == LISTENING and int(its_port, 16) == port:
                yield address, fields[7], fields[9]


def _hexadecimal(host: str) -> str:
    """Return an address as /proc/net/tcp writes it: words of 32 bits in the byte order of the machine."""
    try:
        raw = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return ""
    words = [raw[at : at + 4] for at in range(0, len(raw), 4)]
    return b"".join(word[::-1] if sys.byteorder == "little" else word for word in words).hex().upper()


def _owner_of(target: str) -> int | None:
    """Return the process that has the socket open. Return None if this user may not read the descriptors of that process."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with os.scandir(f"/proc/{name}/fd") as links:
                if any(os.readlink(link.path) == target for link in links):
                    return int(name)
        except OSError:
            continue
    return None


def _process(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return f"process {pid}"
    if "corral.server" in words and "--data" in words[:-1]:
        return f"another Corral (process {pid}, data folder {words[words.index('--data') + 1]})"
    command = " ".join(words)
    return f"process {pid} ({command if len(command) <= COMMAND_MAX else command[: COMMAND_MAX - 1] + '…'})"


def _user(uid: int) -> str:
    try:
        return f"user {getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
