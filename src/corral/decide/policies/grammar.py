"""The grammar of IAM's policies: which documents IAM refuses, and with which text.

IAM checks the policies of identities (`check_identity_grammar`) in steps. It reports the first step that fails, but not the place
in the document. It checks trust policies (`check_trust_grammar`) as other services check the policies of resources (`policy.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from corral.decide.policies.conditions import is_operator
from corral.decide.policies.policy import (
    ANYTHING,
    EFFECTS,
    POLICY_MEMBERS,
    STATEMENT_MEMBERS,
    VERSIONS,
    Policy,
    PolicyError,
    check_identity_policy,
    read_policy,
)
from corral.model.json_documents import read_json

Statement = Mapping[str, Any]

SYNTAX = "Syntax errors in policy."
LEGACY = "The policy failed legacy parsing"
PARTITIONS = frozenset({"aws", "aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f", "aws-eusc", ANYTHING})
VENDOR = re.compile(r"[a-zA-Z0-9.-]*|\*")
IAM_PATHS = (
    "user/", "federated-user/", "role/", "group/", "instance-profile/", "mfa/", "server-certificate/", "policy/", "sms-mfa/",
    "saml-provider/", "oidc-provider/", "report/", "access-report/",
)  # fmt: skip
ARN_PARTS = 6
WILDCARD = re.compile(r"[*?$]")  # a wildcard, or the beginning of a variable
DATE = re.compile(
    r"(-?\d+)(?:-(\d{1,2})(?:-(\d{1,2}))?)?(?:t(?:(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.\d{1,9})?(?:z|[+-]\d\d(?::?\d\d)?)?)?)?)?)?"
)
YEARS = (-292_275_054, 292_278_993)
EPOCH_MAX = 2**63 - 1
TRUST_ACTION = re.compile(r"sts:.+", re.IGNORECASE)
PRINCIPAL = {  # kind → the form of a name in a trust policy
    "AWS": re.compile(r"\*|\d{12}|arn:[a-z-]+:(?:iam|sts)::\d{12}:.+|A[A-Z0-9]{15,}"),
    "Service": re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+"),
}


def check_identity_grammar(text: str, *, is_managed: bool) -> None:
    """Raise PolicyError with IAM's text if the text cannot be a managed or an inline policy.

    A managed policy needs the newest version. An inline policy may have the older one, which is the default.
    """
    document, statements = _syntax(text)
    if is_managed and document.get("Version") != VERSIONS[0]:
        raise PolicyError(f"Policy document must be version {VERSIONS[0]} or greater.")
    resource_error = _legacy(statements)
    sids = [statement["Sid"] for statement in statements if statement.get("Sid")]
    if len(set(sids)) < len(sids):
        raise PolicyError("Statement IDs (SID) in a single policy must be unique.")
    if not all(_texts(statement, "Action") for statement in statements):
        raise PolicyError("Policy statement must contain actions.")
    if resource_error is not None:
        raise PolicyError(resource_error)
    for statement in statements:
        for action in _texts(statement, "Action"):
            _check_action(action)
    if not all(_texts(statement, "Resource") for statement in statements):
        raise PolicyError("Policy statement must contain resources.")
    try:
        check_identity_policy(read_policy(text))
    except PolicyError as error:
        raise PolicyError(str(error) if str(error).startswith("Policy ") else SYNTAX) from None


def check_trust_grammar(text: str) -> None:
    """Raise PolicyError with IAM's text if the text cannot be the trust policy of a role."""
    try:
        read_json(text)
    except ValueError:
        raise PolicyError("This policy contains invalid Json") from None
    policy = read_policy(text)
    for statement in policy.statements:
        if statement.resources is not None:
            raise PolicyError(f"Has prohibited field {'NotResource' if statement.resources.negated else 'Resource'}")
        if statement.principals is None:
            raise PolicyError("Missing required field Principal")
        if not all(TRUST_ACTION.fullmatch(action) for action in statement.actions.values):
            raise PolicyError("AssumeRole policy may only specify STS AssumeRole actions.")
    _check_principals(policy)


def _check_principals(policy: Policy) -> None:
    for statement in policy.statements:
        for kind, names in (statement.principals or {}).items():
            for name in names:
                if kind in PRINCIPAL and not PRINCIPAL[kind].fullmatch(name):
                    raise PolicyError(f'Invalid principal in policy: "{kind.upper()}":"{name}"')


# The syntax of a document


def _syntax(text: str) -> tuple[Statement, list[Statement]]:
    try:
        document = read_json(text)
    except ValueError:
        raise PolicyError(SYNTAX) from None
    if not isinstance(document, dict) or not document.keys() <= POLICY_MEMBERS:
        raise PolicyError(SYNTAX)
    found = document.get("Statement")
    statements = [found] if isinstance(found, dict) else found
    if (
        document.get("Version", VERSIONS[0]) not in VERSIONS
        or not isinstance(document.get("Id", ""), str)
        or not isinstance(statements, list)
        or not statements
        or not all(map(_is_statement, statements))
    ):
        raise PolicyError(SYNTAX)
    return document, statements


def _is_statement(statement: object) -> bool:
    return (
        isinstance(statement, dict)
        and statement.keys() <= STATEMENT_MEMBERS
        and not any(name in statement and f"Not{name}" in statement for name in ("Action", "Resource", "Principal"))
        and isinstance(statement.get("Sid", ""), str)
        and isinstance(effect := statement.get("Effect"), str)
        and effect.lower() in (each.lower() for each in EFFECTS)
        and all(_is_texts(statement[name]) for name in ("Action", "NotAction", "Resource", "NotResource") if name in statement)
        and _are_conditions(statement.get("Condition", {}))
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _are_conditions(conditions: object) -> bool:
    return isinstance(conditions, dict) and all(
        isinstance(keys, dict)
        and (not keys or is_operator(operator))
        and all(isinstance(value, str | bool | int | float | list) for value in keys.values())
        for operator, keys in conditions.items()
    )


# The checks of the older parser, whose error has no details


def _legacy(statements: list[Statement]) -> str | None:
    """Raise PolicyError if IAM's older parser refuses a statement. Return the error of the first invalid resource, or None."""
    for statement in statements:
        if statement["Effect"] not in EFFECTS or not all(map(_is_date, _dates(statement))):
            raise PolicyError(LEGACY)
    for statement in statements:
        for resource in _texts(statement, "Resource"):
            error = _resource_error(resource)
            if error is not None:
                return error
            parts = resource.split(":")
            if resource != ANYTHING and (parts[2] == "" or ("::" in resource and len(parts) < ARN_PARTS)):
                raise PolicyError(LEGACY)
    return None


def _texts(statement: Statement, name: str) -> list[str]:
    given = statement.get(name, statement.get(f"Not{name}", []))
    return [given] if isinstance(given, str) else list(given)


def _dates(statement: Statement) -> Iterator[str]:
    for operator, keys in statement.get("Condition", {}).items():
        if operator.rpartition(":")[2].startswith("Date"):
            for values in keys.values():
                yield from (str(value) for value in (values if isinstance(values, list) else [values]))


def _is_date(text: str) -> bool:
    lower = text.lower()
    if "t" not in lower and "-" not in lower:
        return lower.isascii() and lower.isdigit() and len(lower) < 20 and int(lower) <= EPOCH_MAX
    found = DATE.fullmatch(lower)
    if found is None or len(found[1]) > 10:
        return False
    month, day, hour, minute, second = (None if part is None else int(part) for part in found.groups()[1:])
    return (
        YEARS[0] <= int(found[1]) <= YEARS[1]
        and (month is None or 1 <= month <= 12)
        and (day is None or 1 <= day <= 31)
        and (hour or 0) <= 23
        and (minute or 0) <= 59
        and (second or 0) <= 59
    )


# Actions and resources


def _check_action(action: str) -> None:
    vendor, colon, rest = action.partition(":")
    if not colon and action != ANYTHING:
        raise PolicyError("Actions/Conditions must be prefaced by a vendor, e.g., iam, sdb, ec2, etc.")
    if ":" in rest:
        raise PolicyError("Actions/Condition can contain only one colon.")
    if not VENDOR.fullmatch(vendor):
        raise PolicyError(f"Vendor {vendor} is not valid")


def _resource_error(resource: str) -> str | None:
    if resource == ANYTHING:
        return None
    _, colon, rest = resource.partition(":")
    if not colon:
        return f'Resource {resource} must be in ARN format or "*".'
    partition, colon, rest = rest.partition(":")
    if partition not in PARTITIONS and not WILDCARD.search(partition):
        # IAM fills the missing parts of the ARN with asterisks
        parts = rest.split(":", 3) if rest else []
        shown = ":".join(["arn", partition, *parts, *[ANYTHING] * (4 - len(parts))])
        return f'Partition "{partition}" is not valid for resource "{shown}".'
    if not colon:
        return "Resource vendor must be fully qualified and cannot contain regexes."
    parts = rest.split(":", 3)
    if len(parts) < 4:
        return None
    service, region, account, path = parts
    if region and not WILDCARD.search(region):
        if service == "iam":
            return f"IAM resource {resource} cannot contain region information."
        if service == "s3" and not account:
            return f"Resource {resource} can not contain region information."
    if service == "iam" and not path.startswith(IAM_PATHS) and not WILDCARD.search(path.partition("/")[0]):
        return f'IAM resource path must either be "*" or start with {", ".join(IAM_PATHS)}.'
    return None
