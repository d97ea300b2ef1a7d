"""Hosts that join from other machines: their records, and the tokens with which they join."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class JoinToken(Struct, frozen=True):
    """A token without its secret. A host joins with it once, and it is valid for a limited number of hosts and a limited time."""

    id: str
    digest: str  # SHA-256 of the secret
    uses: int
    used: int
    cluster: str  # of the hosts; empty: they choose
    rack: str
    created_at_s: float
    expires_at_s: float


class JoinedHost(Struct, frozen=True):
    id: str
    name: str
    key_digest: str
    token_id: str
    serial: str  # of its certificate
    earlier_serial: str  # of the certificate that it renewed last; empty: none
    cluster: str  # set by its token; empty: the option of the host counts
    rack: str
    address: str  # from which its agent connected last
    version: str
    joined_at_s: float
    revoked_at_s: float | None = None
    machine: dict[str, str] = {}  # the fingerprint of its machine (`node/fingerprint.py`)
    refused: dict[str, str] = {}  # the fingerprint of another machine that last presented its certificate
    refused_address: str = ""  # of that machine
    forgotten_at_s: float | None = None  # None: it has connected since it was forgotten, or never was

    def accepts(self, serial: str) -> bool:
        """Whether a certificate of this host with this serial is valid."""
        return self.revoked_at_s is None and serial in (self.serial, self.earlier_serial) and serial != ""


def differing_sources(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return in which sources two fingerprints differ. A source that one of them does not have is not compared."""
    return sorted(source for source in before.keys() & now.keys() if before[source] != now[source])


class JoinOffer(Struct, frozen=True):
    """The first message of the server to a host that wants to join or to renew its certificate."""

    authority: str  # the certificate of the authority, in PEM form
    protocol: int
    version: str
    port: int = 0  # of the server's API
    machine: str = ""  # `machine_id` of the server


class JoinRequest(Struct, frozen=True):
    signing_request: str  # in PEM form
    token: str = ""  # its id and its secret; empty: renew the certificate
    name: str = ""
    protocol: int = 0
    version: str = ""
    time_s: float = 0.0  # the clock of the host
    machine: dict[str, str] = {}  # its fingerprint
    # Of the pilot of an allocation:
    allocation: str = ""  # the lender's id of its allocation; empty: it does not know it
    fetch: str = ""  # do not join: send the list of wheels (WHEELS), or the wheel with this SHA-256
    failure: str = ""  # do not join: this is why the pilot cannot


WHEELS = "wheels"


class JoinAnswer(Struct, frozen=True):
    error: str = ""
    certificate: str = ""  # in PEM form
    host_id: str = ""
    name: str = ""
    port: int = 0  # of the server's API
    account: str = ""
    cluster: str = ""  # set by the token; empty: the option of the host counts
    rack: str = ""
    expires_at_s: float = 0.0
    renew_at_s: float = 0.0
    wheels: dict[str, str] = {}  # name → SHA-256; the first is that of Corral
    requires: list[str] = []  # what Corral needs on a host, as wheels name it
    size: int = 0  # of the wheel that follows this answer
