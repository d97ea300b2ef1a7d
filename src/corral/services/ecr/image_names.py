"""Names of images that mean this registry: ECR's own of our account, and our port on this machine."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from corral.model.settings import Settings
from corral.services.ecr.access import LIFETIME_S, Access, docker_auth, password
from corral.services.sessions import HOST_ROLE, role_session

# 123456789012.dkr.ecr.eu-west-1.amazonaws.com/name:tag; and the addresses for IPv6, for FIPS, and of China.
_OF_ECR = re.compile(
    r"([0-9]{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws|on\.amazonwebservices\.com\.cn)/(.+)"
)
_OF_HERE = re.compile(r"(?:localhost|127\.0\.0\.1):([0-9]{1,5})/(.+)")
_SAME_FOR_S = 3600  # so that those who pull the same image at the same time do so with the same words, and it is pulled once


class Pull(NamedTuple):
    image: str  # as an engine of this machine takes it, which trusts localhost without TLS and is told whose region it is
    auth: str


def region_prefix(region: str) -> str:
    """With what a host begins the name of a region's repository."""
    return f"ecr.{region}"


def pull_from_here(settings: Settings, image: str, region: str, now_s: float) -> Pull | None:
    """How a host gets an image of this registry; None: it is not from here. Where the name has no region, `region` is meant."""
    if (found := _OF_ECR.fullmatch(image)) is not None:
        account, region, name = found.groups()
        is_ours = account == settings.account
    elif (found := _OF_HERE.fullmatch(image)) is not None:
        name = found[2]
        is_ours = int(found[1]) == urlsplit(settings.endpoint_url).port
    else:
        return None
    if not is_ours:
        return None
    server = f"localhost:{urlsplit(settings.endpoint_url).port}"
    expires_at_s = int(now_s // _SAME_FOR_S + 1) * _SAME_FOR_S + LIFETIME_S
    access = Access(role_session(settings.account, HOST_ROLE, "pull"), region, expires_at_s, None)
    return Pull(f"{server}/{region_prefix(region)}/{name}", docker_auth(server, password(settings.session_key, access)))
