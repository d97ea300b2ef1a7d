"""Passwords for the image registry: GetAuthorizationToken issues them and `docker login` stores them.

A password is a signed token (`services/sessions.py`) with its principal, its region and its expiry, so no row is stored for it.
The address of the registry does not name a region, as ECR's address does: the password selects the region's repositories.
"""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

import orjson

from corral.services.sessions import opened, sealed

USER = "AWS"
LIFETIME_S = 12 * 3600  # as on ECR
PURPOSE = "image registry"


class RegistryAccess(NamedTuple):
    principal: str  # an ARN
    region: str
    expires_at_s: int
    task_id: str | None  # a password of a task ends with the task
    confined: bool = False  # as of the session that requested it
    epoch: str = "0"


def password(key: bytes, access: RegistryAccess) -> str:
    return sealed(key, PURPOSE, orjson.dumps(tuple(access)))


def access_of(key: bytes, password: str) -> RegistryAccess | None:
    """The content of a password; None if Corral did not issue it. The caller checks the expiry."""
    payload = opened(key, PURPOSE, password)
    return RegistryAccess(*orjson.loads(payload)) if payload is not None else None


def docker_auth(server: str, password: str) -> str:
    """The header X-Registry-Auth of a pull request to a Docker engine."""
    login = orjson.dumps({"username": USER, "password": password, "serveraddress": server})
    return b64encode(login, altchars=b"-_").decode()
