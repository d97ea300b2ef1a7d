"""Names, ARNs and addresses of repositories, and the errors that several ECR operations raise."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.image import Repository
from corral.operations.pagination import Pagination
from corral.services.ecr import errors
from corral.store import Store

NAME = re.compile(r"(?:[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*/)*[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
NAME_MAX_CHARACTERS = 256
PAGES = Pagination(errors.InvalidParameterException)
# Host names under which programs and containers reach this machine.
THIS_MACHINE = re.compile(r"localhost|127\..*|::1|169\.254\.170\.2")


def find(tx: Tx[Store], caller: Caller, name: str) -> Repository:
    """Return the repository with this name in the caller's region. Raise an error if it does not exist."""
    found = tx.store.images.repository(caller.region, name)
    if found is None:
        raise _no_repository(name, caller.account)
    return found


def requested_repository(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Repository:
    """Return the repository that a request refers to. The only registry is the registry of the caller's account."""
    name = params["repositoryName"]
    if params.get("registryId", caller.account) != caller.account:
        raise _no_repository(name, params["registryId"])
    return find(tx, caller, name)


def identity(caller: Caller, repository: Repository) -> dict[str, Any]:
    """Return the members that most responses contain."""
    return {"registryId": caller.account, "repositoryName": repository.name}


def arn(caller: Caller, name: str) -> str:
    return f"arn:aws:ecr:{caller.region}:{caller.account}:repository/{name}"


def registry_address(tx: Tx[Store], caller: Caller) -> str:
    """Return the host and port at which the caller's Docker reaches the registry.

    Docker accepts a registry without TLS only on localhost, and stores a login under the given address. So every name of this
    machine is replaced with `localhost`. The port is always included, because Docker would search for an image "box/name", without
    a port, on Docker Hub.
    """
    try:
        address = urlsplit(caller.endpoint_url or tx.settings.endpoint_url)
        host, port = address.hostname or "localhost", address.port or (443 if address.scheme == "https" else 80)
    except ValueError:  # the Host header of the request is not a valid address
        return urlsplit(tx.settings.endpoint_url).netloc
    host = "localhost" if THIS_MACHINE.fullmatch(host) else f"[{host}]" if ":" in host else host
    return f"{host}:{port}"


def registry_url(tx: Tx[Store], caller: Caller) -> str:
    """Return the URL of the registry. On localhost it has no TLS."""
    address = registry_address(tx, caller)
    return f"{'https' if caller.secure and not address.startswith('localhost:') else 'http'}://{address}"


def check_unpaged(params: dict[str, Any], named: str, *others: str) -> None:
    """Raise an error if a request contains both names of items and members for pagination.

    The response to a request with names has all these items, so it has no pages.
    """
    for member in ("nextToken", "maxResults", *others):
        if member in params:
            raise violated(member, f"cannot be used together with {named}")


def violated(member: str, rule: str) -> ApiError:
    return errors.InvalidParameterException(f"Invalid parameter at '{member}' failed to satisfy constraint: '{rule}'")


def _no_repository(name: str, registry_id: str) -> ApiError:
    why = f"The repository with name '{name}' does not exist in the registry with id '{registry_id}'"
    return errors.RepositoryNotFoundException(why)
