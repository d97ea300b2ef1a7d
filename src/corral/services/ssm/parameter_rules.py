"""Checks of a new parameter version: type, tier, size, pattern, data type and policies."""

from __future__ import annotations

from typing import Any

import orjson

from corral.decide.pattern import Pattern, PatternError
from corral.model.json_documents import read_json
from corral.model.parameter import Parameter
from corral.services.ssm import errors

POLICIES = {  # type → the attributes that it needs
    "Expiration": ("Timestamp",),
    "ExpirationNotification": ("Before", "Unit"),
    "NoChangeNotification": ("After", "Unit"),
}
STANDARD_MAX_BYTES, ADVANCED_MAX_BYTES = 4096, 8192  # the limits are bytes, although AWS's messages say characters
POLICIES_MAX = 10


def type_of(params: dict[str, Any], before: Parameter | None) -> str:
    """The type of a new version. A request for an existing parameter can omit the type. The type never changes."""
    given = params.get("Type")
    if given is None and before is None:
        raise errors.ValidationException("A parameter type is required when you create a parameter.")
    if before is not None and given not in (None, before.type):
        raise errors.HierarchyTypeMismatchException(
            f"The parameter is of type {before.type}, and a parameter's type can't be changed. Create a new, unique parameter."
        )
    return str(given or (before.type if before else ""))


def checked_details(params: dict[str, Any], kind: str, before: Parameter | None) -> dict[str, Any]:
    """Check a version, and return its tier, data type and policies. Error messages omit the value, which may be secret."""
    value = params["Value"]
    if params.get("KeyId") and kind != "SecureString":
        raise errors.ValidationException("KeyId is required for SecureString type parameter only.")
    _check_pattern(params.get("AllowedPattern"), value)
    policies = _policies(params.get("Policies"))
    return {"Tier": _tier(params, value, bool(policies), before), "DataType": params.get("DataType", "text"), "Policies": policies}


def _tier(params: dict[str, Any], value: str, has_policies: bool, before: Parameter | None) -> str:
    given = params.get("Tier") or (before.details["Tier"] if before else "Standard")
    size = len(value.encode())
    if given == "Intelligent-Tiering":
        was_advanced = before is not None and before.details["Tier"] == "Advanced"
        given = "Advanced" if size > STANDARD_MAX_BYTES or has_policies or was_advanced else "Standard"
    if given == "Standard" and before is not None and before.details["Tier"] == "Advanced":
        raise errors.ValidationException(
            "This parameter uses the advanced-parameter tier. You can't downgrade a parameter from the advanced-parameter tier "
            "to the standard-parameter tier. If necessary, you can delete the advanced parameter and recreate it as a standard "
            "parameter."
        )
    if given == "Standard" and has_policies:
        raise errors.ValidationException("Parameter policies are supported by parameters of the advanced-parameter tier only.")
    if given == "Standard" and size > STANDARD_MAX_BYTES:
        raise errors.ValidationException(
            f"Standard tier parameters support a maximum parameter value of {STANDARD_MAX_BYTES} characters. To create a larger "
            "parameter value, upgrade the parameter to use the advanced-parameter tier."
        )
    if size > ADVANCED_MAX_BYTES:
        raise errors.ValidationException(
            f"Advanced tier parameters support a maximum parameter value of {ADVANCED_MAX_BYTES} characters."
        )
    return str(given)


def _check_pattern(text: str | None, value: str) -> None:
    if not text:
        return
    try:
        pattern = Pattern(text)
    except PatternError as error:
        raise errors.InvalidAllowedPatternException(
            f"The request does not meet the regular expression requirement: {error}."
        ) from None
    if not pattern.matches(value):
        raise errors.ParameterPatternMismatchException(f"Parameter value, cannot be validated against allowedPattern: {text}")


def _policies(text: str | None) -> list[tuple[str, str]]:
    """The type and the text of each policy. Policies are stored but have no effect."""
    if not text or text == "{}":
        return []
    try:
        given = read_json(text)
    except ValueError:
        given = None
    if not isinstance(given, list) or not all(isinstance(policy, dict) for policy in given):
        raise errors.ValidationException("Policies must be a JSON list of objects with Type, Version and Attributes.")
    kinds = [policy.get("Type") for policy in given]
    if len(kinds) > POLICIES_MAX:
        raise errors.PoliciesLimitExceededException(f"A parameter has at most {POLICIES_MAX} policies.")
    for kind in kinds:
        if kind not in POLICIES:
            raise errors.InvalidPolicyTypeException(f"The policy type is not supported: {kind}. Use one of {', '.join(POLICIES)}.")
    if kinds.count("Expiration") > 1:
        raise errors.IncompatiblePolicyException("A parameter has at most one policy of type Expiration.")
    for policy in given:
        attributes = policy.get("Attributes")
        missing = [name for name in POLICIES[policy["Type"]] if not isinstance(attributes, dict) or name not in attributes]
        if missing:
            raise errors.InvalidPolicyAttributeException(f"The policy {policy['Type']} needs the attribute {missing[0]}.")
    return [(policy["Type"], orjson.dumps(policy).decode()) for policy in given]
