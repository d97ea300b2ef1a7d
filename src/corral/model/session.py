"""A session: who somebody is for a while, and the keys that prove it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Session:
    access_key_id: str
    principal: str  # an ARN
    expires_at_s: int
    task_id: str | None = None  # it lives no longer than this task


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the holder of a session signs with."""

    session: Session
    secret_key: str = field(repr=False)
    token: str = field(repr=False)
