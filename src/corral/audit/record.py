"""A record of the audit: one call, or several equal calls that were denied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

PARAMETERS_MAX_BYTES = 32 * 1024  # the parameters of a larger request are not recorded


class AuditRecord(Struct, frozen=True, omit_defaults=True):
    id: str
    at_s: float  # wall time
    service: str  # botocore's name for the service
    operation: str
    region: str
    kind: str  # of the principal, as in model/principal.py
    arn: str  # of the principal
    owner: str = ""  # of the principal
    name: str = ""  # of the user or role
    session: str = ""
    access_key_id: str = ""
    source: str = ""  # the address of the client, or the service that called on behalf of the principal
    agent: str = ""
    request_id: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)  # without secrets
    omitted: bool = False  # True: the parameters were too large
    found: Mapping[str, Any] = field(default_factory=dict)  # the names and ids in the response
    error: str = ""  # the code of the error; empty: the call succeeded
    message: str = ""
    repeats: int = 0  # of a record that stands for further denied calls, equal to one before: their number
    reads: bool = False  # a denied call that would have changed nothing
    is_data: bool = False  # a call about data, such as an object


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not have."""
    return dict(value) if isinstance(value, Mapping) else str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER = msgspec.json.Decoder(AuditRecord)


def encode(record: AuditRecord) -> bytes:
    """Return the record as one line of a file."""
    line = _ENCODER.encode(record)
    if len(line) > PARAMETERS_MAX_BYTES:
        line = _ENCODER.encode(msgspec.structs.replace(record, params={}, omitted=True, found={}))
    return line + b"\n"


def decode(line: bytes) -> AuditRecord | None:
    """Return the record in a line. Return None if the line is damaged, for example because the machine lost power."""
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        return None
