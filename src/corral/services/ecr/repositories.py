"""Operations on repositories and their tags, and GetAuthorizationToken."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.access.roles import password_epoch
from corral.core.clock import WallSeconds
from corral.core.transactions import Tx
from corral.model.image import Repository
from corral.operations.tags import TagRules
from corral.services.ecr import errors, registry_passwords
from corral.services.ecr.image_storage import drop_repository
from corral.services.ecr.repository_names import (
    PAGES,
    arn,
    check_unpaged,
    find,
    identity,
    registry_address,
    registry_url,
    requested_repository,
    violated,
)
from corral.store import Store

WILDCARDS_MAX = 2  # per filter
WITH_EXCLUSION = "_WITH_EXCLUSION"
MUTABILITY, FILTERS = "imageTagMutability", "imageTagMutabilityExclusionFilters"
SCANNING, ENCRYPTION = "imageScanningConfiguration", "encryptionConfiguration"
DESCRIBED = (MUTABILITY, FILTERS, SCANNING, ENCRYPTION)  # these settings are in the description of a repository
TAG_RULES = TagRules(
    errors.InvalidTagParameterException,
    errors={"count": errors.TooManyTagsException},
    texts={"count": "A repository has at most {max} tags."},
    any_character=True,
)


def create_repository(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["repositoryName"]
    if params.get("registryId", caller.account) != caller.account:
        raise violated("registryId", f"repositories can only be created in the registry with id '{caller.account}'")
    encryption = params.get(ENCRYPTION, {"encryptionType": "AES256"})
    about = {**_mutability({MUTABILITY: "MUTABLE", **params}), SCANNING: _scanning(params), ENCRYPTION: encryption}
    tags = TAG_RULES.read(params.get("tags", []))
    if tx.store.images.repository(caller.region, name) is not None:
        raise errors.RepositoryAlreadyExistsException(
            f"The repository with name '{name}' already exists in the registry with id '{caller.account}'"
        )
    added = tx.store.images.add_repository(caller.region, name, tx.now_s, about, tags, caller.owner)
    return {"repository": _description(tx, caller, added)}


def describe_repositories(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe all repositories, or those in the request. All repositories in the request must exist."""
    if (names := params.get("repositoryNames")) is not None:
        check_unpaged(params, "repositoryNames")
        named = [requested_repository(tx, {**params, "repositoryName": name}, caller) for name in dict.fromkeys(names)]
        return {"repositories": [_description(tx, caller, each) for each in named]}
    if params.get("registryId", caller.account) != caller.account:
        raise errors.RepositoryNotFoundException(f"The registry with id '{params['registryId']}' does not exist")

    def listed(after: str, limit: int) -> list[tuple[str, Repository]]:
        return [(each.name, each) for each in tx.store.images.repositories(caller.region, after, limit)]

    page, token = PAGES.page(params, listed)
    return {"repositories": [_description(tx, caller, each) for each in page], **token}


def delete_repository(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = requested_repository(tx, params, caller)
    if not params.get("force") and tx.store.images.images(repository.id, 0, 1):
        raise errors.RepositoryNotEmptyException(
            f"The repository with name '{repository.name}' in registry with id '{caller.account}' cannot be deleted because it "
            "still contains images"
        )
    drop_repository(tx, repository)
    return {"repository": _description(tx, caller, repository)}


def put_image_tag_mutability(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = requested_repository(tx, params, caller)
    changed = _mutability(params)
    others = {key: value for key, value in repository.about.items() if key != FILTERS}
    tx.store.images.set_repository(replace(repository, about=others | changed))
    return {**identity(caller, repository), **changed}


def put_image_scanning_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Store the configuration. It has no effect, because Corral does not scan images."""
    repository = requested_repository(tx, params, caller)
    changed = {SCANNING: _scanning(params)}
    tx.store.images.set_repository(replace(repository, about=repository.about | changed))
    return {**identity(caller, repository), **changed}


def get_authorization_token(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    registries = params.get("registryIds", [caller.account])
    if set(registries) != {caller.account}:
        raise violated("registryIds", f"the only registry is the one with id '{caller.account}'")
    until_s = int(tx.wall_s) + registry_passwords.LIFETIME_S
    access = registry_passwords.RegistryAccess(
        caller.principal, caller.region, until_s, caller.task_id, caller.confined, password_epoch(tx, caller), caller.terms
    )
    password = registry_passwords.password(tx.settings.session_key, access)
    token = b64encode(f"{registry_passwords.USER}:{password}".encode()).decode()
    data = {
        "authorizationToken": token,
        "expiresAt": WallSeconds(until_s),
        "proxyEndpoint": registry_url(tx, caller),
    }
    return {"authorizationData": [data] * len(registries)}


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = _tagged(tx, params, caller)
    tx.store.images.set_repository(replace(repository, tags=TAG_RULES.merge(repository.tags, TAG_RULES.read(params["tags"]))))
    return {}


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = _tagged(tx, params, caller)
    tx.store.images.set_repository(replace(repository, tags=TAG_RULES.remove(repository.tags, params["tagKeys"])))
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": TAG_RULES.to_list(_tagged(tx, params, caller).tags)}


def _description(tx: Tx[Store], caller: Caller, repository: Repository) -> dict[str, Any]:
    return {
        **identity(caller, repository),
        "repositoryArn": arn(caller, repository.name),
        "repositoryUri": f"{registry_address(tx, caller)}/{repository.name}",
        "createdAt": repository.created_at_s,
        **{key: repository.about[key] for key in DESCRIBED if key in repository.about},
    }


def _scanning(params: dict[str, Any]) -> dict[str, bool]:
    return {"scanOnPush": params.get(SCANNING, {}).get("scanOnPush", False)}


def _mutability(params: dict[str, Any]) -> dict[str, Any]:
    """Return the tag mutability in a request, after checking it by ECR's rules."""
    mutability, filters = params[MUTABILITY], params.get(FILTERS)
    if (filters is not None) != mutability.endswith(WITH_EXCLUSION):
        values = f"IMMUTABLE{WITH_EXCLUSION} or MUTABLE{WITH_EXCLUSION}"
        raise violated(FILTERS, f"is required if {MUTABILITY} is {values}, and otherwise not allowed")
    if filters is None:
        return {MUTABILITY: mutability}
    if any(each["filter"].count("*") > WILDCARDS_MAX for each in filters):
        raise violated("filter", f"must have at most {WILDCARDS_MAX} wildcards")
    return {MUTABILITY: mutability, FILTERS: filters}


def _tagged(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Repository:
    given, own = params["resourceArn"], arn(caller, "")
    if not given.startswith(own):
        raise violated("resourceArn", f"Invalid ARN: {given} is not a repository of this account and region ({own}NAME)")
    return find(tx, caller, given.removeprefix(own))
