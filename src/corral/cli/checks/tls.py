"""The check of TLS for other machines for `corral doctor`. It connects as another machine does."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from corral.cli.checks.finding import Finding, fail, ok, warn
from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder
from corral.cli.client.endpoint import endpoint_of_folder
from corral.cli.client.tls import CONNECT_S, NotTrusted, secure
from corral.cli.printing.output import count

DAY_S = 86_400
SOON_DAYS = 14


def check_tls(data: DataFolder) -> Iterator[Finding]:
    about = data_folder.running(data)
    if about is None:
        return
    if about["options"].get("plain_http"):
        yield warn(
            "other machines may use plain HTTP, which everyone on the network can read", "corral up --no-plain-http ends this."
        )
    url = about.get("tlsUrl")
    if not url:
        return
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    try:
        plain = socket.create_connection((host, port), CONNECT_S)
    except OSError as error:
        advice = "other machines use this URL: let the name lead to this machine, or choose another one with corral up --tls-names."
        yield fail(f"{url} cannot be reached: {error}", advice)
        return
    try:
        with secure(plain, host.encode("ascii"), url, endpoint_of_folder(data).ca_bundle) as connection:
            yield _expiry(url, connection.getpeercert() or {})
    except NotTrusted as problem:
        yield fail(problem.message, "clients refuse this certificate: see docs/tls.md.")
    except OSError as error:
        yield fail(f"{url} does not serve TLS: {error}", f"see {data.path / 'door' / 'https.log'}.")


def _expiry(url: str, certificate: dict[str, Any]) -> Finding:
    import ssl

    left_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.clock_gettime(time.CLOCK_REALTIME)
    days = int(left_s / DAY_S)
    found = f"other machines reach {url}; its certificate is valid for {count(days, 'day')}"
    return ok(found) if days >= SOON_DAYS else warn(found, "renew the certificate: Corral reads its files again when they change.")
