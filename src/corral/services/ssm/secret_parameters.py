"""Secrets of Secrets Manager that are read as parameters, by the name /aws/reference/secretsmanager/NAME.

As on AWS, only GetParameter and GetParameters read them, and only with decryption. A version id or a staging label can follow after
a colon.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.parameter import SECURE
from corral.services.secretsmanager.references import VALUE, SecretReference
from corral.services.secretsmanager.values import get_secret_value
from corral.services.ssm import errors
from corral.store import Store


def secret_as_parameter(
    tx: Tx[Store], caller: Caller, name: str, reference: SecretReference, params: dict[str, Any]
) -> dict[str, Any]:
    if not params.get("WithDecryption"):
        raise errors.ValidationException("WithDecryption flag must be True for retrieving a Secret Manager secret.")
    try:
        found = get_secret_value(tx, reference.params, caller)
    except ApiError as error:
        if error.code == "ResourceNotFoundException":
            raise errors.ParameterNotFound(f"Secret {name} not found.") from None
        raise errors.ValidationException(f"Secret {name} cannot be read: {error.message}") from None
    if VALUE not in found:
        raise errors.ValidationException(f"Secret {name} has a binary value. Read it with secretsmanager:GetSecretValue.")
    created = datetime.fromtimestamp(tx.steps.wall_s(found["CreatedDate"]), UTC)
    shown = {**found, "CreatedDate": created.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
    source = {member if member == "ARN" else member[0].lower() + member[1:]: value for member, value in shown.items()}
    return {
        "Name": name,
        "Type": SECURE,
        "Value": found[VALUE],
        "Version": 0,
        "SourceResult": orjson.dumps(source).decode(),
        "LastModifiedDate": found["CreatedDate"],
        "ARN": found["ARN"],
        "DataType": "text",
    }
