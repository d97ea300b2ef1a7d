"""The certificate of this server for HTTPS: one that Corral makes and renews, or the one of --tls-certificate."""

from __future__ import annotations

import logging
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from corral.core.errors import Refused
from corral.node.host_address import addresses_for_others, any_address
from corral.node.server_access import pin_of, write_private
from corral.server.door.authority import Authority
from corral.server.tls import BUNDLE, CERTIFICATE

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # for tunnels, such as `ssh -L 4566:10.0.0.5:4566`
HOST_NAME = re.compile(r"[0-9A-Za-z_-]{1,63}(\.[0-9A-Za-z_-]{1,63})*")
RENEW_BEFORE = timedelta(days=30)
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
GLOBAL_SCOPE = "00"

log = logging.getLogger("corral")


class Trust(NamedTuple):
    """What clients need to verify this server."""

    bundle: str  # the certificate of the authority in PEM form; empty: the authorities of the client's machine
    pin: str  # its digest


class OwnCertificate:
    """A certificate of the data folder's authority, for the names and addresses of this machine."""

    def __init__(self, folder: Path, authority: Authority, names: str, host: str) -> None:
        """`folder` is the folder `door`. `names` are further names, separated by commas. `host` is the address of --host."""
        self.files = folder / CERTIFICATE, folder / CERTIFICATE
        self._authority = authority
        self._given = [name.strip() for name in names.split(",") if name.strip()]
        self._host = host
        self._issued: tuple[str, ...] = ()
        self._until_s = 0.0
        self.trust = Trust(authority.pem, authority.pin)
        write_private(folder / BUNDLE, authority.pem.encode())

    @property
    def shown_name(self) -> str:
        """The name or address in the URL for other machines."""
        return self._given[0] if self._given else _shown_address(self._host)

    def renew(self, now_s: float) -> None:
        """Write a new certificate if this machine has other addresses, or if the present one expires soon."""
        names = self._names()
        if names == self._issued and now_s < self._until_s:
            return
        self._until_s = self._authority.issue_https(self.files[0], names, now_s) - RENEW_BEFORE.total_seconds()
        if self._issued:
            log.info("wrote a new certificate for %s", ", ".join(names))
        self._issued = names

    def _names(self) -> tuple[str, ...]:
        host = socket.gethostname()
        found = [*self._given, host if HOST_NAME.fullmatch(host) else "", *addresses_for_others(), *_ipv6_addresses(), *LOOPBACK]
        return tuple(dict.fromkeys(name for name in found if name))


class GivenCertificate:
    """The certificate of --tls-certificate. Its owner renews it, and the server reads it again when the files have changed."""

    def __init__(self, folder: Path, certificate: str, key: str, names: str) -> None:
        self.files = Path(certificate), Path(key)
        chain = _read_chain(self.files[0])
        self.shown_name = next(iter(filter(None, names.split(","))), "").strip() or _first_name(chain[0])
        last = chain[-1]
        pem = last.public_bytes(Encoding.PEM).decode() if last.issuer == last.subject else ""
        self.trust = Trust(pem, pin_of(pem) if pem else "")
        (folder / BUNDLE).unlink(missing_ok=True)
        if pem:
            write_private(folder / BUNDLE, pem.encode())

    def renew(self, now_s: float) -> None:
        """Do nothing: the process that ends TLS reads changed files itself."""


def _read_chain(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Refused(f"the certificate {path} cannot be read: {error}.") from None


def _first_name(certificate: x509.Certificate) -> str:
    """Return a name or address of a certificate, and no pattern."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return socket.gethostname()
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return next((name for name in found if not name.startswith("*")), socket.gethostname())


def _shown_address(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return any_address() or socket.gethostname()
    return host


def _ipv6_addresses() -> list[str]:
    """Return the IPv6 addresses of this machine that are valid everywhere."""
    try:
        lines = [line.split() for line in IPV6_ADDRESSES.read_text().splitlines()]
    except OSError:
        return []  # the kernel has no IPv6
    found = [bytes.fromhex(line[0]) for line in lines if line[3] == GLOBAL_SCOPE]
    return [socket.inet_ntop(socket.AF_INET6, address) for address in found]
