"""The SSM resource type of CloudFormation templates, and the values of parameters that templates refer to."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.parameter import SECURE
from corral.services.ssm.parameter_names import arn
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, Tagging, api_type
from corral.template_types.resource_types import Properties, ValidationError

MISSING = ("ParameterNotFound",)


def parameter_value(tx: Tx[Store], caller: Caller, name: str) -> str:
    """Return the value of a template parameter of a type such as `AWS::SSM::Parameter::Value<String>`.

    `name` may be an ARN, and may end with a version, as in `/name:3`.
    """
    found = _get(tx, caller, name, decrypt=False)
    if found is None:
        raise ValidationError(f"Unable to fetch parameters [{name}] from parameter store for this account.")
    if found["Type"] == SECURE:
        raise ValidationError(f"Parameters [{name}] referenced by template have types not supported by CloudFormation.")
    return str(found["Value"])


def dynamic_value(tx: Tx[Store], caller: Caller, reference: str) -> str:
    """Return the value of a dynamic reference, for example of `ssm:/name:3`, which a template writes as `{{resolve:ssm:/name:3}}`.

    Only `ssm-secure` may refer to a SecureString.
    """
    service, _, name = reference.partition(":")
    if service not in ("ssm", "ssm-secure"):
        raise ValidationError(
            f"Invalid dynamic reference: {{{{resolve:{reference}}}}}. The services are ssm, ssm-secure, secretsmanager."
        )
    found = _get(tx, caller, name, decrypt=service == "ssm-secure")
    if found is None:
        raise ValidationError(f"Parameters: [{reference}] cannot be found.")
    if found["Type"] == SECURE and service == "ssm":
        raise ValidationError(f"Non-secure ssm prefix was used for secure parameter: {name}")
    return str(found["Value"])


def _get(tx: Tx[Store], caller: Caller, name: str, *, decrypt: bool) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = call(tx, caller, "ssm", "GetParameter", {"Name": name, "WithDecryption": decrypt})["Parameter"]
    except ApiError as error:
        if error.code in (*MISSING, "ParameterVersionNotFound"):
            return None
        raise
    return found


def _members(properties: Properties) -> Params:
    return {name: value for name, value in properties.items() if name[0] != "_" and name != "Tags"}


def _overwrite_request(identity: str, old: Properties, new: Properties) -> Params:
    return {**_members(new), "Overwrite": True}


def _add_system_tags(tx: Tx[Store], caller: Caller, name: str, tags: dict[str, str]) -> None:
    tx.store.parameters.set_tags(caller.region, name, {**(tx.store.parameters.tags(caller.region, name) or {}), **tags})


def _read(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any]:
    found = call(tx, caller, "ssm", "GetParameter", {"Name": name})["Parameter"]
    return {"Type": found["Type"], "Value": found["Value"], "Arn": arn(caller.account, caller.region, name)}


TEMPLATE_TYPES = (
    api_type(
        "AWS::SSM::Parameter",
        "ssm",
        identity="Name",
        target="Name",
        create="PutParameter",
        request=lambda caller, properties: _members(properties),
        delete="DeleteParameter",
        missing=MISSING,
        update="PutParameter",
        update_request=_overwrite_request,
        tagging=Tagging(
            "AddTagsToResource",
            "RemoveTagsFromResource",
            lambda caller, identity: {"ResourceType": "Parameter", "ResourceId": identity},
        ),
        system_tags=_add_system_tags,
        attributes=_read,
        name_property="Name",
    ),
)
