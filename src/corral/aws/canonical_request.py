"""The canonical request of AWS Signature Version 4: the headers, the path and the query, in the form that a client signs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, unquote_to_bytes

from corral.aws import catalogue
from corral.aws.form_encoding import PARAMETERS_MAX
from corral.aws.http import Request
from corral.aws.signature_errors import MISMATCH, SignatureRefused

# The services whose clients percent-encode the path once. For all other services, clients sign a path that is encoded twice.
_SINGLE_ENCODED = frozenset(s.signing_name for s in catalogue.SERVICES if s.protocols[0] == "rest-xml")


def canonical_headers(names: Sequence[str], headers: Mapping[str, str]) -> str:
    """Return the lines of the signed headers. The caller gives their names in the order in which the client signed them."""
    try:
        text = "".join([f"{name}:{headers[name]}\n" for name in names])
    except KeyError:
        raise SignatureRefused("mismatch", MISMATCH) from None
    if ": " in text or "  " in text or " \n" in text or "\t" in text:
        return "".join([f"{name}:{' '.join(headers[name].split())}\n" for name in names])
    return text


def canonical_targets(request: Request, service: str, *, is_presigned: bool) -> Iterator[str]:
    """Yield path and query in the client's encoding and, if AWS's encoding differs, also in AWS's: a client can sign either."""
    path, query = request.path or "/", request.query
    single = service in _SINGLE_ENCODED
    as_sent = path if single else quote(_normalized(path), safe="/~")
    first = f"{as_sent}\n{_sorted_query(query, is_presigned=is_presigned, decode=False)}"
    yield first
    again = _encoded(path, "/")
    rewritten = again if single else quote(_normalized(again), safe="/~")
    second = f"{rewritten}\n{_sorted_query(query, is_presigned=is_presigned, decode=True)}"
    if second != first:
        yield second


def _normalized(path: str) -> str:
    """Remove empty segments and `.` from a path. Remove `..` with the segment before it. All services except S3 do this."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if kept:
                kept.pop()
        elif part and part != ".":
            kept.append(part)
    trailing = "/" if path.endswith("/") and kept else ""
    return "/" + "/".join(kept) + trailing


def _sorted_query(query: str, *, is_presigned: bool, decode: bool) -> str:
    if not query:
        return ""
    if query.count("&") >= PARAMETERS_MAX:
        raise SignatureRefused("incomplete", f"more than {PARAMETERS_MAX} query parameters")
    pairs = []
    for item in query.split("&"):
        name, _, value = item.partition("=")
        if is_presigned and name == "X-Amz-Signature":
            continue
        if decode:
            if not item:
                continue
            name, value = _encoded(name.replace("+", " "), ""), _encoded(value.replace("+", " "), "")
        pairs.append((name, value))
    pairs.sort()
    return "&".join(f"{name}={value}" for name, value in pairs)


def _encoded(text: str, safe: str) -> str:
    return quote(unquote_to_bytes(text), safe=f"{safe}-_.~")
