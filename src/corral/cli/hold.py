"""`corral hold` reserves a GPU for other use, so that no task gets it. A hold has a reason, which is a short text.

A hold is an attribute of the container instance that has the GPU, so any ECS client can create, list and release holds.
"""

from __future__ import annotations

import re
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, client, find_endpoint, get_status, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_table, print_text
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_gpus

ATTRIBUTE = "corral.hold."  # the attribute's name is this prefix and the GPU's id
# ECS accepts these attribute values.
REASON = re.compile(r"[A-Za-z0-9_.@/\\:-](?:[A-Za-z0-9_.@/\\: -]{0,126}[A-Za-z0-9_.@/\\:-])?")
BY_DEFAULT = "by hand"
TARGET = "container-instance"


@click.command(short_help="Hold a GPU so that no task gets it.")
@data_option
@click.option("--for", "reason", metavar="REASON", help=f"The reason, which is displayed with the GPU (default: {BY_DEFAULT}).")
@click.option("--release", is_flag=True, help="Release the GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the holds as JSON.")
@click.argument("gpu", required=False, shell_complete=complete_gpus)
def hold(data: DataFolder, reason: str | None, release: bool, as_json: bool, gpu: str | None) -> None:
    """Hold a GPU until --release, so that no task gets it. Without GPU, list the holds.

    GPU is an index, an id (GPU-…) or a prefix of an id. A task that already uses the GPU is not stopped.
    """
    if gpu is None and (reason is not None or release):
        raise click.UsageError("--for and --release require a GPU: give its index or its id.")
    if release and reason is not None:
        raise click.UsageError("--for and --release cannot be used together.")
    if reason is not None and not REASON.fullmatch(reason):
        raise click.BadParameter(
            "use at most 128 letters, digits, spaces and - _ . @ / \\ : and do not begin or end with a space.",
            param_hint="--for",
        )
    endpoint = find_endpoint(data)
    gpus = _gpus(endpoint)
    if gpu is not None:
        chosen = _choose(gpus, gpu)
        attribute = {"name": ATTRIBUTE + chosen["gpu"], "targetType": TARGET, "targetId": chosen["containerInstance"]}
        if release:
            _release(endpoint, chosen, attribute)
        else:
            client(endpoint, "ecs").put_attributes(
                cluster=endpoint.cluster, attributes=[{**attribute, "value": reason or BY_DEFAULT}]
            )
    held = _held(endpoint, gpus)
    if as_json:
        print_json(held)
    elif gpu is not None:
        print_text(f"{_name(chosen)} is {'free for tasks again' if release else 'held: ' + (reason or BY_DEFAULT)}")
    elif held:
        _print(held)
    else:
        print_text("No GPU is held.")


def _release(endpoint: Endpoint, chosen: dict[str, Any], attribute: dict[str, str]) -> None:
    if not any(each["gpu"] == chosen["gpu"] for each in _held(endpoint, [chosen])):
        raise CliError(f"{_name(chosen)} is not held.")
    client(endpoint, "ecs").delete_attributes(cluster=endpoint.cluster, attributes=[attribute])


def _gpus(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return every GPU of the cluster with its container instance and its index. On AWS, the index is None."""
    ecs, indexes = client(endpoint, "ecs"), dict[str, int]()
    if not is_aws(endpoint):
        page = get_status(endpoint)[0]
        indexes = {gpu["id"]: gpu["index"] for host in page["hosts"] for gpu in host["gpus"]}
    arns = [arn for page in ecs.get_paginator("list_container_instances").paginate(cluster=endpoint.cluster)
            for arn in page["containerInstanceArns"]]  # fmt: skip
    found = []
    for start in range(0, len(arns), tasks.DESCRIBE_MAX):
        reply = ecs.describe_container_instances(
            cluster=endpoint.cluster, containerInstances=arns[start : start + tasks.DESCRIBE_MAX]
        )
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
        prefix = given if given.upper().startswith("GPU-") else f"GPU-{given}"
        matches = [each for each in gpus if each["gpu"].lower().startswith(prefix.lower())]
    if not matches:
        names = ", ".join(_name(each) for each in gpus) or "none"
        raise CliError(f"GPU {given} does not exist. GPUs of the cluster: {names}.")
    if len(matches) > 1:
        raise CliError(f"{len(matches)} GPUs match {given}: {', '.join(each['gpu'] for each in matches)}. Give more of the id.")
    return matches[0]


def _held(endpoint: Endpoint, gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pages = client(endpoint, "ecs").get_paginator("list_attributes").paginate(cluster=endpoint.cluster, targetType=TARGET)
    reasons = {each["name"].removeprefix(ATTRIBUTE): each.get("value", "") for page in pages for each in page["attributes"]
               if each["name"].startswith(ATTRIBUTE)}  # fmt: skip
    return [{**gpu, "reason": reasons[gpu["gpu"]]} for gpu in gpus if gpu["gpu"] in reasons]


def _name(gpu: dict[str, Any]) -> str:
    return f"GPU {gpu['index']} ({gpu['gpu']})" if gpu["index"] is not None else str(gpu["gpu"])


def _print(held: list[dict[str, Any]]) -> None:
    rows = [
        {"GPU": "" if each["index"] is None else str(each["index"]), "ID": each["gpu"], "REASON": each["reason"]} for each in held
    ]
    print_table(rows, folded=("REASON",))
