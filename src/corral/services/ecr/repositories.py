"""Repositories, and passwords for the registry that they are in."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.model.image import Repository
from corral.services.caller import Caller
from corral.services.ecr import access
from corral.services.ecr.naming import (
    PAGES,
    RepositoryNotFoundException,
    arn,
    check_unpaged,
    identity,
    meant,
    registry,
    violated,
)
from corral.services.ecr.pushing import drop_repository
from corral.services.ecr.tags import RULES
from corral.store import Store

RepositoryAlreadyExistsException = api_error("RepositoryAlreadyExistsException")
RepositoryNotEmptyException = api_error("RepositoryNotEmptyException")

WILDCARDS_MAX = 2  # in a filter
WITH_EXCLUSION = "_WITH_EXCLUSION"
MUTABILITY, FILTERS = "imageTagMutability", "imageTagMutabilityExclusionFilters"
SCANNING, ENCRYPTION = "imageScanningConfiguration", "encryptionConfiguration"
SHOWN = (MUTABILITY, FILTERS, SCANNING, ENCRYPTION)  # of what was said of a repository


def create_repository(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["repositoryName"]
    if params.get("registryId", caller.account) != caller.account:
        raise violated("registryId", f"repositories can only be made in the registry with id '{caller.account}'")
    encryption = params.get(ENCRYPTION, {"encryptionType": "AES256"})
    about = {**_mutability({MUTABILITY: "MUTABLE", **params}), SCANNING: _scanning(params), ENCRYPTION: encryption}
    tags = RULES.read(params.get("tags", []))
    if tx.store.images.repository(caller.region, name) is not None:
        raise RepositoryAlreadyExistsException(
            f"The repository with name '{name}' already exists in the registry with id '{caller.account}'"
        )
    return {"repository": _shown(tx, caller, tx.store.images.add_repository(caller.region, name, tx.now_s, about, tags))}


def describe_repositories(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """By name. Of those that are asked for by name each must be there."""
    if (names := params.get("repositoryNames")) is not None:
        check_unpaged(params, "repositoryNames")
        named = [meant(tx, {**params, "repositoryName": name}, caller) for name in dict.fromkeys(names)]
        return {"repositories": [_shown(tx, caller, each) for each in named]}
    if params.get("registryId", caller.account) != caller.account:
        raise RepositoryNotFoundException(f"There is no registry with id '{params['registryId']}' here")

    def listed(after: str, limit: int) -> list[tuple[str, Repository]]:
        return [(each.name, each) for each in tx.store.images.repositories(caller.region, after, limit)]

    page, token = PAGES.page(params, listed)
    return {"repositories": [_shown(tx, caller, each) for each in page], **token}


def delete_repository(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = meant(tx, params, caller)
    if not params.get("force") and tx.store.images.images(repository.id, 0, 1):
        raise RepositoryNotEmptyException(
            f"The repository with name '{repository.name}' in registry with id '{caller.account}' cannot be deleted because it "
            "still contains images"
        )
    drop_repository(tx, repository)
    return {"repository": _shown(tx, caller, repository)}


def put_image_tag_mutability(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = meant(tx, params, caller)
    said = _mutability(params)
    kept = {key: value for key, value in repository.about.items() if key != FILTERS}
    tx.store.images.set_repository(replace(repository, about=kept | said))
    return {**identity(caller, repository), **said}


def put_image_scanning_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Kept and shown. Nothing is scanned here, and nothing looks as if it were."""
    repository = meant(tx, params, caller)
    said = {SCANNING: _scanning(params)}
    tx.store.images.set_repository(replace(repository, about=repository.about | said))
    return {**identity(caller, repository), **said}


def get_authorization_token(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    registries = params.get("registryIds", [caller.account])
    if set(registries) != {caller.account}:
        raise violated("registryIds", f"the only registry here is the one with id '{caller.account}'")
    until_s = int(tx.now_s) + access.LIFETIME_S
    password = access.password(tx.settings.session_key, access.Access(caller.principal, caller.region, until_s, caller.task_id))
    token = b64encode(f"{access.USER}:{password}".encode()).decode()
    data = {"authorizationToken": token, "expiresAt": until_s, "proxyEndpoint": f"http://{registry(tx, caller)}"}
    return {"authorizationData": [data] * len(registries)}


def _shown(tx: Tx[Store], caller: Caller, repository: Repository) -> dict[str, Any]:
    return {
        **identity(caller, repository),
        "repositoryArn": arn(caller, repository.name),
        "repositoryUri": f"{registry(tx, caller)}/{repository.name}",
        "createdAt": repository.created_at_s,
        **{key: repository.about[key] for key in SHOWN if key in repository.about},
    }


def _scanning(params: dict[str, Any]) -> dict[str, bool]:
    return {"scanOnPush": params.get(SCANNING, {}).get("scanOnPush", False)}


def _mutability(params: dict[str, Any]) -> dict[str, Any]:
    """Which tags may move, by ECR's rules."""
    said, filters = params[MUTABILITY], params.get(FILTERS)
    if (filters is not None) != said.endswith(WITH_EXCLUSION):
        both = f"IMMUTABLE{WITH_EXCLUSION} and MUTABLE{WITH_EXCLUSION}"
        raise violated(FILTERS, f"must be given with {both}, and with nothing else")
    if filters is None:
        return {MUTABILITY: said}
    if any(each["filter"].count("*") > WILDCARDS_MAX for each in filters):
        raise violated("filter", f"must have at most {WILDCARDS_MAX} wildcards")
    return {MUTABILITY: said, FILTERS: filters}
