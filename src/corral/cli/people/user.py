"""`corral user` adds, lists and removes people. It calls the operations of IAM, so `aws iam` shows and changes the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, call, client, find_endpoint
from corral.cli.hosts.token import seconds
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import (
    age,
    count,
    format_duration,
    print_json,
    print_line,
    print_message,
    print_table,
    print_text,
    server_time,
)

PAUSES_S = [0.05] * 20 + [0.5] * 60  # between the questions whether all resources have passed
NAME = re.compile(r"[A-Za-z0-9+=,.@_-]{1,64}")
DEFAULT_GROUP = "users"
LOOKUP_MAX_S, LOOKUP_POLL_S = 2.0, 0.05  # how long `user add --unix` waits for the hosts to look up the account
EXISTS, MISSING = "EntityAlreadyExists", "NoSuchEntity"  # error codes of IAM


@click.group(short_help="Add, list and remove people.")
def user() -> None:
    """Add, list and remove people who use this Corral.

    \b
    corral user add NAME     add a person, and print how they connect
    corral user list         list the people, their groups, keys and Unix accounts
    corral user unix NAME ACCOUNT
                             run the processes of a person as a Unix account
    corral user key NAME     print a new line, for another machine or a lost key
    corral user remove NAME  void all keys and sessions of a person
    """


@user.command(short_help="Add a person.")
@data_option
@click.argument("name")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", show_default=DEFAULT_GROUP, help="A group of the person. Repeatable."
)
@click.option("--unix", "account", metavar="ACCOUNT", default="", help="The Unix account as which processes of the person run.")
@click.option("--ttl", metavar="TIME", callback=seconds, show_default="1d", help="How long the code is valid, such as 1h or 7d.")
@click.option("--json", "as_json", is_flag=True, help="Print the user and the code as JSON.")
def add(data: DataFolder, name: str, groups: tuple[str, ...], account: str, ttl: float | None, as_json: bool) -> None:
    """Add a person, and print the command with which they connect from their own machine.

    The groups are `admins` (may do everything), `users` (run work, and read and change what is theirs) and `viewers` (look). They
    are groups of IAM with ordinary policies: `corral aws iam list-attached-group-policies --group-name users`.
    """
    if not NAME.fullmatch(name):
        raise click.UsageError(f"'{name}' is not a user name: use up to 64 letters, digits and + = , . @ _ -")
    endpoint = find_endpoint(data)
    iam = client(endpoint, "iam")
    chosen = groups or (DEFAULT_GROUP,)
    for group in chosen:
        with refused_as(iam, MISSING, f"there is no group {group}: `corral aws iam list-groups` lists the groups."):
            iam.get_group(GroupName=group)
    with refused_as(iam, EXISTS, f"{name} is a user already. `corral user key {name}` prints a new command to connect."):
        iam.create_user(UserName=name)
    if account:
        try:
            call(endpoint, "SetUnixAccount", {"user": name, "account": account})
        except CliError:
            iam.delete_user(UserName=name)
            raise
    for group in chosen:
        iam.add_user_to_group(GroupName=group, UserName=name)
    _print_code(endpoint, name, ttl, as_json, is_new=True)
    if account:
        _warn_of_hosts(_hosts_without_account(endpoint, name), account)


@user.command("list", short_help="List the people.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the people as JSON.")
def list_(data: DataFolder, as_json: bool) -> None:
    """List the people, their groups, their access keys and their Unix accounts, and the hosts on which an account is missing."""
    endpoint = find_endpoint(data)
    iam = client(endpoint, "iam")
    pages = list(iam.get_paginator("list_users").paginate())
    now = server_time(pages[-1])
    accounts = {each["user"]: each for each in call(endpoint, "ListUnixAccounts", {})[0]["accounts"]}
    found = [_about(iam, each, accounts.get(each["UserName"], {})) for page in pages for each in page["Users"]]
    if as_json:
        print_json(found)
        return
    if not found:
        print_text("No users. `corral user add NAME` adds one.")
        return
    print_table(
        [
            {
                "USER": each["user"],
                "GROUPS": ", ".join(each["groups"]),
                **({"UNIX": each["unixAccount"] or ""} if accounts else {}),
                "KEYS": str(len(each["keys"])),
                "LAST USED": f"{age(used, now)} ago" if (used := each["lastUsed"]) is not None else "",
                "CREATED": f"{age(each['createdAt'], now)} ago",
            }
            for each in found
        ]
    )
    for each in found:
        _warn_of_hosts(each["missingOn"], each["unixAccount"])


def _about(iam: Any, each: dict[str, Any], account: dict[str, Any]) -> dict[str, Any]:
    name = each["UserName"]
    keys = [key["AccessKeyId"] for key in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]]
    uses = [iam.get_access_key_last_used(AccessKeyId=key)["AccessKeyLastUsed"].get("LastUsedDate") for key in keys]
    groups = [group["GroupName"] for group in iam.list_groups_for_user(UserName=name)["Groups"]]
    return {
        "user": name, "groups": groups, "keys": keys, "lastUsed": max(filter(None, uses), default=None),
        "createdAt": each["CreateDate"], "unixAccount": account.get("account"), "missingOn": account.get("missingOn", []),
    }  # fmt: skip


@user.command(short_help="Print a new command with which a person connects.")
@data_option
@click.argument("name")
@click.option("--replace", is_flag=True, help="Delete the present access keys of the person at once.")
@click.option("--ttl", metavar="TIME", callback=seconds, show_default="1d", help="How long the code is valid, such as 1h or 7d.")
@click.option("--json", "as_json", is_flag=True, help="Print the code as JSON.")
def key(data: DataFolder, name: str, replace: bool, ttl: float | None, as_json: bool) -> None:
    """Print a new command with which a person connects, for another machine or a lost key. A person has at most two keys."""
    endpoint = find_endpoint(data)
    iam = client(endpoint, "iam")
    if replace:
        _delete_keys(iam, name)
    _print_code(endpoint, name, ttl, as_json)


@user.command(short_help="Set the Unix account of a person.")
@data_option
@click.argument("name")
@click.argument("account", required=False)
@click.option("--none", "removes", is_flag=True, help="Remove the account: processes of the person are refused from then on.")
@click.option("--json", "as_json", is_flag=True, help="Print the user and the account as JSON.")
def unix(data: DataFolder, name: str, account: str | None, removes: bool, as_json: bool) -> None:
    """Run the processes of a person as a Unix account, and let containers of the person mount what this account may read.

    The account must exist on a host, and Corral must run there as root. `corral user list` shows the accounts.
    """
    if bool(account) == removes:
        raise click.UsageError("Name the Unix account, or pass --none: `corral user unix NAME ACCOUNT`")
    endpoint = find_endpoint(data)
    found, _ = call(endpoint, "SetUnixAccount", {"user": name} | ({"account": account} if account else {}))
    if as_json:
        print_json(found)
    elif account:
        print_text(f"Processes of {name} run as the Unix account {account}.")
        _warn_of_hosts(_hosts_without_account(endpoint, name), account)
    else:
        print_text(f"{name} has no Unix account any more. Tasks that run keep theirs.")


@user.command(short_help="Void all keys and sessions of a person.")
@data_option
@click.argument("name")
@click.option("--stop", is_flag=True, help="Stop the tasks of the person. Without this option, they continue.")
@click.option("--to", metavar="OWNER", default="", help="The new owner of their resources: root, or another person.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def remove(data: DataFolder, name: str, stop: bool, to: str, as_json: bool) -> None:
    """Remove a person: all their keys and sessions are void at once.

    With --to, what they own passes to another owner. Otherwise it stays under their name, for the administrators, and can pass
    later by the same command. Without --stop, their tasks continue, but have no permissions any more.
    """
    endpoint = find_endpoint(data)
    params = {"user": name} | ({"to": to if to == "root" else f"user/{to.removeprefix('user/')}"} if to else {})
    found, _ = call(endpoint, "RemoveUser", {**params, "stop": stop})
    pauses = iter(PAUSES_S)
    while found.get("passing") and (pause_s := next(pauses, None)) is not None:
        sleep(pause_s)
        found |= {member: call(endpoint, "RemoveUser", params)[0][member] for member in ("passed", "passing")}
    if as_json:
        print_json(found)
        return
    if not found["wasGone"]:
        print_text(f"{name} is removed, with {count(found['keys'], 'access key')}.")
    _print_passing(name, found)
    if stop:
        print_message(f"{count(found['stopped'], 'task')} {'stops' if found['stopped'] == 1 else 'stop'}.")
    elif found["running"]:
        print_message(f"{count(found['running'], 'task')} of {name} still {'runs' if found['running'] == 1 else 'run'}.")


def _hosts_without_account(endpoint: Endpoint, name: str) -> list[str]:
    """Return the hosts that lack the Unix account of a person, which was just set. They look it up, and answer within moments."""
    until_s = monotonic() + LOOKUP_MAX_S
    while True:
        accounts = call(endpoint, "ListUnixAccounts", {})[0]["accounts"]
        hosts: list[str] = next((each["missingOn"] for each in accounts if each["user"] == name), [])
        if not hosts or monotonic() > until_s:
            return hosts
        sleep(LOOKUP_POLL_S)


def _warn_of_hosts(hosts: list[str], account: str) -> None:
    if hosts:
        print_message(f"{', '.join(hosts)} cannot run processes as {account}: create the account there, and run Corral as root.")


def _print_passing(name: str, found: dict[str, Any]) -> None:
    if not found.get("to"):
        print_message(
            f"What {name} owned stays under this name, and only root and admins reach it. `corral user remove {name} --to OWNER` "
            "passes it to another owner."
        )
        return
    owner, passed = found["to"].removeprefix("user/"), count(found["passed"], "resource")
    if found["passing"]:
        print_message(f"{passed} of {name} passed to {owner} so far, and more follow. The same command shows the progress.")
    else:
        print_text(f"{passed} of {name} passed to {owner}.")


@contextmanager
def refused_as(iam: Any, code: str, text: str) -> Iterator[None]:
    """Raise a CliError with this text if IAM refuses a request with this code."""
    try:
        yield
    except iam.exceptions.ClientError as refusal:
        if refusal.response["Error"]["Code"] != code:
            raise
        raise CliError(text) from None


def _delete_keys(iam: Any, name: str) -> None:
    with refused_as(iam, MISSING, f"there is no user {name}: `corral user list` lists the users."):
        keys = iam.list_access_keys(UserName=name)["AccessKeyMetadata"]
    for each in keys:
        iam.delete_access_key(UserName=name, AccessKeyId=each["AccessKeyId"])


def _print_code(endpoint: Endpoint, name: str, ttl_s: float | None, as_json: bool, *, is_new: bool = False) -> None:
    made, _ = call(endpoint, "CreateConnectCode", {"user": name} | ({"ttl": ttl_s} if ttl_s is not None else {}))
    code = f"{made['code']}.{made['pin']}" if made["pin"] else made["code"]
    if as_json:
        print_json({**made, "command": f"corral connect {made['url']} --code {code}"})
        return
    print_line(f"corral connect {made['url']} --code {code}")
    if made.get("formerRemovedAtS") and is_new:
        print_message(
            f"Another {name} was removed before. This one owns what that one has left. To prevent this, remove this one again with "
            f"`corral user remove {name} --to root`, and add {name} again."
        )
    lasts = format_duration(round(ttl_s if ttl_s is not None else 86_400))
    where = "" if made["url"].startswith("https:") else " It works on this machine only: other machines need `corral up --tls`."
    print_message(f"{name} runs this on their own machine, once, within {lasts}.{where}")
