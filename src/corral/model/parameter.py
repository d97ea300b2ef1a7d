"""A parameter of the Parameter Store (SSM)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SECURE = "SecureString"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One version of a parameter. The value of a SecureString is encrypted (`services/ssm/encryption.py`)."""

    region: str
    name: str
    version: int
    type: str  # String, StringList or SecureString
    value: str = field(repr=False)
    modified_at_s: float
    modified_by: str
    details: dict[str, Any]  # Description, KeyId, AllowedPattern, Tier, Policies, DataType: those that were given
    labels: tuple[str, ...] = ()
