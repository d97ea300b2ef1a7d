"""The port of the gateway, which the agents of one server and one Unix account share on this machine.

The process that listens on the port reads the credentials of tasks. So an agent shares only a gateway of its own account, or of
root. A gateway has a socket with an abstract name, which contains its account, its server and its port. The name also prevents that
two gateways start at the same time. Like the port, it belongs to the network namespace, and it ends with the process.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from corral.core.errors import Refused
from corral.model.container_network import GATEWAY as CONTAINERS_GATEWAY
from corral.node.host import machine_id
from corral.node.kept_sockets import receive_sockets
from corral.node.server_access import AUTHORITY, pin_of, read_record
from corral.process.listener import listen

LOOPBACK = "127.0.0.1"
ROOT = 0
PLACE = "node/gateway.json"  # in the folder of a joined host
END = b"end"  # an agent sends it to a gateway that has the port of a server on the same machine
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
ANSWER_S = 2.0
ADVICE = (
    "On every host, this port leads to the server, and tasks send their credentials to it. End that process, or choose another "
    "port for the server with `corral up --port`."
)


class GatewayName(NamedTuple):
    """What a gateway leads to. `server` is the pin of the authority of the server."""

    server: str
    port: int

    @classmethod
    def of(cls, folder: Path, port: int | None = None) -> GatewayName:
        """Return the name for a joined host. Without `port`, use the port of its record."""
        record = read_record(folder)
        if record is None:
            raise Refused(f"{folder} has not joined a server")
        return cls(pin_of((folder / AUTHORITY).read_text()), port or record.port)

    def address(self, account: int) -> str:
        return f"\0corral-gateway/{account}/{self.server}/{self.port}"


class _Place(Struct):
    server_is_here: bool = False


def read_server_is_here(folder: Path) -> bool:
    """Whether the server is on this machine, as far as this host knows. `folder` is the folder of the joined host."""
    try:
        return msgspec.json.decode((folder / PLACE).read_bytes(), type=_Place).server_is_here
    except (OSError, ValueError):
        return False


def store_server_is_here(folder: Path, is_here: bool) -> None:
    (folder / PLACE).write_bytes(msgspec.json.encode(_Place(is_here)))


def bind_name(name: GatewayName) -> socket.socket | None:
    """Return the socket for agents that share this gateway. Return None if this account already has such a gateway."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.bind(name.address(os.geteuid()))
    except OSError:
        server.close()
        return None
    server.listen(64)
    server.setblocking(False)
    return server


class SharedGateway(NamedTuple):
    """A gateway that is running. The connection ends with it."""

    connection: socket.socket
    sockets: list[socket.socket]  # its listening sockets; none if it belongs to root and this process does not
    serves_containers: bool


def find_gateway(name: GatewayName) -> SharedGateway | None:
    """Return the gateway of this account or of root, if there is one and it responds."""
    for account in dict.fromkeys((os.geteuid(), ROOT)):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(name.address(account))
            if account_of(connection) == account:
                answer, descriptors = receive_sockets(connection)
                if answer:
                    connection.setblocking(False)
                    found = [socket.socket(fileno=each) for each in descriptors]
                    return SharedGateway(connection, found, answer == ANSWERS[True])
        except OSError:
            pass
        connection.close()
    return None


ANSWERS = {False: b"loopback", True: b"loopback and containers"}  # whether a gateway also listens for containers


def account_of(connection: socket.socket) -> int:
    """Return the account of the process at the other end of a Unix socket."""
    _, uid, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(uid)


def open_sockets(port: int, given: list[socket.socket], *, containers: bool) -> list[socket.socket]:
    """Return the listening sockets of a gateway: those of an earlier gateway (`given`), and new ones for the others.

    The second socket is for containers. It is missing if this machine cannot have it. Raise Refused if the first is not possible.
    """
    by_address = {each.getsockname()[:2]: each for each in given}
    first = by_address.pop((LOOPBACK, port), None) or listen(LOOPBACK, port, ADVICE)
    second = by_address.pop((CONTAINERS_GATEWAY, port), None)
    if second is None and containers:
        try:
            second = listen(CONTAINERS_GATEWAY, port, before_address=True)
        except Refused:
            second = None
    for unused in by_address.values():
        unused.close()
    for each in (first, second):
        if each is not None:
            each.setblocking(False)
    return [first] if second is None else [first, second]


def refuse_if_taken(pin: str, port: int, server_machine: str) -> None:
    """Raise Refused if a machine that wants to join cannot have a gateway, because another process listens on its port.

    `server_machine` is the `machine_id` of the server. On its own machine, the server itself listens on the port.
    """
    if server_machine == machine_id():
        return
    try:
        listen(LOOPBACK, port, ADVICE).close()
    except Refused:
        found = find_gateway(GatewayName(pin, port))
        if found is None:
            raise
        for each in (found.connection, *found.sockets):
            each.close()
