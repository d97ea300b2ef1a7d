"""Which requests may come from the page of the console: checks of the headers that browsers set, and pages cannot change.

A page of another origin, also of the API or of a task on another port, can make a browser send requests here, with the cookie.
Three headers tell such requests: Host, which a page changes only if its own name leads here (DNS rebinding), Origin, and
Sec-Fetch-Site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from corral import aws
from corral.core.errors import api_error

READS = frozenset({"GET", "HEAD"})  # the methods with which a page of the same origin sends no Origin
HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
     "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)  # fmt: skip

UnknownHost = api_error("UnknownHost", 421)
ForeignOrigin = api_error("ForeignOrigin", 403)


class Guard:
    def __init__(self, names: Iterable[str]) -> None:
        """`names` are the names of this machine. Addresses and localhost are always allowed: no other page has them as its name."""
        self._names = frozenset({"localhost", *(name.lower() for name in names if name)})

    def check_host(self, request: aws.Request) -> None:
        """Raise UnknownHost if the browser has reached the console by a name that is not its own."""
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name not in self._names and not _is_address(name.strip("[]")):
            raise UnknownHost(
                "The console does not serve this host name. Use the link of `corral console`, or add the name with "
                "`corral up --tls-names`."
            )

    def check_origin(self, request: aws.Request) -> None:
        """Raise ForeignOrigin unless the request comes from the page of this console."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        own = f"{request.scheme}://{headers.get('host', '')}".lower()
        is_own = origin.lower() == own if origin is not None else request.method in READS
        if not is_own or (site is not None and site != "same-origin"):
            raise ForeignOrigin("Only the page of the console may send this request.")


def cookie_in(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a cookie. Return an empty text if there is none."""
    for each in headers.get("cookie", "").split(";"):
        found, _, value = each.strip().partition("=")
        if found == name:
            return value
    return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
