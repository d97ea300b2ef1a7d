"""Reads IAM's users, roles and managed policies, to authorize callers and to name them."""

from __future__ import annotations

from typing import Any

from corral.access.aws_policies import AWS_POLICY, find_aws_policy
from corral.access.caller import Caller
from corral.access.sessions import derived_role_id
from corral.core.transactions import Tx
from corral.model.principal import ASSUMED_ROLE, FEDERATED_USER, OF_USER, USER
from corral.store import Store
from corral.store.stored_resources import Document


def find_role(tx: Tx[Store], name: str) -> Document | None:
    return tx.store.stored.get("iam", "role", "", name)


def find_user(tx: Tx[Store], name: str) -> Document | None:
    return tx.store.stored.get("iam", "user", "", name)


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
    return id_of_role(find_role(tx, name), account, name)


def id_of_role(role: Document | None, account: str, name: str) -> str:
    """The id of a role that `find_role` has found, or has not."""
    return str(role["RoleId"]) if role else derived_role_id(account, name)


def user_id(tx: Tx[Any], caller: Caller) -> str:
    """The UserId of a caller.

    It is ACCOUNT for the root user, AIDA… for a user, AROA…:SESSION for a role, and ACCOUNT:NAME for a federated user.
    """
    principal = caller.principal
    if principal.kind == ASSUMED_ROLE:
        return f"{role_id(tx, caller.account, principal.name)}:{principal.session}"
    if principal.kind == USER:
        return str((find_user(tx, principal.name) or {})["UserId"])
    return f"{caller.account}:{principal.name}" if principal.kind == FEDERATED_USER else caller.account


def session_epoch(tx: Tx[Store], caller: Caller, *, key_id: str = "") -> str:
    """The epoch of a session that this caller creates (model/session.py). The sessions of a user end when the user is deleted."""
    is_of_user = caller.task_id is None and caller.principal.owner.startswith(OF_USER)
    user = find_user(tx, caller.principal.owner.removeprefix(OF_USER)) if is_of_user else None
    sessions = tx.settings.sessions
    return sessions.of_user(user["UserId"], key_id) if user is not None else sessions.epoch(caller.task_id)


def password_epoch(tx: Tx[Store], caller: Caller) -> str:
    """The epoch of a password, a terminal or a link that this caller creates. It also ends when the access key of a user does."""
    has_own_key = caller.principal.kind == USER and not caller.principal.session
    return session_epoch(tx, caller, key_id=caller.access_key_id if has_own_key else "")
