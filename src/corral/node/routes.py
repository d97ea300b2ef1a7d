"""Where this machine's kernel sends packets: its table of IPv4 routes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

TABLE = Path("/proc/net/route")


def first_to(subnet: IPv4Network) -> str | None:
    """The interface that packets to exactly this subnet leave by; None: no route is as exact as that.

    Of several with one subnet the kernel takes the smallest metric, and then the one that came first.
    """
    found = [(metric, interface) for destination, metric, interface in _routes() if destination == subnet]
    return min(found, key=lambda route: route[0])[1] if found else None


def _routes() -> list[tuple[IPv4Network, int, str]]:
    """(to where, metric, interface), in the kernel's order."""
    found = []
    for line in TABLE.read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, metric, mask, *_ = line.split()
        found.append((IPv4Network((_address(destination), str(_address(mask)))), int(metric), interface))
    return found


def _address(text: str) -> IPv4Address:
    """The table has addresses as numbers in the machine's own order of bytes."""
    return IPv4Address(int(text, 16).to_bytes(4, "little"))
