"""Temporary credentials, and the session to which they belong."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CredentialSession:
    """A principal for a limited time."""

    access_key_id: str
    principal: str  # an ARN
    expires_at_s: int
    task_id: str | None = None  # the session ends with this task


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys with which a client signs requests of a session."""

    session: CredentialSession
    secret_key: str = field(repr=False)
    token: str = field(repr=False)
