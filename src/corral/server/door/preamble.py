"""The preamble: the first line that the door sends to the server on each connection, with the facts that TLS has proved."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

PREAMBLE_MAX_BYTES = 4096


class Preamble(Struct, frozen=True):
    kind: Literal["agent", "session", "gateway", "join"]
    host: str  # the id of the host, from its certificate; empty: a stranger that wants to join
    serial: str  # of the certificate, in hexadecimal digits
    address: str  # the address from which the host has connected
    port: int
    expired: bool = False  # the certificate has expired, so it can only be renewed
