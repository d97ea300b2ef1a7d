"""The heads of HTTP responses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus

WITHOUT_LENGTH = (204, 304)  # responses with these statuses have no Content-Length
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
Headers = Iterable[tuple[str, str]]


def response_head(status: int, headers: Headers, size: int, date: str, *, keep_alive: bool) -> tuple[bytes, bool]:
    """Return the head of a response, and whether the connection stays open after the response.

    `date` is the line of the header Date. Content-Length (`size`) is added, with two exceptions. It is not added if the handler has
    already set it, as handlers do for HEAD, or Transfer-Encoding, or if the status is in WITHOUT_LENGTH.
    """
    lines, has_length = [_status_line(status), date], status in WITHOUT_LENGTH
    for name, value in headers:
        name = name.lower()
        if name in ("content-length", "transfer-encoding"):
            has_length = True
        elif name == "connection":
            keep_alive = False  # handlers set only `Connection: close`
            continue
        lines.append(f"{name}: {value if value.isascii() and value.isprintable() else _CONTROL.sub(' ', value)}\r\n")
    if not has_length:
        lines.append(f"content-length: {size}\r\n")
    lines.append("\r\n" if keep_alive else "connection: close\r\n\r\n")
    return "".join(lines).encode("latin-1", "replace"), keep_alive


@cache
def _status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
