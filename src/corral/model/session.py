"""Temporary credentials, and the session to which they belong."""

from __future__ import annotations

from msgspec import Struct


class CredentialSession(Struct, frozen=True):
    """A principal for a limited time."""

    access_key_id: str
    principal: str  # an ARN
    expires_at_s: int
    task_id: str | None = None  # the session ends with this task


class Credentials(Struct, frozen=True):
    """The keys with which a client signs requests of a session. The repr shows no secret."""

    session: CredentialSession
    secret_key: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials({self.session!r})"
