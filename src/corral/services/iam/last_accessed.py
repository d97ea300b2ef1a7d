"""Which services users and roles have used last, and which policies let them use a service.

Corral notes the last use of each service by each user and each role (`store/iam_index.py`). It does not note actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.access.roles import document_of
from corral.core.transactions import Tx
from corral.decide.policies.policy import Policy, PolicyError, read_policy
from corral.model.principal import ROLE as ROLE_KIND
from corral.model.principal import USER
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, find
from corral.services.iam import errors
from corral.services.iam.groups import GROUP, groups_of, members_of
from corral.services.iam.policies import find_policy, principals
from corral.services.iam.roles import ROLE
from corral.services.iam.style import PAGES
from corral.services.iam.users import USER_TYPE
from corral.store import Store
from corral.store.iam_index import LastUse, entity_of

REPORTS, REPORTS_KEPT_S = "iam/GenerateServiceLastAccessedDetails", 24 * 3600.0
ACTION_LEVEL, SERVICE_LEVEL = "ACTION_LEVEL", "SERVICE_LEVEL"
SERVICES = {  # the services that Corral serves: as in actions, and their names
    "application-autoscaling": "AWS Application Auto Scaling",
    "autoscaling": "Amazon EC2 Auto Scaling",
    "batch": "AWS Batch",
    "cloudformation": "AWS CloudFormation",
    "cloudtrail": "AWS CloudTrail",
    "cloudwatch": "Amazon CloudWatch",
    "corral": "Corral",
    "ec2": "Amazon EC2",
    "ecr": "Amazon Elastic Container Registry",
    "ecs": "Amazon Elastic Container Service",
    "iam": "AWS Identity and Access Management",
    "lambda": "AWS Lambda",
    "logs": "Amazon CloudWatch Logs",
    "s3": "Amazon S3",
    "secretsmanager": "AWS Secrets Manager",
    "sns": "Amazon SNS",
    "sqs": "Amazon SQS",
    "ssm": "AWS Systems Manager",
    "sts": "AWS Security Token Service",
}


def generate_service_last_accessed_details(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Make a report about a user, a group, a role or a policy. It is complete at once."""
    arn = params["Arn"]
    if params.get("Granularity", SERVICE_LEVEL) != SERVICE_LEVEL:
        raise errors.InvalidInputException(f"Corral records services, and not actions: use the granularity {SERVICE_LEVEL}.")
    allowed = services_of(tx, caller, arn)
    used = [(entity, _uses(tx, entity)) for entity in _entities(tx, caller, arn)]
    report: dict[str, Any] = {"created_at": tx.now_s, "services": {}}
    for service in sorted(allowed):
        by = sorted(
            ((uses[service].at_s, uses[service].region, _info(entity)) for entity, uses in used if service in uses),
            key=lambda each: -each[0],
        )
        report["services"][service] = by
    job_id = tx.ids.uuid()
    tx.store.tokens.put(REPORTS, job_id, "", orjson.dumps(report).decode(), tx.now_s + REPORTS_KEPT_S)
    return {"JobId": job_id}


def get_service_last_accessed_details(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    report = _report(tx, params)
    services: dict[str, Document] = {}
    for service, uses in report["services"].items():
        about = {"ServiceName": SERVICES[service], "ServiceNamespace": service, "TotalAuthenticatedEntities": len(uses)}
        if uses:
            at_s, region, entity = uses[0]
            about |= {"LastAuthenticated": at_s, "LastAuthenticatedRegion": region, "LastAuthenticatedEntity": entity["Arn"]}
        services[service] = about
    found, token = PAGES.page(params, among(services))
    return {**_status(report), "JobType": SERVICE_LEVEL, "ServicesLastAccessed": found, **token}


def get_service_last_accessed_details_with_entities(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    report, service = _report(tx, params), params["ServiceNamespace"]
    if service not in report["services"]:
        raise errors.NoSuchEntityException(f"The report {params['JobId']} has no service {service}.")
    entities = {
        f"{number:06d}": {"EntityInfo": entity, "LastAuthenticated": at_s}
        for number, (at_s, _, entity) in enumerate(report["services"][service])
    }
    found, token = PAGES.page(params, among(entities))
    return {**_status(report), "EntityDetailsList": found, **token}


def list_policies_granting_service_access(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    granting = list(policies_of(tx, caller, params["Arn"]))
    entries = {}
    for service in params["ServiceNamespaces"]:
        if service not in SERVICES:
            raise errors.InvalidInputException(f"Corral does not serve {service}.")
        entries[service] = {"ServiceNamespace": service, "Policies": [view for view, policy in granting if allows(policy, service)]}
    found, token = PAGES.page(params, among(entries))
    return {"PoliciesGrantingServiceAccess": found, **token}


# Policies


def services_of(tx: Tx[Store], caller: Caller, arn: str) -> set[str]:
    """The services that a policy, or the policies of a user, a group or a role, allow."""
    if _resource(arn)[0] == "policy":
        texts = [document_of(tx, find_policy(tx, {"PolicyArn": arn}, caller)["Arn"]) or ""]
        found = [policy for text in texts if (policy := _read(text)) is not None]
    else:
        found = [policy for _, policy in policies_of(tx, caller, arn)]
    return {service for service in SERVICES for policy in found if allows(policy, service)}


def policies_of(tx: Tx[Store], caller: Caller, arn: str) -> Iterator[tuple[Document, Policy]]:
    """Yield the policies of a user with those of its groups, of a group or of a role: how lists show them, and their content."""
    kind, name = _resource(arn)
    if kind == USER:
        user = find(tx, caller, USER_TYPE, {"UserName": name})
        yield from _policies_of(tx, caller, "USER", name, user)
        for group in groups_of(tx, caller, {"UserName": name}):
            yield from _policies_of(tx, caller, "GROUP", group["GroupName"], group)
    elif kind == GROUP.name:
        yield from _policies_of(tx, caller, "GROUP", name, find(tx, caller, GROUP, {"GroupName": name}))
    else:
        yield from _policies_of(tx, caller, "ROLE", name, find(tx, caller, ROLE, {"RoleName": name}))


def _policies_of(tx: Tx[Store], caller: Caller, kind: str, name: str, principal: Document) -> Iterator[tuple[Document, Policy]]:
    for policy_name, text in principal["_inline"].items():
        if (policy := _read(text)) is not None:
            yield {"PolicyName": policy_name, "PolicyType": "INLINE", "EntityType": kind, "EntityName": name}, policy
    for arn in principal["_attached"]:
        if (policy := _read(document_of(tx, arn) or "")) is not None:
            policy_name = find_policy(tx, {"PolicyArn": arn}, caller)["PolicyName"]
            yield {"PolicyName": policy_name, "PolicyType": "MANAGED", "PolicyArn": arn}, policy


def allows(policy: Policy, service: str) -> bool:
    """Whether a statement with the effect Allow has an action of a service."""
    return any(
        statement.allows
        and (
            f"{service}:*" not in statement.actions.values and "*" not in statement.actions.values
            if statement.actions.negated
            else any(fnmatchcase(service, action.partition(":")[0]) for action in statement.actions.values)
        )
        for statement in policy.statements
    )


def _read(text: str) -> Policy | None:
    """Return a policy. Return None if it is not valid; such a policy allows nothing."""
    try:
        return read_policy(text)
    except PolicyError:
        return None


# Users and roles


def _entities(tx: Tx[Store], caller: Caller, arn: str) -> list[tuple[str, Document]]:
    """The users and roles that a report is about, each with its kind."""
    kind, name = _resource(arn)
    if kind == USER:
        return [(USER, find(tx, caller, USER_TYPE, {"UserName": name}))]
    if kind == ROLE_KIND:
        return [(ROLE_KIND, find(tx, caller, ROLE, {"RoleName": name}))]
    if kind == GROUP.name:
        return [(USER, user) for user in members_of(tx, find(tx, caller, GROUP, {"GroupName": name})["GroupName"])]
    policy_arn = find_policy(tx, {"PolicyArn": arn}, caller)["Arn"]
    found: dict[str, tuple[str, Document]] = {}
    for each, principal in principals(tx, text=policy_arn):
        if policy_arn in principal["_attached"]:
            kinds = [(USER, user) for user in members_of(tx, principal["GroupName"])] if each == GROUP.name else [(each, principal)]
            found |= {entity["Arn"]: (kind, entity) for kind, entity in kinds}
    return list(found.values())


def _uses(tx: Tx[Store], entity: tuple[str, Document]) -> dict[str, LastUse]:
    kind, document = entity
    return tx.store.access_keys.uses_of(entity_of(kind, document[f"{kind.capitalize()}Name"]))


def _info(entity: tuple[str, Document]) -> Document:
    kind, document = entity
    word = kind.capitalize()
    return {
        "Arn": document["Arn"],
        "Name": document[f"{word}Name"],
        "Type": kind.upper(),
        "Id": document[f"{word}Id"],
        "Path": document["Path"],
    }


def _resource(arn: str) -> tuple[str, str]:
    """The type and the name of the user, the group, the role or the policy with an ARN."""
    kind, _, path = arn.split(":", 5)[-1].partition("/")
    if kind not in (USER, ROLE_KIND, GROUP.name, "policy") or ":iam::" not in arn:
        raise errors.InvalidInputException(f"ARN {arn} is not valid: it must name a user, a group, a role or a policy.")
    return kind, path.rpartition("/")[2]


def _report(tx: Tx[Store], params: Params) -> dict[str, Any]:
    found = tx.store.tokens.get(REPORTS, params["JobId"], tx.now_s)
    if found is None:
        raise errors.NoSuchEntityException(f"The job with id {params['JobId']} cannot be found.")
    report: dict[str, Any] = orjson.loads(found[1])
    return report


def _status(report: dict[str, Any]) -> Document:
    return {"JobStatus": "COMPLETED", "JobCreationDate": report["created_at"], "JobCompletionDate": report["created_at"]}
