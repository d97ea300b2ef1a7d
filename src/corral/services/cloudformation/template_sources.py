"""Templates and stack policies in S3. A request refers to them by URL, and Corral reads them from its own S3.

The server reads the objects of a request before the handler runs, and not in the thread that runs handlers (`fetch`). The template
of a nested stack is read when the parent stack reaches the nested stack, also in another thread (`Tx.result_of`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from msgspec import Struct

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.access.object_writers import writer_refusal
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.blob import Slice
from corral.services.cloudformation.errors import ValidationError
from corral.services.s3.lookup import existing_bucket, existing_version
from corral.store import Store

TEMPLATE_MAX_BYTES = 1_000_000
POLICY_MAX_BYTES = 16_384
TOO_LARGE = "Template may not exceed {} bytes in size."
POLICY_TOO_LARGE = "Stack policy may not exceed {} bytes in size."
S3_ERROR = "S3 error: {}\nFor more information check http://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"

_S3_HOST = re.compile(r"(?:(.+)\.)?s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com(?:\.cn)?")
_LOCAL_HOST = re.compile(r"(?:(.+)\.)?localhost")
_DEFAULT_PORTS = {"http": 80, "https": 443}
UNSUPPORTED_URL = "TemplateURL must be a supported URL."
# Request member with a URL → the parameter that receives the bytes, the maximum size, and the text if the object is larger.
_MEMBERS = {
    "TemplateURL": ("TemplateBody", TEMPLATE_MAX_BYTES, TOO_LARGE),
    "StackPolicyURL": ("StackPolicyBody", POLICY_MAX_BYTES, POLICY_TOO_LARGE),
    "StackPolicyDuringUpdateURL": ("StackPolicyDuringUpdateBody", POLICY_MAX_BYTES, POLICY_TOO_LARGE),
}


class ObjectAddress(Struct, frozen=True):
    bucket: str
    key: str
    version_id: str | None = None


def object_of_url(tx: Tx[Store], caller: Caller, url: str) -> ObjectAddress:
    """Return the object that a URL names. Its host is S3's or the caller's own, or its port is Corral's.

    The signature of a presigned URL is ignored, because the caller's own permissions apply.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", _port(parts)
        used = urlsplit(caller.endpoint_url)
        used_port = _port(used)
    except ValueError:
        raise ValidationError(UNSUPPORTED_URL) from None
    if parts.scheme == "s3":
        raise ValidationError(f"S3 error: Domain name specified in {host} is not a valid S3 domain")
    is_own = port == _port(urlsplit(tx.settings.endpoint_url)) or (port == used_port and f".{host}".endswith(f".{used.hostname}"))
    found = _S3_HOST.fullmatch(host)
    if parts.scheme not in _DEFAULT_PORTS or not host or not (is_own or found):
        raise ValidationError(UNSUPPORTED_URL)
    found = found or _LOCAL_HOST.fullmatch(host)
    path, bucket = unquote(parts.path).removeprefix("/"), found[1] if found is not None else None
    if bucket is None:
        bucket, _, path = path.partition("/")
    version = parse_qs(parts.query).get("versionId", [None])[0]
    return ObjectAddress(bucket, path, version)


def _port(parts: SplitResult) -> int | None:
    return parts.port or _DEFAULT_PORTS.get(parts.scheme)


def addresses(tx: Tx[Store], caller: Caller, params: Mapping[str, Any]) -> list[ObjectAddress]:
    """Return the objects to which a request refers. Invalid URLs are omitted, because the handler refuses them."""
    found = []
    for member in _MEMBERS:
        if member in params:
            try:
                found.append(object_of_url(tx, caller, params[member]))
            except ApiError:
                continue
    return found


def fetch(tx: Tx[Store], params: dict[str, Any], caller: Caller, *, is_obeyed: bool = True) -> dict[str, tuple[Slice, ...]]:
    """Find the objects to which a request refers by URL. Return parameter → the slices of blobs whose bytes it gets.

    `is_obeyed` is False if the request only reads the template.
    """
    found = {}
    for member, (body, max_bytes, too_large) in _MEMBERS.items():
        if member not in params:
            continue
        if body in params:
            raise ValidationError(f"You cannot specify both {member} and {body}")
        found[body] = _slices(tx, caller, params[member], max_bytes, too_large, is_obeyed=is_obeyed)
    return found


def template_slices(tx: Tx[Store], caller: Caller, url: str) -> tuple[Slice, ...]:
    """Return the slices of blobs with a template. The calling function has checked the permissions of the caller before."""
    return _slices(tx, caller, url, TEMPLATE_MAX_BYTES, TOO_LARGE)


def template_text(body: bytes | str) -> str:
    """Decode a template. A template in S3 arrives as bytes."""
    if isinstance(body, str):
        return body
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValidationError("Template format error: the template is not valid UTF-8.") from None


def _slices(
    tx: Tx[Store], caller: Caller, url: str, max_bytes: int, too_large: str, *, is_obeyed: bool = True
) -> tuple[Slice, ...]:
    address = object_of_url(tx, caller, url)
    try:
        bucket = existing_bucket(tx, {"Bucket": address.bucket}, caller)
        version = existing_version(tx, bucket, address.key, address.version_id)
    except ApiError as error:
        raise ValidationError(S3_ERROR.format(error.message)) from None
    # If the caller may not run programs on the host, its stack may not either, whatever the template contains.
    is_checked = is_obeyed and version.writers and may_run_on_host(tx, caller)
    if is_checked and (refusal := writer_refusal(tx, f"s3://{bucket.name}/{version.key}", version.writers)) is not None:
        raise ValidationError(S3_ERROR.format(refusal))
    if version.size > max_bytes:
        raise ValidationError(too_large.format(max_bytes))
    return tuple(tx.store.objects.slices(version.content, 0, version.size)) if version.content is not None else ()
