"""A parsed request to the registry: its path, its caller and its query."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.decide.objects.manifest import DIGEST
from corral.server.http.request_body import Receive
from corral.server.registry.errors import DigestInvalid, NameInvalid, PathUnknown
from corral.services.ecr.image_names import region_prefix
from corral.services.ecr.repository_names import NAME, NAME_MAX_CHARACTERS

PAGE_MAX = 1000  # the most names or referrers in one response

_PATH = re.compile(r"/v2/(.+)/(manifests|blobs/uploads|blobs|tags|referrers)/([^/]*)")


class RegistryRoute(Struct, frozen=True):
    kind: str  # "", "_catalog", "manifests", "blobs", "blobs/uploads", "tags" or "referrers"
    name: str = ""  # the name of the repository
    reference: str = ""  # a tag, a digest or the id of an upload; may be empty
    controls_host: bool = False  # True if the image is pulled for a task that can control the host (see `region_prefix`)


class RegistryRequest(Struct, frozen=True):
    head: aws.Request
    receive: Receive
    route: RegistryRoute
    caller: Caller
    query: dict[str, str]

    @property
    def name(self) -> str:
        return self.route.name

    @property
    def reference(self) -> str:
        return self.route.reference


def route_of(path: str, region: str) -> RegistryRoute:
    path = unquote(path)
    if path in ("/v2", "/v2/"):
        return RegistryRoute("")
    if path == "/v2/_catalog":
        return RegistryRoute("_catalog")
    if path.endswith("/blobs/uploads"):
        path += "/"  # clients send both forms
    found = _PATH.fullmatch(path)
    if found is None:
        raise PathUnknown(f"The registry has no path {path}.")
    name, kind, reference = plain_name(found[1], region), found[2], found[3]
    if len(name) > NAME_MAX_CHARACTERS or not NAME.fullmatch(name):
        raise NameInvalid(
            f"{name!r} is not a valid name of a repository: use up to {NAME_MAX_CHARACTERS} lower-case letters, digits and . _ - /"
        )
    return RegistryRoute(kind, name, reference, found[1].startswith(f"{region_prefix(region, controls_host=True)}/"))


def plain_name(name: str, region: str) -> str:
    """Return the name of a repository in the API of ECR, without the prefix for the region.

    The agent of a host puts the region before the name when it pulls an image. Otherwise the Docker engine of the host would
    confuse images of two regions that have the same name.
    """
    for controls_host in (False, True):
        prefix = f"{region_prefix(region, controls_host=controls_host)}/"
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def query_of(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True))


def digest_of(text: str) -> str:
    """Return the text if it is a digest. Otherwise raise an error."""
    if not DIGEST.fullmatch(text):
        raise DigestInvalid(f"{text!r} is not a digest: use sha256: and 64 hexadecimal digits.")
    return text
