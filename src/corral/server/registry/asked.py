"""One request to the registry, as far as it is known before anybody looks for what it asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from corral import aws
from corral.decide.manifest import DIGEST
from corral.server.registry.errors import DigestInvalid, NameInvalid, PageUnknown
from corral.server.request_body import Receive
from corral.services.caller import Caller
from corral.services.ecr.image_names import region_prefix
from corral.services.ecr.naming import NAME, NAME_MAX

PAGE_MAX = 1000  # names in one answer

_PATH = re.compile(r"/v2/(.+)/(manifests|blobs/uploads|blobs|tags|referrers)/([^/]*)")


@dataclass(frozen=True, slots=True)
class Page:
    """What a path means."""

    kind: str  # "", "_catalog", "manifests", "blobs", "blobs/uploads", "tags" or "referrers"
    name: str = ""  # of the repository
    reference: str = ""  # a tag, a digest, the id of an upload; or nothing


@dataclass(frozen=True, slots=True)
class Asked:
    head: aws.Request
    receive: Receive
    page: Page
    caller: Caller
    query: dict[str, str]

    @property
    def name(self) -> str:
        return self.page.name

    @property
    def reference(self) -> str:
        return self.page.reference


def page_of(path: str, region: str) -> Page:
    path = unquote(path)
    if path in ("/v2", "/v2/"):
        return Page("")
    if path == "/v2/_catalog":
        return Page("_catalog")
    if path.endswith("/blobs/uploads"):
        path += "/"  # clients disagree
    found = _PATH.fullmatch(path)
    if found is None:
        raise PageUnknown(f"The registry has no page {path}.")
    name, kind, reference = plain_name(found[1], region), found[2], found[3]
    if len(name) > NAME_MAX or not NAME.fullmatch(name):
        raise NameInvalid(f"{name!r} is no name of a repository.")
    return Page(kind, name, reference)


def plain_name(name: str, region: str) -> str:
    """A repository's name at ECR. Hosts say the region, too: to an engine the same name of two regions would be one image."""
    return name.removeprefix(f"{region_prefix(region)}/")


def query_of(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True))


def digest_of(text: str) -> str:
    """The text, if it is a digest."""
    if not DIGEST.fullmatch(text):
        raise DigestInvalid(f"{text!r} is no digest like sha256:0123…, with 64 hexadecimal digits.")
    return text
