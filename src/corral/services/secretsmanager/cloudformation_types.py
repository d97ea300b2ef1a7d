"""The resource types of Secrets Manager in CloudFormation templates, and the secrets to which templates refer."""

from __future__ import annotations

from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.json_documents import read_json
from corral.services.secretsmanager.references import of_template, referenced_text
from corral.services.secretsmanager.secret_names import change, find
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, Tagging, api_type, json_text, note_of, tag_values
from corral.template_types.resource_types import Properties, TemplateType, ValidationError

SERVICE = "secretsmanager"
MISSING = "ResourceNotFoundException"
MARKED = "InvalidRequestException"
DESCRIBED = ("Description", "KmsKeyId", "Type")
OWN_OPTIONS = ("SecretStringTemplate", "GenerateStringKey")  # the options of GenerateSecretString that GetRandomPassword lacks
TAGGING = Tagging("TagResource", "UntagResource", lambda caller, identity: {"SecretId": identity})


def secret_text(tx: Tx[Store], caller: Caller, reference: str) -> str:
    """Return the value of a dynamic reference to a secret, for example of `db:SecretString:password`."""
    parsed = of_template(reference)
    if parsed is None:
        raise ValidationError(f"Incorrect format is used in the following Secrets Manager reference: [{reference}]")
    return referenced_text(
        parsed,
        lambda params: call(tx, caller, SERVICE, "GetSecretValue", params),
        ValidationError("Could not parse SecretString JSON"),
        ValidationError("Could not find a value associated with JSONKey in SecretString"),
    )


# Secrets


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    given = {member: properties[member] for member in ("Name", *DESCRIBED) if member in properties}
    tags = [{"Key": key, "Value": value} for key, value in tag_values(properties.get("Tags")).items()]
    request = {**given, **_value(tx, caller, properties), **({"Tags": tags} if tags else {})}
    identity = str(_send(tx, caller, "CreateSecret", request)["ARN"])
    if properties.get("_tags"):
        secret = find(tx, caller, identity)
        change(tx, secret, tags={**(secret.tags or {}), **properties["_tags"]})
    return identity


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    changed = {member: new.get(member, "") for member in DESCRIBED if old.get(member) != new.get(member)}
    if any(old.get(member) != new.get(member) for member in ("SecretString", "GenerateSecretString")):
        changed |= _value(tx, caller, new)
    if changed:
        _send(tx, caller, "UpdateSecret", {"SecretId": identity, **changed})
    TAGGING.change(tx, caller, SERVICE, identity, old, new)


def _send(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> dict[str, Any]:
    return call(tx, caller, SERVICE, operation, {"ClientRequestToken": tx.ids.uuid(), **params})


def _value(tx: Tx[Store], caller: Caller, properties: Properties) -> Params:
    """Return the member of a request with the value that a template gives, or that its options generate."""
    text, options = properties.get("SecretString"), properties.get("GenerateSecretString")
    if text is not None and options is not None:
        raise ValidationError("Invalid request provided: You can't specify both SecretString and GenerateSecretString")
    if options is None:
        return {} if text is None else {"SecretString": text}
    rules = {member: value for member, value in options.items() if member not in OWN_OPTIONS}
    password = call(tx, caller, SERVICE, "GetRandomPassword", rules)["RandomPassword"]
    template, key = (options.get(member) for member in OWN_OPTIONS)
    if template is None and key is None:
        return {"SecretString": password}
    if template is None or key is None:
        raise ValidationError("Invalid request provided: GenerateStringKey and SecretStringTemplate must be specified together")
    try:
        members = read_json(template)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise ValidationError("Invalid request provided: SecretStringTemplate must be a JSON object")
    return {"SecretString": orjson.dumps({**members, key: password}).decode()}


def _delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    call(tx, caller, SERVICE, "DeleteSecret", {"SecretId": identity, "ForceDeleteWithoutRecovery": True})


# Rotation schedules and attachments to databases, which have an effect only on the description of the secret or none at all


def _existing(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return str(call(tx, caller, SERVICE, "DescribeSecret", {"SecretId": properties["SecretId"]})["ARN"])


def _schedule(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    identity = _existing(tx, caller, properties)
    given = {member: properties[member] for member in ("RotationLambdaARN", "RotationRules") if member in properties}
    if "RotationLambdaARN" in given:
        _send(tx, caller, "RotateSecret", {"SecretId": identity, **given})
    return identity


def _unschedule(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if "RotationLambdaARN" not in properties:
        return
    try:
        call(tx, caller, SERVICE, "CancelRotateSecret", {"SecretId": identity})
    except ApiError as error:
        if error.code not in (MISSING, MARKED):
            raise


def _id(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {"Id": identity}


def _reschedule(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    _unschedule(tx, caller, identity, old)
    _schedule(tx, caller, new)


TEMPLATE_TYPES = (
    TemplateType(
        "AWS::SecretsManager::Secret",
        _create,
        _id,
        _update,
        _delete,
        name_property="Name",
        checks_permissions=True,
        settled=note_of("AWS::SecretsManager::Secret", ("ReplicaRegions",)),
    ),
    api_type(
        "AWS::SecretsManager::ResourcePolicy",
        SERVICE,
        target="SecretId",
        create="PutResourcePolicy",
        identity_in="ARN",
        request=lambda caller, properties: {
            "SecretId": properties["SecretId"],
            "ResourcePolicy": json_text(properties["ResourcePolicy"]),
            "BlockPublicPolicy": properties.get("BlockPublicPolicy"),
        },
        update="PutResourcePolicy",
        delete="DeleteResourcePolicy",
        missing=(MISSING, MARKED),
        attributes=_id,
    ),
    TemplateType(
        "AWS::SecretsManager::RotationSchedule",
        _schedule,
        _id,
        _reschedule,
        _unschedule,
        checks_permissions=True,
        settled=note_of(
            "AWS::SecretsManager::RotationSchedule",
            ("RotationLambdaARN", "HostedRotationLambda", "RotationRules", "RotateImmediatelyOnUpdate"),
        ),
    ),
    TemplateType(
        "AWS::SecretsManager::SecretTargetAttachment",
        _existing,
        _id,
        lambda tx, caller, identity, old, new: None,
        lambda tx, caller, identity, properties: None,
        checks_permissions=True,
        settled=note_of("AWS::SecretsManager::SecretTargetAttachment", ("TargetId", "TargetType")),
    ),
)
