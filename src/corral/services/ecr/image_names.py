"""Image names that refer to this registry: ECR addresses of this account, and addresses of this machine with Corral's port."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from corral.model.principal import ROOT, acting_service
from corral.model.settings import Settings
from corral.services.ecr.registry_passwords import LIFETIME_S, RegistryAccess, docker_auth, password

# For example 123456789012.dkr.ecr.eu-west-1.amazonaws.com/name:tag. Addresses for IPv6, FIPS and China also match.
_ECR_NAME = re.compile(
    r"([0-9]{12})\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws|on\.amazonwebservices\.com\.cn)/(.+)"
)
_LOCAL_NAME = re.compile(r"(?:localhost|127\.0\.0\.1):([0-9]{1,5})/(.+)")
# The password for pulls changes once in this time. A Docker engine can combine several pulls into one if their password is equal.
_ROTATION_S = 3600
HOSTS = "hosts"  # the name of the principal in this password, with which the registry allows only pulls


class RegistryPull(NamedTuple):
    image: str  # a name at localhost, because a Docker engine accepts localhost without TLS; the name contains the region
    auth: str  # the value of the header X-Registry-Auth


def region_prefix(region: str, *, controls_host: bool) -> str:
    """Return the prefix that `pull_from_here` adds to the name of a repository.

    The prefix lets a Docker engine distinguish the images of two regions. Tasks that can control the host have another prefix, with
    which the registry refuses some tags (`tag_refusal`). So they never use an image that another task has pulled.
    """
    return f"ecr-host.{region}" if controls_host else f"ecr.{region}"


def host_image(settings: Settings, region: str, name: str, *, controls_host: bool = False) -> str:
    """Return the name by which hosts pull the image `name` of a region from this registry."""
    return f"{_server(settings)}/{region_prefix(region, controls_host=controls_host)}/{name}"


def _server(settings: Settings) -> str:
    return f"localhost:{urlsplit(settings.endpoint_url).port}"


class OwnImage(NamedTuple):
    region: str
    name: str  # REPOSITORY, REPOSITORY:TAG or REPOSITORY@DIGEST


def own_image(settings: Settings, image: str, region: str) -> OwnImage | None:
    """Return the region and the name of an image in this registry. Return None for an image in another registry.

    `region` is used if the name of the image contains no region.
    """
    if (found := _ECR_NAME.fullmatch(image)) is not None:
        account, region, name = found.groups()
        return OwnImage(region, name) if account == settings.account else None
    if (found := _LOCAL_NAME.fullmatch(image)) is not None:
        return OwnImage(region, found[2]) if int(found[1]) == urlsplit(settings.endpoint_url).port else None
    return None


def pull_from_here(
    settings: Settings, image: str, region: str, now_s: float, *, controls_host: bool = False
) -> RegistryPull | None:
    """Return how a host pulls an image from this registry. Return None for an image in another registry.

    `region` is used if the name of the image contains no region.
    """
    own = own_image(settings, image, region)
    if own is None:
        return None
    region, name = own
    server = _server(settings)
    expires_at_s = int(now_s // _ROTATION_S + 1) * _ROTATION_S + LIFETIME_S
    principal = acting_service(settings.account, HOSTS, ROOT)
    access = RegistryAccess(principal, region, expires_at_s, None, epoch=settings.sessions.of_root)
    pulled = host_image(settings, region, name, controls_host=controls_host)
    return RegistryPull(pulled, docker_auth(server, password(settings.session_key, access)))
