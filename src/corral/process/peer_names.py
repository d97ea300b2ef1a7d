"""Names the clients of a server: by their Unix account or by their address.

A client on this machine is identified by its Unix account, because it can use any of 16 million loopback addresses. All other
clients, also those in containers that have a network of their own, are identified by their address.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from ipaddress import IPv6Address, ip_address, ip_network

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1  # values on Linux; Python has no constants for them
TCP_ESTABLISHED = 1
ANY_STATE = NO_COOKIE = 0xFFFFFFFF
# struct nlmsghdr; struct inet_diag_req_v2: family, protocol, extensions, padding, states, ports, addresses, interface, cookie
_REQUEST = struct.Struct("=IHHII BBBBI 2s2s16s16s III")
_KIND, _STATE, _ACCOUNT = struct.Struct("=4xH"), 17, struct.Struct("=80xI")  # of the response: struct inet_diag_msg
NETWORK_BITS = 64  # one client can usually use all IPv6 addresses of such a network


class PeerNames:
    """Names the peer of each connection."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None
        with suppress(OSError):
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_SOCK_DIAG)

    def name(self, there: tuple[str, int], here: tuple[str, int]) -> str:
        """Return `account UID` for a client on this machine, and its address or network for any other client.

        `there` and `here` are the addresses of the two ends of its connection.
        """
        with suppress(OSError):
            account = self._account(there, here)
            if account is not None:
                return f"account {account}"
        address = ip_address(there[0].partition("%")[0])
        if isinstance(address, IPv6Address):
            if address.ipv4_mapped is None:
                return "loopback" if address.is_loopback else str(ip_network((address, NETWORK_BITS), strict=False))
            address = address.ipv4_mapped
        return "loopback" if address.is_loopback else str(address)

    def _account(self, there: tuple[str, int], here: tuple[str, int]) -> int | None:
        """Return the account that opened the other end of a connection. Return None if that end is not on this machine.

        The kernel finds the socket by its addresses and answers at once, however many connections there are.
        """
        if self._kernel is None:
            return None
        family = socket.AF_INET6 if ":" in there[0] else socket.AF_INET
        ports = there[1].to_bytes(2, "big"), here[1].to_bytes(2, "big")
        addresses = [socket.inet_pton(family, each[0].partition("%")[0]) for each in (there, here)]
        self._kernel.send(
            _REQUEST.pack(
                _REQUEST.size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0,
                family, socket.IPPROTO_TCP, 0, 0, ANY_STATE, *ports, *addresses, 0, NO_COOKIE, NO_COOKIE,
            )
        )  # fmt: skip
        answer = self._kernel.recv(4096)
        # Without a connected socket, the kernel returns an error, or a socket that listens on this port. It does not know the
        # account of a socket that its owner has closed already.
        is_found = _KIND.unpack_from(answer)[0] == SOCK_DIAG_BY_FAMILY and answer[_STATE] == TCP_ESTABLISHED
        return int(_ACCOUNT.unpack_from(answer)[0]) if is_found else None
