"""Parameters: put, read by name, version or label, and deleted."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.model.parameter import SECURE, Parameter
from corral.services.caller import Caller
from corral.services.ssm import public, rules
from corral.services.ssm.naming import (
    PAGES,
    ValidationException,
    arn,
    check_new_name,
    find,
    own,
)
from corral.services.ssm.sealing import Unreadable, seal, unseal
from corral.services.ssm.tags import RULES as TAG_RULES
from corral.store import Store

InvalidKeyId = api_error("InvalidKeyId")
ParameterAlreadyExists = api_error("ParameterAlreadyExists")
ParameterMaxVersionLimitExceeded = api_error("ParameterMaxVersionLimitExceeded")

VERSIONS_MAX = 100
KEPT = ("Description", "AllowedPattern")
DEFAULT_KEY = "alias/aws/ssm"


def put_parameter(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, value = params["Name"], params["Value"]
    check_new_name(caller, name)
    before = tx.store.parameters.latest(caller.region, name)
    overwrite = params.get("Overwrite", False)
    if overwrite and params.get("Tags"):
        raise ValidationException(
            "Invalid request: tags and overwrite can't be used together. To create a parameter with tags, please remove overwrite "
            "flag. To update tags for an existing parameter, please use AddTagsToResource or RemoveTagsFromResource."
        )
    if before is not None and not overwrite:
        raise ParameterAlreadyExists(
            "The parameter already exists. To overwrite this value, set the overwrite option in the request to true."
        )
    kind = rules.type_of(params, before)
    details = {key: params[key] for key in KEPT if key in params}
    if kind == SECURE:
        details["KeyId"] = params.get("KeyId") or (before.details.get("KeyId") if before else None) or DEFAULT_KEY
    details |= rules.checked(params, kind, before)
    if kind == SECURE:
        value = seal(tx.settings.secrets_key, value, arn(caller.account, caller.region, name))
    version = before.version + 1 if before else 1
    if before is not None:
        _make_room(tx, before)
    tx.store.parameters.put(Parameter(caller.region, name, version, kind, value, tx.now_s, caller.principal, details))
    if params.get("Tags"):
        tx.store.parameters.set_tags(caller.region, name, TAG_RULES.read(params["Tags"]))
    return {"Version": version, "Tier": details["Tier"]}


def get_parameter(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found, selector = find(tx, caller, params["Name"])
    return {"Parameter": shown(tx, caller, found, params, selector)}


def get_parameters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Those that are there, each once; names that mean nothing are told apart, and are no error."""
    found, invalid = list[dict[str, Any]](), list[str]()
    for name in dict.fromkeys(params["Names"]):
        try:
            parameter, selector = find(tx, caller, name)
        except ApiError:
            invalid.append(name)
        else:
            found.append(shown(tx, caller, parameter, params, selector))
    return {"Parameters": found, "InvalidParameters": invalid}


def get_parameter_history(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = own(tx, caller, params["Name"]).name

    def listed(after: str, limit: int) -> list[tuple[str, Parameter]]:
        if not (after or "0").isdecimal():
            raise PAGES.wrong_token()
        found = tx.store.parameters.history(caller.region, name, int(after or 0), limit)
        return [(str(version.version), version) for version in found]

    page, token = PAGES.page(params, listed)
    described = [
        {**metadata(version), "Value": _value(tx, caller, version, params), "Labels": list(version.labels)} for version in page
    ]
    return {"Parameters": described, **token}


def delete_parameter(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tx.store.parameters.drop(caller.region, own(tx, caller, params["Name"]).name)
    return {}


def delete_parameters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    deleted, invalid = list[str](), list[str]()
    for name in dict.fromkeys(params["Names"]):
        gone = not public.is_public(name) and tx.store.parameters.drop(caller.region, name)
        (deleted if gone else invalid).append(name)
    return {"DeletedParameters": deleted, "InvalidParameters": invalid}


def shown(tx: Tx[Store], caller: Caller, parameter: Parameter, params: dict[str, Any], selector: str = "") -> dict[str, Any]:
    """A parameter with its value, as the Get operations show it."""
    return {
        "Name": parameter.name,
        "Type": parameter.type,
        "Value": _value(tx, caller, parameter, params),
        "Version": parameter.version,
        "LastModifiedDate": parameter.modified_at_s,
        "ARN": arn(caller.account, parameter.region, parameter.name),
        "DataType": parameter.details["DataType"],
        **({"Selector": selector} if selector else {}),
    }


def metadata(parameter: Parameter) -> dict[str, Any]:
    """A parameter without its value."""
    policies = [{"PolicyText": text, "PolicyType": kind, "PolicyStatus": "Pending"} for kind, text in parameter.details["Policies"]]
    return {
        **{key: value for key, value in parameter.details.items() if key != "Policies"},
        "Name": parameter.name,
        "Type": parameter.type,
        "LastModifiedDate": parameter.modified_at_s,
        "LastModifiedUser": parameter.modified_by,
        "Version": parameter.version,
        "Policies": policies,
    }


def plain_value(tx: Tx[Store], account: str, parameter: Parameter) -> str:
    """What was put, whatever its type. InvalidKeyId when a SecureString does not open."""
    if parameter.type != SECURE:
        return parameter.value
    try:
        return unseal(tx.settings.secrets_key, parameter.value, arn(account, parameter.region, parameter.name))
    except Unreadable:
        raise InvalidKeyId(
            f"The value of {parameter.name} cannot be decrypted: it was sealed with another key than the data folder has now "
            "(secrets.json). Restore that file, or put the parameter again."
        ) from None


def _value(tx: Tx[Store], caller: Caller, parameter: Parameter, params: dict[str, Any]) -> str:
    return plain_value(tx, caller.account, parameter) if params.get("WithDecryption") else parameter.value


def _make_room(tx: Tx[Store], before: Parameter) -> None:
    """The oldest version goes, unless somebody has put a label on it."""
    if tx.store.parameters.count(before.region, before.name) < VERSIONS_MAX:
        return
    oldest = tx.store.parameters.oldest(before.region, before.name)
    assert oldest is not None
    if oldest.labels:
        raise ParameterMaxVersionLimitExceeded(
            f"You attempted to create a new version of {before.name} by calling the PutParameter API with the overwrite flag. "
            f"Version {oldest.version}, the oldest version, can't be deleted because it has a label associated with it. Move the "
            "label to another version of the parameter, and try again."
        )
    tx.store.parameters.drop_version(oldest)
