"""Image names that refer to this registry: ECR addresses of this account, and Corral's port on this machine."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from corral.model.settings import Settings
from corral.services.ecr.registry_passwords import LIFETIME_S, RegistryAccess, docker_auth, password
from corral.services.sessions import HOST_ROLE, role_session

# 123456789012.dkr.ecr.eu-west-1.amazonaws.com/name:tag, and the variants for IPv6, FIPS and China.
_ECR_NAME = re.compile(
    r"([0-9]{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws|on\.amazonwebservices\.com\.cn)/(.+)"
)
_LOCAL_NAME = re.compile(r"(?:localhost|127\.0\.0\.1):([0-9]{1,5})/(.+)")
_ROTATION_S = 3600  # pulls of an image within this time use the same password, so that an engine can pull once for all of them


class RegistryPull(NamedTuple):
    image: str  # a name at localhost, which a Docker engine trusts without TLS; it includes the region
    auth: str  # X-Registry-Auth


def region_prefix(region: str) -> str:
    """The first part of a repository's name when a host pulls from it: an engine must not mix up two regions."""
    return f"ecr.{region}"


def pull_from_here(settings: Settings, image: str, region: str, now_s: float) -> RegistryPull | None:
    """How a host pulls an image of this registry; None for an image of another registry. `region` is for names without one."""
    if (found := _ECR_NAME.fullmatch(image)) is not None:
        account, region, name = found.groups()
        is_ours = account == settings.account
    elif (found := _LOCAL_NAME.fullmatch(image)) is not None:
        name = found[2]
        is_ours = int(found[1]) == urlsplit(settings.endpoint_url).port
    else:
        return None
    if not is_ours:
        return None
    server = f"localhost:{urlsplit(settings.endpoint_url).port}"
    expires_at_s = int(now_s // _ROTATION_S + 1) * _ROTATION_S + LIFETIME_S
    principal = role_session(settings.account, HOST_ROLE, "pull")
    access = RegistryAccess(principal, region, expires_at_s, None, epoch=settings.sessions.of_root)
    return RegistryPull(f"{server}/{region_prefix(region)}/{name}", docker_auth(server, password(settings.session_key, access)))
