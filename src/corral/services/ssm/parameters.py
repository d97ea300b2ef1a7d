"""Operations on single parameters: put, get, delete, labels and tags. `listing.py` has the operations that list parameters."""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.model.parameter import SECURE, Parameter
from corral.operations.encryption import CannotDecrypt, decrypt, encrypt
from corral.operations.tags import TagRules
from corral.services.secretsmanager.references import of_parameter
from corral.services.ssm import errors, parameter_rules, public_parameters
from corral.services.ssm.parameter_names import PAGES, SPACES, arn, check_new_name, find, find_own, latest, no_such_version
from corral.services.ssm.secret_parameters import secret_as_parameter
from corral.store import Store

VERSIONS_MAX = 100
LABELS_MAX = 10  # labels of one version
LABEL = re.compile(r"(?!aws|ssm|[0-9])[a-zA-Z0-9_.\-]{1,100}", re.IGNORECASE)
NESTED = re.compile(r"\{\{.*?\}\}", re.DOTALL)  # such as {{ssm:NAME}}, which AWS does not resolve in values
STORED_AS_GIVEN = ("Description", "AllowedPattern")
DEFAULT_KEY = "alias/aws/ssm"
TAG_RULES = TagRules(
    errors.ValidationException,
    errors={"count": errors.TooManyTagsError},
    texts={"count": "A parameter has at most {max} tags."},
    any_character=True,  # botocore's model has a pattern, which is checked before
)


def put_parameter(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, value = params["Name"].strip(SPACES), params["Value"]
    check_new_name(caller, name)
    if NESTED.search(value):
        raise errors.ValidationException('Parameter value can\'t nest another parameter. Do not use "{{}}" in the value.')
    before = latest(tx, caller.region, name)
    if before is not None:
        name = before.name
    overwrite = params.get("Overwrite", False)
    if overwrite and params.get("Tags"):
        raise errors.ValidationException(
            "Invalid request: tags and overwrite can't be used together. To create a parameter with tags, please remove overwrite "
            "flag. To update tags for an existing parameter, please use AddTagsToResource or RemoveTagsFromResource."
        )
    if before is not None and not overwrite:
        raise errors.ParameterAlreadyExists(
            "The parameter already exists. To overwrite this value, set the overwrite option in the request to true."
        )
    kind = parameter_rules.type_of(params, before)
    details = {key: params[key] for key in STORED_AS_GIVEN if key in params}
    if kind == SECURE:
        details["KeyId"] = params.get("KeyId") or (before.details.get("KeyId") if before else None) or DEFAULT_KEY
    details |= parameter_rules.checked_details(params, kind, before)
    if kind == SECURE:
        value = encrypt(tx.settings.secrets_key, value, arn(caller.account, caller.region, name))
    version = before.version + 1 if before else 1
    if before is not None:
        _make_room(tx, before)
    parameter = Parameter(caller.region, name, version, kind, value, tx.now_s, caller.principal.arn, details)
    tx.store.parameters.put(parameter, caller.owner)
    if params.get("Tags"):
        tx.store.parameters.set_tags(caller.region, name, TAG_RULES.read(params["Tags"]))
    return {"Version": version, "Tier": details["Tier"]}


def get_parameter(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"Parameter": _found(tx, caller, params["Name"], params)}


def get_parameters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return each existing parameter once, sorted by name. Names that do not exist are returned as InvalidParameters."""
    found, invalid = list[dict[str, Any]](), list[str]()
    for name in dict.fromkeys(params["Names"]):
        try:
            found.append(_found(tx, caller, name, params))
        except (errors.ParameterNotFound, errors.ParameterVersionNotFound):
            invalid.append(name)
    return {"Parameters": sorted(found, key=lambda parameter: str(parameter["Name"])), "InvalidParameters": invalid}


def _found(tx: Tx[Store], caller: Caller, given: str, params: dict[str, Any]) -> dict[str, Any]:
    """The parameter with a name or an ARN. The response has the name as it was given, for example `/name` for `name`."""
    given = given.strip(SPACES)
    if (referenced := of_parameter(given)) is not None:
        return secret_as_parameter(tx, caller, given, referenced, params)
    parameter, selector = find(tx, caller, given)
    response = parameter_response(tx, caller, parameter, params, selector)
    return response if given.startswith("arn:") else {**response, "Name": given.removesuffix(selector)}


def get_parameter_history(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = find_own(tx, caller, params["Name"]).name

    def listed(after: str, limit: int) -> list[tuple[str, Parameter]]:
        number = whole_number(after or "0")
        if number is None:
            raise PAGES.wrong_token()
        found = tx.store.parameters.history(caller.region, name, number, limit)
        return [(str(version.version), version) for version in found]

    page, token = PAGES.page(params, listed)
    described = [
        {**metadata(version), "Value": _value(tx, caller, version, params), "Labels": list(version.labels)} for version in page
    ]
    return {"Parameters": described, **token}


def delete_parameter(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tx.store.parameters.drop(caller.region, find_own(tx, caller, params["Name"]).name)
    return {}


def delete_parameters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    deleted, invalid = list[str](), list[str]()
    for name in dict.fromkeys(params["Names"]):
        found = None if public_parameters.is_public(name) else latest(tx, caller.region, name)
        if found is not None:
            tx.store.parameters.drop(caller.region, found.name)
        (invalid if found is None else deleted).append(name)
    return {"DeletedParameters": deleted, "InvalidParameters": invalid}


def parameter_response(
    tx: Tx[Store], caller: Caller, parameter: Parameter, params: dict[str, Any], selector: str = ""
) -> dict[str, Any]:
    """A parameter with its value, in the form of the Get operations."""
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
    """The description of a parameter, without its value."""
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
    """The value in plain text. Raises InvalidKeyId if a SecureString cannot be decrypted."""
    if parameter.type != SECURE:
        return parameter.value
    try:
        return decrypt(tx.settings.secrets_key, parameter.value, arn(account, parameter.region, parameter.name))
    except CannotDecrypt:
        raise errors.InvalidKeyId(
            f"The value of {parameter.name} cannot be decrypted: it was encrypted with another key than "
            "the one in secrets.json of the data folder. Restore that file, or put the parameter again."
        ) from None


def referenced_value(tx: Tx[Store], caller: Caller, given: str) -> str:
    """The value in plain text of the parameter that a container names as a secret."""
    return str(_found(tx, caller, given, {"WithDecryption": True})["Value"])


def _value(tx: Tx[Store], caller: Caller, parameter: Parameter, params: dict[str, Any]) -> str:
    return plain_value(tx, caller.account, parameter) if params.get("WithDecryption") else parameter.value


def _make_room(tx: Tx[Store], before: Parameter) -> None:
    """If the parameter has the maximum number of versions, delete its oldest version.

    Raises an error if that version has a label.
    """
    if tx.store.parameters.count(before.region, before.name) < VERSIONS_MAX:
        return
    oldest = tx.store.parameters.oldest(before.region, before.name)
    assert oldest is not None
    if oldest.labels:
        raise errors.ParameterMaxVersionLimitExceeded(
            f"You attempted to create a new version of {before.name} by calling the PutParameter API with the overwrite flag. "
            f"Version {oldest.version}, the oldest version, can't be deleted because it has a label associated with it. Move the "
            "label to another version of the parameter, and try again."
        )
    tx.store.parameters.drop_version(oldest)


# Labels. A label is a name for one version of a parameter. It can be moved to another version.


def label_parameter_version(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    version = _version(tx, caller, params["Name"], params.get("ParameterVersion"))
    valid = [label for label in dict.fromkeys(params["Labels"]) if LABEL.fullmatch(label)]
    labels = tuple(dict.fromkeys((*version.labels, *valid)))
    if len(labels) > LABELS_MAX:
        raise errors.ParameterVersionLabelLimitExceeded(
            f"A parameter version can have maximum {LABELS_MAX} labels. Move one or more labels to another version and try again."
        )
    for label in valid:
        holder = tx.store.parameters.labelled(version.region, version.name, label)
        if holder is not None and holder.version != version.version:
            tx.store.parameters.set_labels(holder, (other for other in holder.labels if other != label))
    tx.store.parameters.set_labels(version, labels)
    return {"InvalidLabels": [label for label in params["Labels"] if label not in valid], "ParameterVersion": version.version}


def unlabel_parameter_version(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    version = _version(tx, caller, params["Name"], params["ParameterVersion"])
    removed = [label for label in params["Labels"] if label in version.labels]
    tx.store.parameters.set_labels(version, (label for label in version.labels if label not in removed))
    return {"RemovedLabels": removed, "InvalidLabels": [label for label in params["Labels"] if label not in removed]}


def _version(tx: Tx[Store], caller: Caller, name: str, number: int | None) -> Parameter:
    newest = find_own(tx, caller, name)
    if number is None or number == newest.version:
        return newest
    found = tx.store.parameters.version(caller.region, newest.name, number)
    if found is None:
        raise no_such_version("version", str(number), name)
    return found


# Tags


def add_tags_to_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, tags = _tags(tx, params, caller)
    tx.store.parameters.set_tags(caller.region, name, TAG_RULES.merge(tags, TAG_RULES.read(params["Tags"])))
    return {}


def remove_tags_from_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, tags = _tags(tx, params, caller)
    tx.store.parameters.set_tags(caller.region, name, TAG_RULES.remove(tags, params["TagKeys"]))
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"TagList": TAG_RULES.to_list(_tags(tx, params, caller)[1])}


def _tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[str, dict[str, str]]:
    """Return the name under which a parameter is stored, and its tags."""
    if params["ResourceType"] != "Parameter":
        raise errors.InvalidResourceType(
            f"{params['ResourceType']} is not a valid resource type: Corral serves the type Parameter only."
        )
    found = latest(tx, caller.region, params["ResourceId"])
    tags = tx.store.parameters.tags(caller.region, found.name) if found is not None else None
    if found is None or tags is None:
        raise errors.InvalidResourceId(f"The resource ID is not valid: there is no parameter {params['ResourceId']}.")
    return found.name, tags
