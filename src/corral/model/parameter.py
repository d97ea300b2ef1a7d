"""Parameters of the Parameter Store (SSM)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

SECURE = "SecureString"


class Parameter(Struct, frozen=True):
    """One version of a parameter. The value of a SecureString is encrypted (`operations/encryption.py`).

    `repr` does not show the value.
    """

    region: str
    name: str
    version: int
    type: str  # String, StringList or SecureString
    value: str
    modified_at_s: float
    modified_by: str
    details: dict[str, Any]  # Description, KeyId, AllowedPattern, Tier, Policies and DataType, if the request contained them
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Parameter({self.region!r}, {self.name!r}, {self.version})"
