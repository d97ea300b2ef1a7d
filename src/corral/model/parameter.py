"""A parameter of the Parameter Store (SSM)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

SECURE = "SecureString"


class Parameter(Struct, frozen=True):
    """One version of a parameter. The value of a SecureString is encrypted (`services/ssm/encryption.py`). The repr hides it."""

    region: str
    name: str
    version: int
    type: str  # String, StringList or SecureString
    value: str
    modified_at_s: float
    modified_by: str
    details: dict[str, Any]  # Description, KeyId, AllowedPattern, Tier, Policies, DataType: those that were given
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Parameter({self.region!r}, {self.name!r}, {self.version})"
