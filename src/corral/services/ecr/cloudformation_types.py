"""ECR resource types of CloudFormation templates: repositories, and the settings of the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.ecr import registry_settings
from corral.services.ecr.repository_names import arn, find, registry_address
from corral.store import Store
from corral.template_types.api_types import Params, Setting, Tagging, api_type, camel_case, json_text
from corral.template_types.resource_types import Properties, TemplateType


def _create_request(caller: Caller, properties: Properties) -> Params:
    return {
        "repositoryName": properties["RepositoryName"],
        "encryptionConfiguration": camel_case(properties.get("EncryptionConfiguration")),
        **_mutability(properties),
    }


def _mutability(properties: Properties) -> Params:
    filters = properties.get("ImageTagMutabilityExclusionFilters")
    return {
        "imageTagMutability": properties.get("ImageTagMutability", "MUTABLE"),
        "imageTagMutabilityExclusionFilters": filters
        and [
            {
                "filterType": each["ImageTagMutabilityExclusionFilterType"],
                "filter": each["ImageTagMutabilityExclusionFilterValue"],
            }
            for each in filters
        ],
    }


def _update_request(identity: str, old: Properties, new: Properties) -> Params:
    return {"repositoryName": identity, **_mutability(new)}


def _add_system_tags(tx: Tx[Store], caller: Caller, name: str, tags: dict[str, str]) -> None:
    repository = find(tx, caller, name)
    tx.store.images.set_repository(replace(repository, tags={**repository.tags, **tags}))


def _read(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any]:
    return {"Arn": arn(caller, name), "RepositoryUri": f"{registry_address(tx, caller)}/{name}"}


def _registry_type(
    name: str,
    setting: str,
    put: str,
    request: Callable[[Caller, Properties], Params],
    delete: str,
    default: Params,
) -> TemplateType:
    """Return the type of a registry setting. A stack deletes a setting by the operation `delete` with the parameters `default`."""

    return api_type(
        f"AWS::ECR::{name}",
        "ecr",
        identity=lambda tx, caller, properties: caller.account,
        target=lambda identity, properties: default,
        create=put,
        request=request,
        delete=delete,
        missing=("RegistryPolicyNotFoundException",),
        exists=lambda tx, caller, properties: (
            tx.store.stored.get("ecr", registry_settings.KIND, caller.region, setting) is not None
        ),
        update=put,
        attributes=lambda tx, caller, identity: {"RegistryId": identity},
    )


TEMPLATE_TYPES = (
    api_type(
        "AWS::ECR::Repository",
        "ecr",
        identity="RepositoryName",
        target="repositoryName",
        create="CreateRepository",
        request=_create_request,
        delete="DeleteRepository",
        delete_request=lambda properties: {"force": properties.get("EmptyOnDelete", False)},
        missing=("RepositoryNotFoundException",),
        update="PutImageTagMutability",
        update_request=_update_request,
        settings={
            "ImageScanningConfiguration": Setting(
                "PutImageScanningConfiguration", lambda value: {"imageScanningConfiguration": camel_case(value)}, default={}
            ),
            "LifecyclePolicy": Setting(
                "PutLifecyclePolicy",
                lambda policy: {"lifecyclePolicyText": policy.get("LifecyclePolicyText")},
                "DeleteLifecyclePolicy",
            ),
            "RepositoryPolicyText": Setting(
                "SetRepositoryPolicy", lambda text: {"policyText": json_text(text)}, "DeleteRepositoryPolicy"
            ),
        },
        unsent=("EmptyOnDelete",),
        tagging=Tagging(
            "TagResource",
            "UntagResource",
            lambda caller, identity: {"resourceArn": arn(caller, identity)},
            tags="tags",
            keys="tagKeys",
        ),
        system_tags=_add_system_tags,
        attributes=_read,
        name_property="RepositoryName",
    ),
    _registry_type(
        "RegistryPolicy",
        registry_settings.POLICY,
        "PutRegistryPolicy",
        lambda caller, properties: {"policyText": json_text(properties["PolicyText"])},
        "DeleteRegistryPolicy",
        {},
    ),
    _registry_type(
        "ReplicationConfiguration",
        registry_settings.REPLICATION,
        "PutReplicationConfiguration",
        lambda caller, properties: {"replicationConfiguration": camel_case(properties["ReplicationConfiguration"])},
        "PutReplicationConfiguration",
        {"replicationConfiguration": registry_settings.DEFAULTS[registry_settings.REPLICATION]},
    ),
    _registry_type(
        "RegistryScanningConfiguration",
        registry_settings.SCANNING,
        "PutRegistryScanningConfiguration",
        lambda caller, properties: {"scanType": properties["ScanType"], "rules": camel_case(properties["Rules"])},
        "PutRegistryScanningConfiguration",
        registry_settings.DEFAULTS[registry_settings.SCANNING],
    ),
)
