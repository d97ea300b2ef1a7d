"""`corral audit` shows who changed what, and which calls were denied. It calls LookupEvents of CloudTrail."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, find_endpoint
from corral.cli.printing.output import (
    DURATION,
    parse_time,
    print_json,
    print_line,
    print_table,
    print_text,
    server_time,
    shorten_ids,
)

PAGE = 50
POLL_S = 1.0
LOOPBACK = "127.0.0.1"  # calls of the server's own machine: the table does not say where they come from
DENIED = ("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation")


@click.command(short_help="Show who changed what, and what was denied.")
@data_option
@click.option("--user", metavar="NAME", help="Only calls of this user, or of sessions with this name. `root` is the root user.")
@click.option("--action", metavar="NAME", help="Only calls of this operation, such as RunTask.")
@click.option("--resource", metavar="NAME", help="Only calls that name this resource: a name, an id or an ARN.")
@click.option("--denied", is_flag=True, help="Only calls that were denied.")
@click.option("--since", metavar="TIME", help="Only later calls: an age such as 2h or 7d, or a time such as 2026-01-31T08:00:00Z.")
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="At most so many calls.")
@click.option("-f", "--follow", is_flag=True, help="Print new calls as they come, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the events in the form of CloudTrail, as JSON.")
def audit(
    data: DataFolder, user: str | None, action: str | None, resource: str | None, denied: bool, since: str | None, limit: int,
    follow: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show who changed what, and which calls were denied: the newest calls, the last one at the end.

    Records are kept for 90 days. Calls that only read are recorded if they were denied. Calls about data, such as objects and
    messages, are recorded for the services in the setting audit.data. `aws cloudtrail lookup-events` shows the same records.
    """
    if follow and as_json:
        raise click.UsageError("use either --follow or --json.")
    wanted = {"Username": user, "EventName": action, "ResourceName": resource}
    reader = client(find_endpoint(data), "cloudtrail")
    now = _now(reader)
    # The newest calls are not new if --limit leaves them out.
    shown = {each["EventId"] for each in _events(reader, wanted, _before(now), denied=denied)} if follow else set[str]()
    found = list(islice(_events(reader, wanted, _start(since, now), denied=denied), limit))[::-1]
    if as_json:
        print_json([json.loads(each["CloudTrailEvent"]) for each in found])
        return
    if found:
        print_table([_row(each) for each in found], optional=("FROM", "ERROR"))
    elif not follow:
        print_text("No calls are recorded" + (" that match." if any(wanted.values()) or denied or since else "."))
    if follow:
        _follow(reader, wanted, shown | {each["EventId"] for each in found}, now, denied=denied)


def _now(reader: Any) -> datetime:
    """Return the time of the server."""
    return server_time(reader.lookup_events(MaxResults=1)) or datetime.fromtimestamp(0, UTC)


def _before(now: datetime) -> datetime:
    """Return the time from which to read again: a call may be recorded a moment after its time."""
    return now - timedelta(seconds=2 * POLL_S)


def _start(since: str | None, now: datetime) -> datetime | None:
    if since is None:
        return None
    at = parse_time(since)
    return at if at is not None else now - timedelta(seconds=DURATION.convert(since, None, None))


def _events(reader: Any, wanted: dict[str, str | None], begin: datetime | None, *, denied: bool) -> Iterator[dict[str, Any]]:
    """Yield the events, the newest first. The server selects by one attribute, as CloudTrail does."""
    [(key, value), *_] = [*((key, value) for key, value in wanted.items() if value), ("", None)]
    params: dict[str, Any] = {"MaxResults": PAGE}
    if value is not None:
        params["LookupAttributes"] = [{"AttributeKey": key, "AttributeValue": value}]
    if begin is not None:
        params["StartTime"] = begin.timestamp()
    while True:
        page = reader.lookup_events(**params)
        for each in page["Events"]:
            each["event"] = json.loads(each["CloudTrailEvent"])
            if _matches(each, wanted) and (not denied or each["event"].get("errorCode") in DENIED):
                yield each
        if "NextToken" not in page:
            return
        params["NextToken"] = page["NextToken"]


def _matches(each: dict[str, Any], wanted: dict[str, str | None]) -> bool:
    names = [one["ResourceName"] for one in each["Resources"]]
    resource = wanted["ResourceName"]
    return (
        wanted["Username"] in (None, each["Username"])
        and wanted["EventName"] in (None, each["EventName"])
        and (resource is None or any(resource in (name, name.rpartition("/")[2]) for name in names))
    )


def _follow(reader: Any, wanted: dict[str, str | None], shown: set[str], now: datetime, *, denied: bool) -> None:
    while True:
        time.sleep(POLL_S)
        begin, now = _before(now), _now(reader)
        for each in list(_events(reader, wanted, begin, denied=denied))[::-1]:
            if each["EventId"] not in shown:
                shown.add(each["EventId"])
                print_line("  ".join(cell for cell in _row(each).values() if cell))


def _row(each: dict[str, Any]) -> dict[str, str]:
    event = each["event"]
    service = each["EventSource"].partition(".")[0]
    error = event.get("errorCode", "")
    repeats = event["additionalEventData"].get("deniedCalls", 0)
    return {
        "TIME": event["eventTime"].replace("T", " ").removesuffix("Z"),
        "USER": _user(event["userIdentity"]),
        "ACTION": f"{service}:{each['EventName']}",
        "RESOURCE": _resource(each),
        "FROM": "" if event["sourceIPAddress"] == LOOPBACK else event["sourceIPAddress"],
        "ERROR": f"{error} ({repeats} more)" if repeats else error,
    }


def _user(identity: dict[str, Any]) -> str:
    if identity["type"] == "Root":
        return "root"
    if identity["type"] == "AssumedRole":
        return shorten_ids("/".join(identity["arn"].split("/")[1:]))
    return str(identity.get("userName") or identity.get("invokedBy") or identity["arn"])


def _resource(each: dict[str, Any]) -> str:
    """Return the name of the resource that the operation is about: that of the kind which the name of the operation has."""
    resources = each["Resources"]
    kinds = {one["ResourceType"].rpartition("::")[2]: one["ResourceName"] for one in reversed(resources)}
    about = [kind for kind in kinds if kind and kind in each["EventName"]]
    if not resources:
        return ""
    name = kinds[max(about, key=len)] if about else resources[0]["ResourceName"]
    return shorten_ids((name.split(":", 5)[-1] if name.startswith("arn:") else name).rpartition("/")[2])
