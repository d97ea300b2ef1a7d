"""`corral stack`: draws the resources of a CloudFormation stack as a tree, and compares a stack with a template.

The commands use only CloudFormation's and Auto Scaling's APIs, so they also work on AWS. Corral writes "Stored only: …" as the
status reason of a resource that has no effect.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, client, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import ago, console, count, print_json, print_message, print_table, print_text, server_time

if TYPE_CHECKING:
    from rich.tree import Tree

STACK, GROUP = "AWS::CloudFormation::Stack", "AWS::AutoScaling::AutoScalingGroup"
STORED_ONLY = "Stored only"
REFRESH_S = 0.5
NESTING_MAX = 8
_ARN = re.compile(r"arn:[^:]*:[^:]*:[^:]*:[^:]*:")  # the beginning of an ARN, with the service, the region and the account
WIDE = 140  # a screen with at least this many columns has one line for each resource
TEMPLATE_MAX_BYTES = 51_200  # the largest template that a request can contain
CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
NO_CHANGES = ("didn't contain changes", "No updates are to be performed")
_DELETE = (
    "a stack whose creation was rolled back cannot be updated. "
    "Delete it with `aws cloudformation delete-stack --stack-name {}`, and deploy it again."
)
HINTS = {  # status → what the user can do next, with a place for the name of the stack
    "ROLLBACK_COMPLETE": _DELETE,
    "ROLLBACK_FAILED": _DELETE,
    "UPDATE_ROLLBACK_FAILED": "remove the cause, then run `aws cloudformation continue-update-rollback --stack-name {}`.",
    "DELETE_FAILED": "remove the cause, then run `aws cloudformation delete-stack --stack-name {}` again.",
}
ACTIONS = ("replace", "change", "add", "remove", "import", "keep")
COLOURS = {"replace": "yellow", "change": "cyan", "add": "green", "remove": "red", "keep": "dim"}


class _StackCommands(click.Group):
    """The group `corral stack`. If the first argument is not a subcommand, it is the name of a stack to show."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            if len(args) > 1 and not args[1].startswith("-"):
                ctx.fail(f"corral stack has no command '{args[0]}'. `corral stack diff TEMPLATE` compares a stack with a template.")
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_StackCommands,
    invoke_without_command=True,
    short_help="Show CloudFormation stacks, and compare them with templates.",
    subcommand_metavar="[NAME | diff TEMPLATE]",
)
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the stacks as JSON.")
@click.pass_context
def stack(context: click.Context, data: DataFolder, as_json: bool) -> None:
    """Show CloudFormation stacks.

    \b
    corral stack                list all stacks
    corral stack NAME           draw its resources, and follow a running operation
    corral stack diff TEMPLATE  show what an update would change and leave
    """
    context.obj = data, as_json
    if context.invoked_subcommand is not None:
        return
    found, now = _stacks(find_endpoint(data))
    if as_json:
        print_json(found)
    elif found:
        _print_list(found, now)
    else:
        print_text("No stacks. `aws cloudformation deploy` creates one.")


@stack.command(hidden=True)
@click.argument("name")
@data_option
@click.option("--once", is_flag=True, help="Print once and exit, even if an operation is running.")
@click.option("--json", "as_json", is_flag=True, help="Print the stack and its resources as JSON.")
@click.pass_obj
def show(outer: tuple[DataFolder, bool], name: str, data: DataFolder, once: bool, as_json: bool) -> None:
    """Draw the resources of the stack NAME as a tree: status, time, and whether they are real or stored only.

    While an operation is running, the tree is refreshed. Without --json, the exit code is 1 if the last operation failed.
    """
    endpoint = find_endpoint(_chosen(data, outer[0]))
    found = _describe_named(endpoint, name)
    if as_json or outer[1]:
        print_json(found)
        return
    if once or not _is_running(found) or not sys.stdout.isatty():
        out = console()
        out.print(_tree(found, endpoint, out.width))
    else:
        found = _follow(endpoint, found)
    if _has_failed(found):
        if hint := HINTS.get(found["status"]):
            print_message(hint.format(found["name"]))
        raise SystemExit(1)


@stack.command(short_help="Show what an update with a template would replace, change and leave.")
@click.argument("template", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@data_option
@click.option("--stack", "name", help="The stack to compare. Default: the stack with the name of the file, or the only stack.")
@click.option(
    "--parameter", "-p", "given", multiple=True, metavar="KEY=VALUE", help="Set a template parameter. The others keep their values."
)
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
@click.pass_obj
def diff(
    outer: tuple[DataFolder, bool], template: Path, data: DataFolder, name: str | None, given: tuple[str, ...], as_json: bool
) -> None:
    """Show what an update with TEMPLATE would replace, change, add, remove and keep. Nothing is changed.

    The command creates a change set, reads it and deletes it.
    """
    endpoint = find_endpoint(_chosen(data, outer[0]))
    body = _text(template)
    name = name or _stack_for(endpoint, template)
    changes = _changes(endpoint, name, body, _parameters(given))
    if as_json or outer[1]:
        print_json({"stack": name, "changes": changes})
    else:
        _print_diff(name, changes)


def _chosen(data: DataFolder, outer: DataFolder) -> DataFolder:
    """Return the data folder. `--data` may stand before or after the name of the subcommand."""
    return outer if outer.chosen and not data.chosen else data


# Read


def _stacks(endpoint: Endpoint) -> tuple[list[dict[str, Any]], datetime | None]:
    """Return all stacks, sorted by name, and the server's time."""
    pages = list(client(endpoint, "cloudformation").get_paginator("describe_stacks").paginate())
    found = [_stack_summary(each) for page in pages for each in page["Stacks"]]
    return sorted(found, key=lambda each: str(each["name"])), server_time(pages[-1])


def _stack_summary(described: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": described["StackName"],
        "id": described["StackId"],
        "status": described["StackStatus"],
        "reason": described.get("StackStatusReason", ""),
        "description": described.get("Description", ""),
        "created": described["CreationTime"],
        "updated": described.get("LastUpdatedTime"),
        "outputs": {each["OutputKey"]: each["OutputValue"] for each in described.get("Outputs", ())},
    }


def _describe_named(endpoint: Endpoint, name: str) -> dict[str, Any]:
    """Return a stack. If there is none with this name, suggest a similar name."""
    from difflib import get_close_matches

    try:
        return _describe(endpoint, name)
    except client(endpoint, "cloudformation").exceptions.ClientError as error:
        if "does not exist" not in error.response["Error"]["Message"]:
            raise
        similar = get_close_matches(name, [each["name"] for each in _stacks(endpoint)[0]], n=1)
        text = f"Did you mean {similar[0]}?" if similar else "`corral stack` lists the stacks."
        raise CliError(f"the stack {name} does not exist. {text}") from None


def _describe(endpoint: Endpoint, name: str, depth: int = 0) -> dict[str, Any]:
    """Return a stack with its resources and the resources of its nested stacks."""
    cloudformation = client(endpoint, "cloudformation")
    reply = cloudformation.describe_stacks(StackName=name)
    found = _stack_summary(reply["Stacks"][0])
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=found["id"])
    listed = [each for page in pages for each in page["StackResourceSummaries"]]
    seconds, found["failures"] = _last_operation(cloudformation, found["id"], server_time(reply))
    found["resources"] = [_resource(endpoint, each, seconds, depth) for each in listed]
    return found


def _resource(endpoint: Endpoint, listed: dict[str, Any], seconds: dict[str, float], depth: int) -> dict[str, Any]:
    reason, physical_id, type_ = (
        listed.get("ResourceStatusReason", ""),
        listed.get("PhysicalResourceId", ""),
        listed["ResourceType"],
    )
    found = {
        "name": listed["LogicalResourceId"],
        "type": type_,
        "id": physical_id,
        "status": listed["ResourceStatus"],
        "reason": reason,
        "storedOnly": reason.startswith(STORED_ONLY),
        "seconds": seconds.get(listed["LogicalResourceId"]),
    }
    if type_ == STACK and physical_id and depth < NESTING_MAX:
        found["stack"] = _describe(endpoint, physical_id, depth + 1)
    elif type_ == GROUP and physical_id and listed["ResourceStatus"] != "DELETE_COMPLETE":
        groups = client(endpoint, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[physical_id])
        found["instances"] = [
            {"id": each["InstanceId"], "type": each.get("InstanceType", ""), "state": each["LifecycleState"]}
            for group in groups["AutoScalingGroups"]
            for each in group["Instances"]
        ]
    return found


def _last_operation(cloudformation: Any, stack_id: str, now: datetime | None) -> tuple[dict[str, float], list[dict[str, str]]]:
    """Return how many seconds the last operation of the stack took for each resource, by logical id, and which steps have failed.

    For a resource that is still in progress, these are the seconds until `now`. Steps that were cancelled because another step has
    failed are left out.
    """
    first: dict[str, datetime] = {}
    last: dict[str, datetime] = {}
    failures: list[dict[str, str]] = []
    for page in cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack_id):
        for event in page["StackEvents"]:  # the newest come first
            name, at, status = event["LogicalResourceId"], event["Timestamp"], event["ResourceStatus"]
            if event["PhysicalResourceId"] == stack_id:
                if status in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "REVIEW_IN_PROGRESS"):
                    return _differences(first, last), failures[::-1]
                continue
            running, reason = status.endswith("_IN_PROGRESS"), event.get("ResourceStatusReason", "")
            last.setdefault(name, now if running and now is not None else at)
            if running:
                first[name] = at
            elif status.endswith("_FAILED") and not reason.endswith(" cancelled"):
                failures.append({"name": name, "status": status, "reason": reason})
    return _differences(first, last), failures[::-1]


def _differences(first: dict[str, datetime], last: dict[str, datetime]) -> dict[str, float]:
    return {name: max(0.0, (last[name] - at).total_seconds()) for name, at in first.items()}


# Draw


def _follow(endpoint: Endpoint, found: dict[str, Any]) -> dict[str, Any]:
    """Refresh the tree until the operation has ended. Return the last state."""
    from rich.live import Live

    out = console()
    with Live(console=out, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            live.update(_tree(found, endpoint, out.width), refresh=True)
            if not _is_running(found):
                return found
            time.sleep(REFRESH_S)
            found = _describe(endpoint, found["id"])


def _tree(found: dict[str, Any], endpoint: Endpoint, width: int) -> Tree:
    from rich.tree import Tree

    from corral.cli.printing.safe_text import SafeText

    head = SafeText.assemble((found["name"], "bold"), "  ", _status(found["status"], width=0))
    if found["reason"]:
        head.append(f"  {found['reason']}", "red" if _has_failed(found) else "dim")
    tree = Tree(head)
    drawn = {(each["name"], each["reason"]) for each in found["resources"]}
    for each in (each for each in found["failures"] if (each["name"], each["reason"]) not in drawn):
        tree.add(SafeText(f"{each['name']} {each['status']}: {each['reason']}", style="red"))
    _add_resources(tree, found["resources"], mark_real=not is_aws(endpoint), is_wide=width >= WIDE)
    if found["outputs"]:
        branch = tree.add(SafeText("Outputs", style="dim"))
        for key, value in found["outputs"].items():
            branch.add(SafeText.assemble((key, "bold"), f" = {value}"))
    return tree


def _add_resources(tree: Tree, resources: list[dict[str, Any]], *, mark_real: bool, is_wide: bool) -> None:
    """Draw each resource as a branch. On a narrow screen, the type and the id of a resource have a line of their own."""
    from rich.console import Group

    from corral.cli.printing.safe_text import SafeText

    width = max((len(each["name"]) for each in resources), default=0)
    types = max((len(each["type"]) for each in resources), default=0)
    for each in resources:
        line = SafeText.assemble((each["name"].ljust(width), "bold"), "  ")
        about = SafeText(f"{each['type']}  {_ARN.sub('', each['id'])}", style="dim")
        if is_wide:
            line.append(f"{each['type'].ljust(types)}  ")
        line.append(*_status(each["status"]))
        if mark_real:
            line.append("  stored only" if each["storedOnly"] else "  real       ", "dim" if each["storedOnly"] else "")
        line.append(f"  {_took(each['seconds'])}", "dim")
        if is_wide:
            line.append(f"  {each['id']}")
        reason = each["reason"].partition(". ")[2] if each["storedOnly"] else each["reason"]  # which operation shows it
        if reason:
            style = "red" if each["status"].endswith("_FAILED") else "dim"
            (line if is_wide else about).append(f"  {reason}", style)
        branch = tree.add(line if is_wide else Group(line, about))
        if "stack" in each:
            _add_resources(branch, each["stack"]["resources"], mark_real=mark_real, is_wide=is_wide)
        for instance in each.get("instances", ()):
            branch.add(SafeText.assemble(f"{instance['id']}  {instance['type']}  ", (instance["state"], "dim")))


def _status(status: str, width: int = len("CREATE_IN_PROGRESS")) -> tuple[str, str]:
    """Return the status as text, and its style."""
    text = status.ljust(width)
    if status.endswith("_FAILED") or "ROLLBACK" in status:
        return text, "bold red"
    return text, "cyan" if status.endswith("_IN_PROGRESS") else "green"


def _took(seconds: float | None) -> str:
    return (f"{seconds:.2f}s" if seconds < 10 else f"{seconds:.0f}s").rjust(6) if seconds is not None else " " * 6


def _is_running(found: dict[str, Any]) -> bool:
    status: str = found["status"]
    return status.endswith("_IN_PROGRESS") and status != "REVIEW_IN_PROGRESS"


def _has_failed(found: dict[str, Any]) -> bool:
    status: str = found["status"]
    return not _is_running(found) and (status.endswith("_FAILED") or "ROLLBACK" in status)


def _print_list(found: list[dict[str, Any]], now: datetime | None) -> None:
    rows = [
        {"STACK": each["name"], "STATUS": each["status"], "CREATED": ago(each["created"], now), "DESCRIPTION": each["description"]}
        for each in found
    ]
    print_table(rows, folded=("STACK", "DESCRIPTION"), styles={"STATUS": lambda status: _status(status)[1]})


# Compare


def _stack_for(endpoint: Endpoint, template: Path) -> str:
    names = [each["name"] for each in _stacks(endpoint)[0]]
    if template.stem in names:
        return template.stem
    if len(names) == 1:
        return str(names[0])
    known = f"the stacks are {', '.join(sorted(names))}" if names else "there is no stack"
    raise CliError(f"which stack should be compared? Use --stack NAME: {known}.")


def _parameters(given: tuple[str, ...]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise click.BadParameter(f"'{each}' is not KEY=VALUE.", param_hint="--parameter")
    return dict(each.split("=", 1) for each in given)


def _text(template: Path) -> str:
    try:
        return template.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CliError(f"{template} is not a template: it is not a text file in UTF-8.") from None


def _changes(endpoint: Endpoint, name: str, body: str, given: dict[str, str]) -> list[dict[str, Any]]:
    """Return what an update would do to each resource."""
    if (size := len(body.encode())) > TEMPLATE_MAX_BYTES:
        raise CliError(
            f"the template has {size:,} bytes, but a request can have a template of at most {TEMPLATE_MAX_BYTES:,} bytes. "
            "Put the template into an S3 bucket, and create a change set: "
            "`aws cloudformation create-change-set --template-url URL ...` and `aws cloudformation describe-change-set`."
        )
    cloudformation = client(endpoint, "cloudformation")
    described = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    previous = {each["ParameterKey"] for each in described.get("Parameters", ())}
    declared = [each["ParameterKey"] for each in cloudformation.validate_template(TemplateBody=body)["Parameters"]]
    for key in given:
        if key not in declared:
            raise CliError(f"the template has no parameter {key}.")
    parameters: list[dict[str, Any]] = [
        {"ParameterKey": key, "ParameterValue": given[key]} if key in given else {"ParameterKey": key, "UsePreviousValue": True}
        for key in declared
        if key in given or key in previous
    ]
    change_set = cloudformation.create_change_set(
        StackName=name,
        ChangeSetName=f"corral-diff-{token_hex(8)}",
        TemplateBody=body,
        Parameters=parameters,
        Capabilities=CAPABILITIES,
    )["Id"]
    try:
        found = _finished_change_set(cloudformation, change_set)
    finally:
        cloudformation.delete_change_set(ChangeSetName=change_set)
    changed = [_change(each["ResourceChange"]) for each in found]
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
    known = {each["name"] for each in changed}
    for page in pages:
        for each in page["StackResourceSummaries"]:
            if each["LogicalResourceId"] not in known and each["ResourceStatus"] != "DELETE_COMPLETE":
                changed.append({"action": "keep", "name": each["LogicalResourceId"], "type": each["ResourceType"], "because": []})
    return sorted(changed, key=lambda each: (ACTIONS.index(each["action"]), each["name"]))


def _finished_change_set(cloudformation: Any, change_set: str) -> list[dict[str, Any]]:
    pages = _pages(lambda token: cloudformation.describe_change_set(ChangeSetName=change_set, **token))
    while pages[0]["Status"] in ("CREATE_PENDING", "CREATE_IN_PROGRESS"):
        time.sleep(REFRESH_S)
        pages = _pages(lambda token: cloudformation.describe_change_set(ChangeSetName=change_set, **token))
    reason = pages[0].get("StatusReason", "")
    if pages[0]["Status"] == "FAILED" and not any(text in reason for text in NO_CHANGES):
        raise CliError(f"the change set failed: {reason}")
    return [change for page in pages for change in page.get("Changes", ())]


def _pages(read: Callable[[dict[str, str]], dict[str, Any]]) -> list[dict[str, Any]]:
    pages = [read({})]
    while token := pages[-1].get("NextToken"):
        pages.append(read({"NextToken": token}))
    return pages


def _change(change: dict[str, Any]) -> dict[str, Any]:
    action = {"Add": "add", "Remove": "remove", "Import": "import"}.get(change["Action"], "change")
    if action == "change" and change.get("Replacement") in ("True", "Conditional"):
        action = "replace"
    targets = [detail["Target"] for detail in change.get("Details", ())]
    because = sorted({target.get("Name") or target["Attribute"] for target in targets})
    return {"action": action, "name": change["LogicalResourceId"], "type": change["ResourceType"], "because": because}


def _print_diff(name: str, changes: list[dict[str, Any]]) -> None:
    rows = [
        {"ACTION": each["action"], "RESOURCE": each["name"], "TYPE": each["type"], "BECAUSE OF": ", ".join(each["because"])}
        for each in changes
    ]
    if rows:
        styles = {"ACTION": lambda action: COLOURS.get(action, "")}
        print_table(rows, folded=("RESOURCE", "TYPE", "BECAUSE OF"), styles=styles)
    numbers = {action: sum(each["action"] == action for each in changes) for action in ACTIONS}
    if all(each["action"] == "keep" for each in changes):
        print_message(f"an update of {name} with this template would change nothing.")
        return
    words = ", ".join(f"{action} {count(number, 'resource')}" for action, number in numbers.items() if number)
    print_message(f"an update of {name} would {words}.")
