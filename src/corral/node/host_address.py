"""The IPv4 address of this host for tasks on other hosts, and the network interface that has it."""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from contextlib import suppress
from ipaddress import AddressValueError, IPv4Address

from msgspec.structs import replace

from corral.model.agent_protocol import HostOptions

SIOCGIFCONF = 0x8912  # ioctl: list the IPv4 addresses of all interfaces
ENTRY = struct.Struct("16s20x4s" if struct.calcsize("P") == 4 else "16s4x4s16x")  # ifreq: a name and a sockaddr_in
ADDRESSES_MAX = 4096
INSIDE_INTERFACES = ("docker", "br-", "veth", "virbr", "lxc", "cni")  # networks of containers on this machine
# An address for documentation (RFC 5737), to which the default route leads. Nothing is sent to it.
ANY_OTHER_HOST = ("192.0.2.1", 9)


def with_address(options: HostOptions, towards_server: str) -> HostOptions:
    """Complete the address and the interface of a host. What is unknown stays empty.

    Without an option, a host has the address from which it has connected to the server, `towards_server`. If that is unknown,
    because this is the machine of the server, it has the address of `any_address`.
    """
    if options.interface and not options.address:
        return replace(options, address=next((address for name, address in _addresses() if name == options.interface), ""))
    address = options.address or _other_than_loopback(towards_server or any_address())
    interface = options.interface or next((name for name, each in _addresses() if each == address), "")
    return replace(options, address=address, interface=interface)


def is_own(address: str) -> bool:
    """Whether programs of this machine can listen at an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _addresses() -> list[tuple[str, str]]:
    """Return (name of the interface, IPv4 address) of each address of this machine."""
    buffer = array("B", bytes(ENTRY.size * ADDRESSES_MAX))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        size, _ = struct.unpack("iL", fcntl.ioctl(any_socket, SIOCGIFCONF, request))
    entries = ENTRY.iter_unpack(buffer.tobytes()[: size - size % ENTRY.size])
    return [
        (name.rstrip(b"\0").partition(b"\0")[0].decode(errors="replace"), socket.inet_ntoa(address)) for name, address in entries
    ]


def any_address() -> str:
    """Return the address of the default route. Without such a route, return that of the first interface to other machines."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(ANY_OTHER_HOST)
        return str(probe.getsockname()[0])
    return next(iter(addresses_for_others()), "")


def addresses_for_others() -> list[str]:
    """Return the IPv4 addresses at which other machines may reach this one."""
    others = (address for name, address in _addresses() if not name.startswith(INSIDE_INTERFACES))
    return list(filter(None, map(_other_than_loopback, others)))


def _other_than_loopback(text: str) -> str:
    """Return an IPv4 address that other hosts can use, or an empty text."""
    with suppress(AddressValueError):
        address = IPv4Address(text)
        return "" if address.is_loopback or address.is_unspecified else text
    return ""
