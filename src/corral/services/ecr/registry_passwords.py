"""Passwords for the image registry. GetAuthorizationToken issues them, and `docker login` stores them.

A password is a token that contains a principal, a region and an expiry time, and a MAC of these (`access/sessions.py`). So Corral
need not store passwords. On AWS, the address of a registry contains the region, but the address of this registry does not. So the
region in the password selects the repositories.
"""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

import orjson

from corral.access.sessions import compressed, decompressed, opened, packed, sealed, terms_of
from corral.model.principal import Principal
from corral.model.session import SessionTerms

USER = "AWS"
LIFETIME_S = 12 * 3600  # the same as on ECR
PURPOSE = "image registry"


class RegistryAccess(NamedTuple):
    principal: Principal  # the caller that requested the password
    region: str
    expires_at_s: int
    task_id: str | None  # the task that requested the password; when this task stops, the password becomes invalid
    confined: bool = False  # True if a program in a container requested the password (`Caller.confined`)
    epoch: str = "0"  # if `SessionValidity` no longer has this epoch, the password is invalid
    terms: SessionTerms | None = None  # of the session that requested the password


def password(key: bytes, access: RegistryAccess) -> str:
    return sealed(key, PURPOSE, compressed(packed(tuple(access))))


def access_of(key: bytes, password: str) -> RegistryAccess | None:
    """Return the content of a password. Return None if Corral did not issue the password. The caller checks the expiry time."""
    payload = opened(key, PURPOSE, password)
    if payload is None:
        return None
    principal, region, expires_at_s, task_id, confined, epoch, *terms = orjson.loads(decompressed(payload))
    given = terms_of(terms[0]) if terms else None
    return RegistryAccess(Principal(*principal), region, expires_at_s, task_id, confined, epoch, given)


def docker_auth(server: str, password: str) -> str:
    """Return the header X-Registry-Auth for a request that makes a Docker engine pull an image."""
    login = orjson.dumps({"username": USER, "password": password, "serveraddress": server})
    return b64encode(login, altchars=b"-_").decode()
