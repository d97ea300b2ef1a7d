"""`corral hold`: keep a GPU away from tasks, with a reason.

A hold is an attribute of the container instance that has the GPU, so any ECS client can make, see and end one.
"""

from __future__ import annotations

import re
from typing import Any

import click

from corral.cli import suggest, tasks
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.where import Where, client, find, is_aws
from corral.cli.where import status as status_page
from corral.cli.words import console, print_json

ATTRIBUTE = "corral.hold."  # and the GPU's id
REASON = re.compile(r"[A-Za-z0-9_.@/\\:-](?:[A-Za-z0-9_.@/\\: -]{0,126}[A-Za-z0-9_.@/\\:-])?")  # what ECS takes as a value
BY_DEFAULT = "by hand"
TARGET = "container-instance"


@click.command(short_help="Keep a GPU away from tasks, or give it back.")
@data_option
@click.option("--for", "reason", metavar="REASON", help=f"Why; shown wherever the GPU is (default: {BY_DEFAULT}).")
@click.option("--release", is_flag=True, help="Give it back.")
@click.option("--json", "as_json", is_flag=True, help="The holds as JSON.")
@click.argument("gpu", required=False, shell_complete=suggest.gpus)
def hold(data: Data, reason: str | None, release: bool, as_json: bool, gpu: str | None) -> None:
    """Keep a GPU away from tasks, until --release. Without GPU: list the holds.

    GPU is an index, an id (GPU-…) or the beginning of one. A task that has the GPU keeps it to its end.
    """
    if gpu is None and (reason is not None or release):
        raise click.UsageError("name the GPU: its index or its id.")
    if release and reason is not None:
        raise click.UsageError("--for and --release do not go together.")
    if reason is not None and not REASON.fullmatch(reason):
        raise click.BadParameter(
            "at most 128 letters, digits, spaces and - _ . @ / \\ : (ECS allows no others), with no space at either end.",
            param_hint="--for",
        )
    where = find(data)
    gpus = _gpus(where)
    if gpu is not None:
        chosen = _choose(gpus, gpu)
        attribute = {"name": ATTRIBUTE + chosen["gpu"], "targetType": TARGET, "targetId": chosen["containerInstance"]}
        if release:
            _release(where, chosen, attribute)
        else:
            client(where, "ecs").put_attributes(cluster=where.cluster, attributes=[{**attribute, "value": reason or BY_DEFAULT}])
    held = _held(where, gpus)
    if as_json:
        print_json(held)
    elif gpu is not None:
        click.echo(f"{_name(chosen)} is {'free for tasks again' if release else 'held: ' + (reason or BY_DEFAULT)}")
    elif held:
        _print(held)
    else:
        click.echo("No GPU is held.")


def _release(where: Where, chosen: dict[str, Any], attribute: dict[str, str]) -> None:
    if not any(each["gpu"] == chosen["gpu"] for each in _held(where, [chosen])):
        raise Failed(f"{_name(chosen)} is not held.")
    client(where, "ecs").delete_attributes(cluster=where.cluster, attributes=[attribute])


def _gpus(where: Where) -> list[dict[str, Any]]:
    """Every GPU of the cluster, with the container instance that has it; Corral also tells their indexes."""
    ecs, indexes = client(where, "ecs"), dict[str, int]()
    if not is_aws(where):
        page = status_page(where)[0]
        indexes = {gpu["id"]: gpu["index"] for host in page["hosts"] for gpu in host["gpus"]}
    arns = [arn for page in ecs.get_paginator("list_container_instances").paginate(cluster=where.cluster)
            for arn in page["containerInstanceArns"]]  # fmt: skip
    found = []
    for start in range(0, len(arns), tasks.DESCRIBE_MAX):
        reply = ecs.describe_container_instances(cluster=where.cluster, containerInstances=arns[start : start + tasks.DESCRIBE_MAX])
        for instance in reply["containerInstances"]:
            for resource in instance["registeredResources"]:
                if resource["name"] == "GPU":
                    arn = instance["containerInstanceArn"]
                    found += [
                        {"gpu": each, "containerInstance": arn, "index": indexes.get(each)} for each in resource["stringSetValue"]
                    ]
    return found


def _choose(gpus: list[dict[str, Any]], given: str) -> dict[str, Any]:
    if given.isdecimal() and len(given) <= 3:
        matches = [each for each in gpus if each["index"] == int(given)]
    else:
        begun = given if given.upper().startswith("GPU-") else f"GPU-{given}"
        matches = [each for each in gpus if each["gpu"].lower().startswith(begun.lower())]
    if not matches:
        names = ", ".join(_name(each) for each in gpus) or "none"
        raise Failed(f"there is no GPU {given}; there are: {names}.")
    if len(matches) > 1:
        raise Failed(
            f"{len(matches)} GPUs are meant by {given}: {', '.join(each['gpu'] for each in matches)}. Give more of the id."
        )
    return matches[0]


def _held(where: Where, gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pages = client(where, "ecs").get_paginator("list_attributes").paginate(cluster=where.cluster, targetType=TARGET)
    said = {each["name"].removeprefix(ATTRIBUTE): each.get("value", "") for page in pages for each in page["attributes"]
            if each["name"].startswith(ATTRIBUTE)}  # fmt: skip
    return [{**gpu, "reason": said[gpu["gpu"]]} for gpu in gpus if gpu["gpu"] in said]


def _name(gpu: dict[str, Any]) -> str:
    return f"GPU {gpu['index']} ({gpu['gpu']})" if gpu["index"] is not None else str(gpu["gpu"])


def _print(held: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("GPU", "ID", "REASON", box=None, pad_edge=False, header_style="bold")
    for each in held:
        table.add_row("" if each["index"] is None else str(each["index"]), each["gpu"], each["reason"])
    console().print(table)
