"""People: the codes with which they connect, and their removal. `corral user add` creates a code, `corral connect` redeems it.

Corral stores no codes. A code contains the user, its expiry time and a digest, authenticated by a MAC. The digest is that of the
user's access keys and of the number of codes that the user has redeemed. So a code works once, also if its key is deleted later.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from corral.access.caller import Caller
from corral.access.sessions import opened, sealed
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet import passing, unix_accounts
from corral.model.principal import OF_USER, ROOT, USER, owner_of_user
from corral.model.task import StopCode
from corral.services.corral.errors import AccessDeniedException, InvalidRequestException, UserNotFoundException
from corral.services.ecs.task_progress import begin_stop
from corral.services.iam.access_keys import KEYS_MAX
from corral.services.iam.handlers import HANDLERS
from corral.store import Store
from corral.store.iam_index import UNIX_ACCOUNT

TTL_DEFAULT_S, TTL_MIN_S, TTL_MAX_S = 86_400.0, 1.0, 30 * 86_400.0
PURPOSE = "connect code"
REDEEMED = "_redeemedCodes"  # the member of a user's document with their number; no response of IAM has it
TASKS_MAX = 100_000  # the unfinished tasks among which those of a removed user are searched
AGAIN = "Ask for another one: `corral user key NAME` creates it."


def create_connect_code(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create a code with which the person who has it gets an access key of the user."""
    name, ttl_s = params["user"], params.get("ttl", TTL_DEFAULT_S)
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        raise InvalidRequestException(f"ttl {ttl_s:g} is not valid: pass {TTL_MIN_S:g} to {TTL_MAX_S:.0f} seconds.")
    user = tx.store.stored.get("iam", USER, "", name)
    if user is None:
        raise _no_user(name)
    keys = tx.store.access_keys.of_user(name)
    if len(keys) >= KEYS_MAX:
        raise InvalidRequestException(
            f"{name} has {KEYS_MAX} access keys already. Delete one with `corral aws iam delete-access-key --user-name {name} "
            f"--access-key-id {keys[0].id}`, or all with `corral user key {name} --replace`."
        )
    expires_at_s = int(tx.wall_s + ttl_s)
    payload = f"{expires_at_s:x}/{user['UserId']}/{_digest(tx, user)}/{name}".encode()
    about = tx.settings.server.about
    return {
        "user": name,
        "code": sealed(tx.settings.session_key, PURPOSE, payload),
        "url": about.get("tlsUrl") or about.get("url", ""),
        "pin": about.get("tlsPin", ""),
        "expiresAtS": float(expires_at_s),
        **_former(tx, name),
    }


def _former(tx: Tx[Store], name: str) -> dict[str, float]:
    """Say that a removed user had the name, whose resources the present user owns."""
    record = passing.record_of(tx, name)
    return {"formerRemovedAtS": record["removedAt"]} if record is not None else {}


def redeem(tx: Tx[Store], code: str, caller: Caller) -> dict[str, Any]:
    """Create an access key for the user of a code. Raise AccessDeniedException if the code is not valid."""
    payload = opened(tx.settings.session_key, PURPOSE, code)
    if payload is None:
        raise AccessDeniedException(f"The code is not valid: it is not one of this server, or a part of it is missing. {AGAIN}")
    expires_at, user_id, digest, name = payload.decode().split("/", 3)
    if int(expires_at, 16) <= tx.wall_s:
        raise AccessDeniedException(f"The code has expired. {AGAIN}")
    user = tx.store.stored.get("iam", USER, "", name)
    if user is None or user["UserId"] != user_id:
        raise AccessDeniedException(f"The user {name} does not exist any more.")
    if digest != _digest(tx, user):
        raise AccessDeniedException(f"The code has been used, or the access keys of {name} have changed since. {AGAIN}")
    made: dict[str, Any] = HANDLERS["CreateAccessKey"](tx, {"UserName": name}, caller)["AccessKey"]
    tx.store.stored.change("iam", USER, "", name, {**user, REDEEMED: user.get(REDEEMED, 0) + 1})
    return {
        "userName": name,
        "account": tx.settings.account,
        "accessKeyId": made["AccessKeyId"],
        "secretAccessKey": made["SecretAccessKey"],
    }


def set_unix_account(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Set the Unix account as which the processes of a user run, or remove it.

    Tasks that run keep the account with which they have started. Tasks that wait with another account fail when they start.
    """
    name, account = params["user"], params.get("account", "")
    user = tx.store.stored.get("iam", USER, "", name)
    if user is None:
        raise _no_user(name)
    if account and (fault := unix_accounts.fault_of_name(account)):
        raise InvalidRequestException(f"The Unix account is not valid: {fault}.")
    before = {**unix_accounts.accounts_of_users(tx), name: account}
    tx.store.stored.change("iam", USER, "", name, {**user, UNIX_ACCOUNT: account})
    unix_accounts.ask_hosts(tx, sorted({*before.values()} - {""}))
    return {"user": name, "account": account or None}


def list_unix_accounts(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return the users that have a Unix account, and on which connected hosts the account is missing."""
    hosts = [(host["name"], tx.store.hosts.accounts(host["id"])) for host in tx.store.hosts.all() if host["connected"]]
    found = [
        {"user": name, "account": account, "missingOn": [host for host, has in hosts if has is not None and account not in has]}
        for name, account in sorted(unix_accounts.accounts_of_users(tx).items())
        if account
    ]
    return {"accounts": found}


def remove_user(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete a user with its access keys, memberships and policies, and stop its tasks if the request says so.

    With `to`, its resources pass to another owner. This also works later, and a repeated request returns the progress.
    """
    name, to = params["user"], _new_owner(tx, params["user"], params.get("to", ""))
    user = tx.store.stored.get("iam", USER, "", name)
    if user is None and not to:
        raise _no_user(name)
    gone = {"user": name, "wasGone": True, "keys": 0, "stopped": 0, "running": 0}
    found = gone if user is None else _removed(tx, name, user, params.get("stop", False), caller)
    return {**found, **_passing(tx, name, to)}


def _new_owner(tx: Tx[Store], name: str, to: str) -> str:
    """Return the owner to which the resources of a user shall pass: root, or a user. Empty: they stay."""
    if not to or to == ROOT:
        return to
    other = to.removeprefix(OF_USER)
    if other == name:
        raise InvalidRequestException(f"What {name[:100]} owns cannot pass to the same user.")
    if tx.store.stored.get("iam", USER, "", other) is None:
        raise _no_user(other)
    return owner_of_user(other)


def _passing(tx: Tx[Store], name: str, to: str) -> dict[str, Any]:
    """Begin to pass what a removed user has left, unless it passes already. Return the progress."""
    if not to:
        return {}
    record = passing.record_of(tx, name)
    if record is not None and passing.is_passing(record) and record["to"] != to:
        raise InvalidRequestException(f"What {name[:100]} has left still passes to {record['to']}: try again in a moment.")
    if record is None or record["to"] != to:
        passing.begin_passing(tx, name, to)
        record = passing.record_of(tx, name)
    assert record is not None
    return {"to": to, "passed": record["passed"], "passing": passing.is_passing(record)}


def _removed(tx: Tx[Store], name: str, user: dict[str, Any], stop: bool, caller: Caller) -> dict[str, Any]:
    named = {"UserName": name}
    keys = tx.store.access_keys.of_user(name)
    for key in keys:
        HANDLERS["DeleteAccessKey"](tx, {**named, "AccessKeyId": key.id}, caller)
    for group in user["_groups"]:
        HANDLERS["RemoveUserFromGroup"](tx, {**named, "GroupName": group}, caller)
    for policy_arn in user["_attached"]:
        HANDLERS["DetachUserPolicy"](tx, {**named, "PolicyArn": policy_arn}, caller)
    for policy in user["_inline"]:
        HANDLERS["DeleteUserPolicy"](tx, {**named, "PolicyName": policy}, caller)
    HANDLERS["DeleteUser"](tx, named, caller)
    passing.note_removed(tx, name)
    tasks = [task for each in tx.store.tasks.listing.not_stopping(TASKS_MAX) if (task := tx.store.tasks.get(each)) is not None]
    theirs = [task for task in tasks if task.owner == owner_of_user(name)]
    if stop:
        for task in theirs:
            begin_stop(tx, task, StopCode.USER, f"The user {name} was removed")
    stopped = len(theirs) if stop else 0
    return {"user": name, "wasGone": False, "keys": len(keys), "stopped": stopped, "running": len(theirs) - stopped}


def _no_user(name: str) -> ApiError:
    return UserNotFoundException(f"There is no user {name[:100]}: `corral user list` lists the users.")


def _digest(tx: Tx[Store], user: dict[str, Any]) -> str:
    keys = [key.id for key in tx.store.access_keys.of_user(user["UserName"])]
    return sha256("/".join([str(user.get(REDEEMED, 0)), *keys]).encode()).hexdigest()[:16]
