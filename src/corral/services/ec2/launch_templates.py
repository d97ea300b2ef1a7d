"""Operations on launch templates and their versions.

Each version is a row. The row of the template has the numbers of its default version and of its latest version.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.operations.pagination import among
from corral.operations.stored_resources import (
    Document,
    Params,
    ResourceType,
    create,
    delete,
    find,
    list_resources,
    put,
    response_view,
)
from corral.services.ec2 import client_tokens, errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, PAGES, new_id
from corral.store import Store

NAME = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
VERSION, BY_NAME = "launch-template-version", "launch-template-name"  # types of rows: a version, and the id for a name
VERSIONS_MAX = 200  # how many versions one request may describe or delete
LATEST, DEFAULT = "$Latest", "$Default"


class LaunchTemplateVersion(Struct, frozen=True):
    template_id: str
    name: str
    version: int
    data: dict[str, Any]  # EC2's structure RequestLaunchTemplateData


def template_data(tx: Tx[Store], caller: Caller, given: Params) -> LaunchTemplateVersion:
    """Return the version that a LaunchTemplateSpecification names. Without Version, it is the default version."""
    template = find_template(tx, caller, given)
    number = _number(template, str(given.get("Version") or DEFAULT))
    document = _version(tx, caller, template, number)
    data = {**document["LaunchTemplateData"], **({"_init": document["_init"]} if "_init" in document else {})}
    return LaunchTemplateVersion(template["LaunchTemplateId"], template["LaunchTemplateName"], number, data)


def find_template(tx: Tx[Store], caller: Caller, given: Params) -> Document:
    """Find the template that a request names by its id or by its name."""
    template_id, name = given.get("LaunchTemplateId"), given.get("LaunchTemplateName")
    if template_id and name:
        raise errors.InvalidParameterCombination("Specify either LaunchTemplateId or LaunchTemplateName, but not both.")
    if not (template_id or name):
        raise errors.MissingParameter("The request must contain the parameter LaunchTemplateId or LaunchTemplateName.")
    if name:
        index = tx.store.stored.get("ec2", BY_NAME, caller.region, name)
        if index is None:
            raise errors.InvalidLaunchTemplateName(
                f"The specified launch template, with template name {name}, does not exist."
            )  # fmt: skip
        template_id = index["LaunchTemplateId"]
    return find(tx, caller, LAUNCH_TEMPLATE, {"LaunchTemplateId": template_id})


def _number(template: Document, given: str) -> int:
    """Return the number of a version that is given as a number, $Latest or $Default."""
    if given == LATEST:
        return int(template["LatestVersionNumber"])
    if given == DEFAULT:
        return int(template["DefaultVersionNumber"])
    number = whole_number(given)
    if number is None:
        raise errors.InvalidParameterValue(
            f"Value ({given}) for parameter Version is invalid. Use a version number, {LATEST} or {DEFAULT}."
        )  # fmt: skip
    return number


def _row(template_id: str, number: int) -> str:
    return f"{template_id}/{number:020d}"


def _version(tx: Tx[Store], caller: Caller, template: Document, number: int) -> Document:
    document = tx.store.stored.get("ec2", VERSION, caller.region, _row(template["LaunchTemplateId"], number))
    if document is None:
        raise errors.InvalidLaunchTemplateVersion(
            f"Could not find the specified version {number} for the launch template with ID {template['LaunchTemplateId']}."
        )
    return document


def _view(template: Document, version: Document) -> Document:
    return {
        "LaunchTemplateId": template["LaunchTemplateId"],
        "LaunchTemplateName": template["LaunchTemplateName"],
        **{member: value for member, value in version.items() if member[0] != "_"},
        "DefaultVersion": version["VersionNumber"] == template["DefaultVersionNumber"],
    }


def _versions(tx: Tx[Store], caller: Caller, template_id: str, after: str = "", limit: int = -1) -> list[tuple[str, Document]]:
    """Return the versions of a template, sorted by version number. Each is a pair: the name of its row, and its document."""
    first = f"{template_id}/"
    rows = tx.store.stored.listed("ec2", VERSION, caller.region, after or first, limit)
    return [(name, version) for name, version in rows if name.startswith(first)]


def _add_version(tx: Tx[Store], caller: Caller, template_id: str, number: int, params: Params, data: Document) -> Document:
    version: Document = {
        "VersionNumber": number,
        "CreateTime": tx.now_s,
        "CreatedBy": caller.principal.arn,
        "LaunchTemplateData": data,
    }
    if params.get("VersionDescription"):
        version["VersionDescription"] = params["VersionDescription"]
    if params.get("_init"):  # the metadata for cfn-init, from a stack
        version["_init"] = params["_init"]
    tx.store.stored.add("ec2", VERSION, caller.region, _row(template_id, number), version, tx.now_s)
    return version


# Templates


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    return {
        "LaunchTemplateId": new_id(tx, "lt"),
        "CreateTime": tx.now_s,
        "CreatedBy": caller.principal.arn,
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 1,
    }


def _deleted(tx: Tx[Store], caller: Caller, template: Document) -> None:
    tx.store.stored.drop("ec2", BY_NAME, caller.region, template["LaunchTemplateName"])
    for name, _ in _versions(tx, caller, template["LaunchTemplateId"]):
        tx.store.stored.drop("ec2", VERSION, caller.region, name)


LAUNCH_TEMPLATE = ResourceType(
    replace(EC2, pages=replace(PAGES, default=200, smallest=1, largest=200)),
    "launch-template",
    id="LaunchTemplateId",
    one="LaunchTemplate",
    many="LaunchTemplates",
    new=_new,
    members=("LaunchTemplateName",),
    ids="LaunchTemplateIds",
    deleted=_deleted,
    selects=filtered({"create-time": "CreateTime", "launch-template-name": "LaunchTemplateName"}),
)


def create_launch_template(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if (known := client_tokens.recall(tx, caller, "CreateLaunchTemplate", params)) is not None:
        template = find(tx, caller, LAUNCH_TEMPLATE, {"LaunchTemplateId": known})
        return {"LaunchTemplate": response_view(tx, caller, LAUNCH_TEMPLATE, template)}
    name = params["LaunchTemplateName"]
    if not NAME.fullmatch(name):
        raise errors.InvalidLaunchTemplateNameMalformed(
            "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and the following "
            "characters: - ( ) . / _."
        )
    _check_data(params["LaunchTemplateData"])
    template = create(tx, caller, LAUNCH_TEMPLATE, params)
    template_id = template["LaunchTemplateId"]
    if not tx.store.stored.add("ec2", BY_NAME, caller.region, name, {"LaunchTemplateId": template_id}, tx.now_s, caller.owner):
        raise errors.InvalidLaunchTemplateNameExists("Launch template name already in use.")
    _add_version(tx, caller, template_id, 1, params, params["LaunchTemplateData"])
    client_tokens.remember(tx, caller, "CreateLaunchTemplate", params, template_id)
    return {"LaunchTemplate": response_view(tx, caller, LAUNCH_TEMPLATE, template)}


def describe_launch_templates(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if names := params.get("LaunchTemplateNames"):
        indexes = [tx.store.stored.get("ec2", BY_NAME, caller.region, name) for name in names]
        ids = [index["LaunchTemplateId"] for index in indexes if index is not None]
        if len(ids) < len(names):
            raise errors.InvalidLaunchTemplateName("At least one of the launch templates specified in the request does not exist.")
        params = {**params, "LaunchTemplateIds": [*params.get("LaunchTemplateIds", ()), *ids]}
    return list_resources(tx, params, caller, LAUNCH_TEMPLATE)


def modify_launch_template(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Set the default version."""
    template = find_template(tx, caller, params)
    if params.get("DefaultVersion"):
        number = _number(template, params["DefaultVersion"])
        _version(tx, caller, template, number)
        template = {**template, "DefaultVersionNumber": number}
        put(tx, caller, LAUNCH_TEMPLATE, template)
    return {"LaunchTemplate": response_view(tx, caller, LAUNCH_TEMPLATE, template)}


def delete_launch_template(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    template = find_template(tx, caller, params)
    delete(tx, caller, LAUNCH_TEMPLATE, template)
    return {"LaunchTemplate": response_view(tx, caller, LAUNCH_TEMPLATE, template)}


# Versions


def create_launch_template_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Add a version. With SourceVersion, members that the request does not contain are copied from that version."""
    template = find_template(tx, caller, params)
    known = client_tokens.recall(tx, caller, "CreateLaunchTemplateVersion", params)
    if known is not None:
        return {"LaunchTemplateVersion": _view(template, _version(tx, caller, template, known))}
    data = params["LaunchTemplateData"]
    if params.get("SourceVersion"):
        source = _version(tx, caller, template, _number(template, params["SourceVersion"]))
        data = {**source["LaunchTemplateData"], **data}
    _check_data(data)
    number = template["LatestVersionNumber"] + 1
    template = {**template, "LatestVersionNumber": number}
    put(tx, caller, LAUNCH_TEMPLATE, template)
    version = _add_version(tx, caller, template["LaunchTemplateId"], number, params, data)
    client_tokens.remember(tx, caller, "CreateLaunchTemplateVersion", params, number)
    return {"LaunchTemplateVersion": _view(template, version)}


SELECTS_VERSIONS = filtered(
    {
        "create-time": "CreateTime", "ebs-optimized": "LaunchTemplateData.EbsOptimized", "image-id": "LaunchTemplateData.ImageId",
        "instance-type": "LaunchTemplateData.InstanceType", "is-default-version": "DefaultVersion",
        "kernel-id": "LaunchTemplateData.KernelId", "ram-disk-id": "LaunchTemplateData.RamDiskId",
        "iam-instance-profile": "LaunchTemplateData.IamInstanceProfile.Arn",
        "http-tokens": "LaunchTemplateData.MetadataOptions.HttpTokens",
        "http-endpoint": "LaunchTemplateData.MetadataOptions.HttpEndpoint",
    }
)  # fmt: skip
VERSION_PAGES = replace(PAGES, default=VERSIONS_MAX, smallest=1, largest=VERSIONS_MAX)


def describe_launch_template_versions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe versions of one template, or the default or latest versions of all templates."""
    chosen, wanted = SELECTS_VERSIONS(tx, caller, params), params.get("Versions") or []
    if not (params.get("LaunchTemplateId") or params.get("LaunchTemplateName")):
        if not wanted or not set(wanted) <= {LATEST, DEFAULT}:
            raise errors.MissingParameter(
                f"Without LaunchTemplateId or LaunchTemplateName, Versions must be {LATEST}, {DEFAULT} or both of them."
            )
        templates = [document for _, document in tx.store.stored.listed("ec2", LAUNCH_TEMPLATE.name, caller.region)]
    else:
        templates = [find_template(tx, caller, params)]
    if wanted and (params.get("MinVersion") or params.get("MaxVersion")):
        raise errors.InvalidParameterCombination("Versions cannot be used with MinVersion or MaxVersion: use a list or a range.")
    if len(wanted) > VERSIONS_MAX:
        raise errors.InvalidParameterValue(f"A request can name up to {VERSIONS_MAX} versions.")
    found: dict[str, Document] = {}
    for template in templates:
        for name, version in _requested_versions(tx, caller, template, params, wanted):
            view = _view(template, version)
            if chosen(view):
                found[name] = view
    items, more = VERSION_PAGES.page(params, among(found))
    return {"LaunchTemplateVersions": items, **more}


def _requested_versions(
    tx: Tx[Store], caller: Caller, template: Document, params: Params, wanted: list[str]
) -> list[tuple[str, Document]]:
    template_id = template["LaunchTemplateId"]
    if wanted:
        numbers = dict.fromkeys(_number(template, each) for each in wanted)
        return [(_row(template_id, number), _version(tx, caller, template, number)) for number in numbers]
    lowest = _number(template, params["MinVersion"]) if params.get("MinVersion") else 0
    highest = _number(template, params["MaxVersion"]) if params.get("MaxVersion") else template["LatestVersionNumber"]
    listed = _versions(tx, caller, template_id)
    return [(name, version) for name, version in listed if lowest <= version["VersionNumber"] <= highest]


def delete_launch_template_versions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    template = find_template(tx, caller, params)
    if len(params["Versions"]) > VERSIONS_MAX:
        raise errors.InvalidParameterValue(f"A request can delete up to {VERSIONS_MAX} versions.")
    deleted: list[Document] = []
    refused: list[Document] = []
    for given in params["Versions"]:
        item: Document = {member: template[member] for member in ("LaunchTemplateId", "LaunchTemplateName")}
        try:
            number = item["VersionNumber"] = _number(template, given)
            if number == template["DefaultVersionNumber"]:
                raise _default_version(number)
            name = _row(template["LaunchTemplateId"], number)
            _version(tx, caller, template, number)
        except ApiError as error:
            code = (
                "launchTemplateVersionDoesNotExist" if isinstance(error, errors.InvalidLaunchTemplateVersion) else "unexpectedError"
            )
            refused.append({**item, "ResponseError": {"Code": code, "Message": error.message}})
        else:
            tx.store.stored.drop("ec2", VERSION, caller.region, name)
            deleted.append(item)
    return {"SuccessfullyDeletedLaunchTemplateVersions": deleted, "UnsuccessfullyDeletedLaunchTemplateVersions": refused}


def _default_version(number: int) -> ApiError:
    return errors.InvalidParameterValue(
        f"Version {number} is the default version, which cannot be deleted: make another version the default with "
        "ModifyLaunchTemplate, or delete the launch template."
    )


def _check_data(data: Params) -> None:
    if not data:
        raise errors.MissingParameter("The request must contain the parameter LaunchTemplateData with at least one member.")
