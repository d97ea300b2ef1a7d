"""Opens TLS for other machines when the server starts. The modules that need the package cryptography are imported only then."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from corral.core.clock import Clock
from corral.core.errors import Refused
from corral.server.http.outside import OutsideRules
from corral.server.http.server import HttpServer
from corral.server.tls.certificate_files import tls_context

if TYPE_CHECKING:
    from corral.server.tls.front import TlsFront

HTTPS_PORT = 443


class TlsChoice(Struct, frozen=True):
    """The options of `corral up` for TLS."""

    certificate: str
    key: str
    names: str
    port: int  # a further port; 0: only the port of the API
    plain_http: bool

    def check(self) -> None:
        """Raise Refused if the options or the files that they name cannot be used."""
        if bool(self.certificate) != bool(self.key):
            raise Refused("--tls-certificate and --tls-key must be used together.")
        if self.certificate:
            for path in map(Path, (self.certificate, self.key)):
                if not path.is_absolute():
                    raise Refused(f"{path} is not an absolute path: --tls-certificate and --tls-key need absolute paths.")
            tls_context(Path(self.certificate), Path(self.key))


class OpenTls(Struct, frozen=True):
    front: TlsFront
    url: str  # of this server, for other machines
    bundle: str  # the certificate that clients need to verify this server; empty: they have one
    pin: str  # its digest

    def about(self) -> dict[str, str]:
        return {"tlsUrl": self.url, "tlsPin": self.pin}


def open_tls(
    data: Path, choice: TlsChoice, listener: socket.socket, console_port: int, clock: Clock, server: HttpServer
) -> OpenTls:
    """Start to serve TLS. `listener` listens on the port of the API."""
    from corral.server.door.authority import Authority
    from corral.server.tls.certificate import GivenCertificate, OwnCertificate
    from corral.server.tls.front import TlsFront

    folder, now_s = data / "door", clock.wall_s()
    folder.mkdir(mode=0o700, exist_ok=True)
    host, port = listener.getsockname()[:2]
    certificate: OwnCertificate | GivenCertificate
    if choice.certificate:
        certificate = GivenCertificate(folder, choice.certificate, choice.key, choice.names)
    else:
        certificate = OwnCertificate(folder, Authority(folder, now_s), choice.names, host)
    certificate.renew(now_s)
    front = TlsFront(folder, certificate, clock, server.adopt_tls)
    url = https_url(certificate.shown_name, choice.port or port)
    server.outside = OutsideRules(front.take, choice.plain_http, url, https_url(certificate.shown_name, console_port))
    front.open()
    return OpenTls(front, url, certificate.trust.bundle, certificate.trust.pin)


def https_url(name: str, port: int) -> str:
    host = f"[{name}]" if ":" in name else name
    return f"https://{host}" if port == HTTPS_PORT else f"https://{host}:{port}"
