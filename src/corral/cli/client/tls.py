"""TLS connections to a server, and the certificate with which they are verified.

The functions import `ssl` when they are called, because its import takes longer than many commands.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import TYPE_CHECKING

from corral.cli.printing.errors import CliError

if TYPE_CHECKING:
    import ssl

CONNECT_S = 10.0
AUTHORITY_PATH = "/_corral/authority"  # the page of a server with the certificate of its authority
PEM_MAX_BYTES = 65_536


class NotTrusted(CliError):
    """The certificate of the server could not be verified."""


def bundle_of(endpoint_bundle: str | None) -> str | None:
    """Return the file with the certificates that verify a server. None: those of this machine."""
    return endpoint_bundle or os.environ.get("AWS_CA_BUNDLE") or None


def secure(plain: socket.socket, host: bytes, url: str, bundle: str | None) -> ssl.SSLSocket:
    """Begin TLS on a connection. Raise NotTrusted if the certificate is not valid, and OSError if the connection fails."""
    import ssl

    try:
        return _context(bundle).wrap_socket(plain, server_hostname=host)  # a str needs the codec `idna`
    except ssl.SSLCertVerificationError as error:
        plain.close()
        fix = "set AWS_CA_BUNDLE to door/ca.pem of the server's data folder" if bundle is None else f"{bundle} does not fit"
        raise NotTrusted(f"the certificate of {url} could not be verified ({error.verify_message}): {fix}.") from None
    except BaseException:
        plain.close()
        raise


@cache
def _context(bundle: str | None) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:  # also ssl.SSLError
        raise CliError(f"{bundle} cannot be read as certificates: {error}. Correct AWS_CA_BUNDLE.") from None


def pin_of(pem: str) -> str:
    """Return the pin of an authority: SHA-256 of its certificate."""
    import base64
    import hashlib
    import ssl

    return base64.urlsafe_b64encode(hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest()).decode().rstrip("=")


def fetch_authority(url: str, pin: str) -> str:
    """Return the certificate with which a server is verified: that of its authority, whose pin must be `pin`.

    Raise NotTrusted if the server at this URL has another authority, or has no certificate of it for this URL. The caller may send
    a secret to the server only after that.
    """
    import ssl
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        pem = _get(unverified, host, port, parts.netloc)
        found = pin_of(pem) if pem.startswith("-----BEGIN CERTIFICATE-----") else ""
    except ValueError:
        found = ""
    except OSError as error:
        raise CliError(f"cannot connect to {url}: {error}") from None
    if found != pin:
        raise NotTrusted(f"the certificate of {url} is not that of the server which made this command. Nothing was sent to it.")
    verified = ssl.create_default_context(cadata=pem)
    try:
        _get(verified, host, port, parts.netloc)
    except ssl.SSLCertVerificationError as error:
        raise NotTrusted(
            f"the certificate of {url} could not be verified ({error.verify_message}). If {host} is a name of the server, add it "
            "with `corral up --tls-names` there."
        ) from None
    except OSError as error:
        raise CliError(f"cannot connect to {url}: {error}") from None
    return pem


def _get(context: ssl.SSLContext, host: str, port: int, netloc: str) -> str:
    """Return the body of the page AUTHORITY_PATH, or an empty text if there is no such page."""
    with (
        socket.create_connection((host, port), CONNECT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(f"GET {AUTHORITY_PATH} HTTP/1.1\r\nHost: {netloc}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        received = b""
        while len(received) < PEM_MAX_BYTES and (part := connection.recv(PEM_MAX_BYTES)):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return body.decode("ascii", "replace") if head.startswith(b"HTTP/1.1 200 ") else ""
