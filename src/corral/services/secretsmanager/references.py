"""References to the values of secrets: in templates, in `secrets` of containers, and in names of parameters.

A reference can select a version, by its id or its staging label, and one member of a value that is a JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from corral.core.errors import ApiError
from corral.model.json_documents import read_json
from corral.services.secretsmanager import errors

ARN_PARTS = 7
PARAMETER_PREFIX = "/aws/reference/secretsmanager/"
VERSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# {{resolve:secretsmanager:ID:SecretString:KEY:STAGE:VERSION}}. All parts after the id can be omitted.
TEMPLATE_FORM = re.compile(r"(arn:(?:[^:]*:){5}[^:]+|[^:]+)(?::([^:]*)(?::([^:]*))?(?::([^:]*))?(?::([^:]*))?)?")
VALUE = "SecretString"

GetValue = Callable[[dict[str, Any]], dict[str, Any]]  # the parameters of GetSecretValue → its response


class SecretReference(NamedTuple):
    secret_id: str
    json_key: str = ""
    stage: str = ""
    version_id: str = ""

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of GetSecretValue."""
        given = {"SecretId": self.secret_id, "VersionStage": self.stage, "VersionId": self.version_id}
        return {member: value for member, value in given.items() if value}

    @property
    def region(self) -> str:
        """The region in the ARN; empty if the reference has a name."""
        return self.secret_id.split(":")[3] if self.secret_id.startswith("arn:") else ""


def is_secret_arn(value: str) -> bool:
    return value.startswith("arn:") and value.split(":")[2:3] == ["secretsmanager"]


def of_container(value: str) -> SecretReference:
    """Parse `valueFrom` of a container: an ARN, or an ARN and `:json-key:version-stage:version-id`. Parts can be empty."""
    parts = value.split(":")
    if len(parts) not in (ARN_PARTS, ARN_PARTS + 3):
        raise errors.InvalidParameterException(
            "unexpected ARN format with parameters when trying to retrieve ASM secret: it needs the form "
            "ARN:json-key:version-stage:version-id, with all colons"
        )
    return SecretReference(":".join(parts[:ARN_PARTS]), *parts[ARN_PARTS:])


def of_template(text: str) -> SecretReference | None:
    """Parse the part of a dynamic reference after `secretsmanager:`. Return None if it is malformed."""
    found = TEMPLATE_FORM.fullmatch(text)
    if found is None or found[2] not in (None, "", VALUE):
        return None
    return SecretReference(found[1], found[3] or "", found[4] or "", found[5] or "")


def of_parameter(name: str) -> SecretReference | None:
    """Parse the name of a parameter. Return None if it does not refer to a secret."""
    if not name.startswith(PARAMETER_PREFIX):
        return None
    secret_id, _, selector = name.removeprefix(PARAMETER_PREFIX).partition(":")
    if VERSION_ID.fullmatch(selector):
        return SecretReference(secret_id, version_id=selector)
    return SecretReference(secret_id, stage=selector)


def referenced_text(reference: SecretReference, get: GetValue, not_json: ApiError, no_key: ApiError) -> str:
    """Return the text that a reference selects. Raise the given errors if the value has no members, or not this one."""
    text: str | None = get(reference.params).get(VALUE)
    if text is None:
        raise errors.InvalidRequestException("The secret has a binary value, and only the text of a secret can be referred to.")
    if not reference.json_key:
        return text
    try:
        members = read_json(text)
    except ValueError:
        raise not_json from None
    if not isinstance(members, dict):
        raise not_json
    value = members.get(reference.json_key)
    if value is None:
        raise no_key
    return value if isinstance(value, str) else orjson.dumps(value).decode()
