"""Names and addresses of repositories, and the errors and rules that all of ECR shares."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.model.image import Repository
from corral.services.caller import Caller
from corral.services.pagination import Pagination
from corral.store import Store

ImageAlreadyExistsException = api_error("ImageAlreadyExistsException")
ImageDigestDoesNotMatchException = api_error("ImageDigestDoesNotMatchException")
ImageNotFoundException = api_error("ImageNotFoundException")
ImageTagAlreadyExistsException = api_error("ImageTagAlreadyExistsException")
InvalidParameterException = api_error("InvalidParameterException")
LayersNotFoundException = api_error("LayersNotFoundException")
ReferencedImagesNotFoundException = api_error("ReferencedImagesNotFoundException")
RepositoryNotFoundException = api_error("RepositoryNotFoundException")

NAME = re.compile(r"(?:[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*/)*[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
NAME_MAX = 256  # characters
PAGES = Pagination(InvalidParameterException)
HERE = re.compile(r"localhost|127\..*|::1|169\.254\.170\.2")  # what this machine is called by its programs, and by its containers


def find(tx: Tx[Store], caller: Caller, name: str) -> Repository:
    """The repository of this name in the caller's region."""
    found = tx.store.images.repository(caller.region, name)
    if found is None:
        raise _no_repository(name, caller.account)
    return found


def meant(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Repository:
    """The repository that a request is about. There is one registry, the caller's own."""
    name = params["repositoryName"]
    if params.get("registryId", caller.account) != caller.account:
        raise _no_repository(name, params["registryId"])
    return find(tx, caller, name)


def identity(caller: Caller, repository: Repository) -> dict[str, Any]:
    """With what most replies begin."""
    return {"registryId": caller.account, "repositoryName": repository.name}


def arn(caller: Caller, name: str) -> str:
    return f"arn:aws:ecr:{caller.region}:{caller.account}:repository/{name}"


def registry(tx: Tx[Store], caller: Caller) -> str:
    """The registry's address as the caller's Docker reaches it: host and port.

    Docker trusts a registry without TLS on this machine alone, and keeps a login by the very name that it was given. So
    this machine has one name, however the caller called it. There is always a port: Docker looks for "box/name" elsewhere.
    """
    address = urlsplit(caller.endpoint_url or tx.settings.endpoint_url)
    host = address.hostname or "localhost"
    host = "localhost" if HERE.fullmatch(host) else f"[{host}]" if ":" in host else host
    return f"{host}:{address.port or 80}"


def check_unpaged(params: dict[str, Any], named: str, *others: str) -> None:
    """Whoever names what it wants gets all of it: pages are for listings."""
    for member in ("nextToken", "maxResults", *others):
        if member in params:
            raise violated(member, f"cannot be used together with {named}")


def violated(member: str, rule: str) -> ApiError:
    return InvalidParameterException(f"Invalid parameter at '{member}' failed to satisfy constraint: '{rule}'")


def _no_repository(name: str, registry_id: str) -> ApiError:
    why = f"The repository with name '{name}' does not exist in the registry with id '{registry_id}'"
    return RepositoryNotFoundException(why)
