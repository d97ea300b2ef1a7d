"""Passwords for the registry: GetAuthorizationToken gives them, `docker login` keeps them, the registry takes them.

A password carries who it is for, which region's repositories it opens, and until when, with a seal (`services/sessions.py`):
nothing is kept of it. The registry's address does not name a region as ECR's does: the password does.
"""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

import orjson

from corral.services.sessions import opened, sealed

USER = "AWS"
LIFETIME_S = 12 * 3600  # as ECR's
PURPOSE = "registry"


class Access(NamedTuple):
    principal: str  # an ARN
    region: str
    expires_at_s: int
    task_id: str | None  # it is a task's, and ends with it


def password(key: bytes, access: Access) -> str:
    return sealed(key, PURPOSE, orjson.dumps(tuple(access)))


def access_of(key: bytes, password: str) -> Access | None:
    """None: it is not one of ours. It may have expired."""
    words = opened(key, PURPOSE, password)
    return Access(*orjson.loads(words)) if words is not None else None


def docker_auth(server: str, password: str) -> str:
    """As the engine takes it with a pull (X-Registry-Auth)."""
    words = orjson.dumps({"username": USER, "password": password, "serveraddress": server})
    return b64encode(words, altchars=b"-_").decode()
