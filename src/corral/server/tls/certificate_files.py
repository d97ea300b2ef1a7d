"""Reads the certificate and the key of this server, and reads them again when the files have changed."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from corral.core.errors import Refused

CHECK_S = 1.0  # how often the files are looked at, at most

log = logging.getLogger("corral.tls")


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context for HTTPS. Raise Refused if the files cannot be used. TLS 1.2 is for older SDKs and programs."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    made.num_tickets = 0
    made.set_alpn_protocols(["http/1.1"])

    def refuse_password() -> str:
        raise Refused(f"the key {key} is encrypted. Store it without a password, in a file that only the owner can read.")

    try:
        made.load_cert_chain(certificate, key, refuse_password)
    except OSError as error:  # also ssl.SSLError
        why = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            is_other = error.reason == "KEY_VALUES_MISMATCH"
            why = "the key does not belong to the certificate" if is_other else "a file is damaged, or not in PEM form"
        raise Refused(f"the certificate {certificate} with the key {key} cannot be used: {why}.") from None
    return made


class CertificateFiles:
    def __init__(self, certificate: Path, key: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._paths = certificate, key
        self._now_s = now_s
        self._checked_s = now_s()
        self._seen = self._look()
        self._context = tls_context(certificate, key)

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. If changed files cannot be used, return the previous one, and log why."""
        if self._now_s() - self._checked_s >= CHECK_S:
            self._checked_s = self._now_s()
            found = self._look()
            if found != self._seen:
                self._seen = found
                try:
                    self._context = tls_context(*self._paths)
                    log.info("read the certificate %s again", self._paths[0])
                except Refused as refusal:
                    log.error("the previous certificate stays in use: %s", refusal)
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
