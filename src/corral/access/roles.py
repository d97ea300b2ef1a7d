"""Reads IAM's roles and managed policies, to authorize callers and to name them."""

from __future__ import annotations

from typing import Any

from corral.access.aws_policies import AWS_POLICY, find_aws_policy
from corral.access.caller import Caller
from corral.access.sessions import derived_role_id
from corral.core.transactions import Tx
from corral.model.principal import ASSUMED_ROLE, FEDERATED_USER
from corral.store import Store
from corral.store.stored_resources import Document


def find_role(tx: Tx[Store], name: str) -> Document | None:
    return tx.store.stored.get("iam", "role", "", name)


def document_of(tx: Tx[Store], policy_arn: str) -> str | None:
    """The document of the default version of a managed policy; None if Corral does not have it."""
    if policy_arn.startswith(AWS_POLICY):
        found = find_aws_policy(policy_arn)
        return found.document if found is not None else None
    policy = tx.store.stored.get("iam", "policy", "", policy_arn.rpartition("/")[2])
    if policy is None or policy["Arn"] != policy_arn:
        return None
    return str(policy["_versions"][policy["DefaultVersionId"]]["document"])


def role_id(tx: Tx[Any], account: str, name: str) -> str:
    """The role's id in IAM, or a derived id if IAM does not have the role."""
    known = find_role(tx, name)
    return known["RoleId"] if known else derived_role_id(account, name)


def user_id(tx: Tx[Any], caller: Caller) -> str:
    """The UserId of a caller: ACCOUNT for the root user, AROA…:SESSION for a role, ACCOUNT:NAME for a federated user."""
    principal = caller.principal
    if principal.kind == ASSUMED_ROLE:
        return f"{role_id(tx, caller.account, principal.name)}:{principal.session}"
    return f"{caller.account}:{principal.name}" if principal.kind == FEDERATED_USER else caller.account
