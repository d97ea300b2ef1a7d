"""The permissions that operations of ECR need, and the facts about repositories that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags, with_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE
from corral.model.principal import ROOT
from corral.operations.listings import Listed
from corral.store import Store

# Operations that change settings of the whole registry. They belong to the root user.
OF_REGISTRY = frozenset(
    {"DeleteRegistryPolicy", "PutAccountSetting", "PutRegistryPolicy", "PutRegistryScanningConfiguration",
     "PutReplicationConfiguration"}
)  # fmt: skip


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str:
    repository = tx.store.images.repository(caller.region, element["repositoryName"])
    return repository.owner if repository is not None else ""


LISTED = {"DescribeRepositories": Listed(("repositories",), _owner)}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    repository = f"arn:aws:ecr:{caller.region}:{caller.account}:repository/"
    names = params.get("repositoryNames") or ([params["repositoryName"]] if params.get("repositoryName") else [])
    if operation == "DescribeRepositories" and not names:
        names = ["*"]
    arns = [f"{repository}{name}" for name in names]
    needed = on_resources(
        f"ecr:{operation}", arns or ([params["resourceArn"]] if params.get("resourceArn") else []), request_tags(params)
    )
    if operation == "CreateRepository":
        needed += with_tags("ecr:TagResource", arns, params)
    # A request to the registry can take a layer from another repository. The caller must be allowed to read it there.
    return needed + [Permission("ecr:GetDownloadUrlForLayer", f"{repository}{name}") for name in params.get("mountedFrom") or ()]


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    if permission.resource == NO_RESOURCE:
        return ResourceFacts(ROOT if permission.action.removeprefix("ecr:") in OF_REGISTRY else None)
    region, _, name = permission.resource.removeprefix("arn:aws:ecr:").partition(f":{caller.account}:repository/")
    repository = tx.store.images.repository(region, name) if name else None
    if repository is None:
        return ResourceFacts()
    return ResourceFacts(repository.owner, repository.tags, repository.about.get("policyText"))
