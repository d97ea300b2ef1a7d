"""`corral instances`: lists EC2 instances, their clusters and GPUs, and why each one was launched, waits or ended.

The command calls EC2's and ECS's APIs, so it also works on AWS. Corral's own operation DescribeInstances adds what these APIs do
not have, such as why an instance was launched, and why it waits for GPUs.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, call, client, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import ago, count, print_json, print_message, print_table, print_text, server_time, shorten_ids
from corral.cli.runs.tasks import short_reason

GROUP_TAG = "aws:autoscaling:groupName"
ENDED = "terminated"
_TIME = re.compile(r"At [0-9-]+T[0-9:]+Z ")
DESCRIBE_MAX = 100  # how many instance types one request may name


@click.command(short_help="List EC2 instances and the reasons of their launches, waits and ends.")
@data_option
@click.option("--all", "-a", "everything", is_flag=True, help="Also list terminated instances.")
@click.option("--json", "as_json", is_flag=True, help="Print the instances as JSON.")
def instances(data: DataFolder, everything: bool, as_json: bool) -> None:
    """List the EC2 instances of the region, oldest first, with their Auto Scaling group, ECS cluster, GPUs and tasks.

    REASON says why an instance was launched, why it waits for GPUs, and why it ended.
    """
    endpoint = find_endpoint(data)
    ec2 = client(endpoint, "ec2")
    pages = list(ec2.get_paginator("describe_instances").paginate())
    described = [each for page in pages for reservation in page["Reservations"] for each in reservation["Instances"]]
    shown = [each for each in described if everything or each["State"]["Name"] != ENDED]
    shown.sort(key=lambda each: (each["LaunchTime"], each["InstanceId"]))
    own, elsewhere = _own_facts(endpoint)
    found = _found(endpoint, shown, own) if shown else []
    if as_json:
        print_json(found)
        return
    if found:
        _print(found, server_time(pages[-1]))
    else:
        print_text("No instances." if everything else "No instances. `corral instances --all` also lists terminated ones.")
    for region, number in elsewhere.items():
        print_message(f"{count(number, 'instance')} in {region}: `AWS_DEFAULT_REGION={region} corral instances`")


def _found(endpoint: Endpoint, described: list[dict[str, Any]], own: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Describe each instance: EC2's description, the cluster and the tasks from ECS, and the reasons from Corral's page."""
    joined = _container_instances(client(endpoint, "ecs"))
    gpus = {} if own else _gpus_of_types(client(endpoint, "ec2"), described)
    found = []
    for each in described:
        name = each["InstanceId"]
        cluster, tasks = joined.get(name, (None, 0))
        known, said, state = own.get(name, {}), each.get("StateReason", {}).get("Message"), each["State"]["Name"]
        found.append(
            {
                "id": name,
                "type": each["InstanceType"],
                "state": state,
                "group": next((tag["Value"] for tag in each.get("Tags", ()) if tag["Key"] == GROUP_TAG), None),
                "cluster": cluster,
                "host": known.get("host"),
                "gpus": known.get("gpus", gpus.get(each["InstanceType"], 0)),
                "tasks": tasks,
                "market": each.get("InstanceLifecycle", "on-demand"),
                "launchTime": each["LaunchTime"],
                "launchReason": known.get("launchReason"),
                "waitReason": known.get("waitReason") or (said if state == "pending" else None),
                "endReason": known.get("endReason") or (said if state not in ("pending", "running") else None),
            }
        )
    return found


def _container_instances(ecs: Any) -> dict[str, tuple[str, int]]:
    """Return the cluster and the number of tasks of every instance that joined a cluster."""
    found: dict[str, tuple[str, int]] = {}
    for clusters in ecs.get_paginator("list_clusters").paginate():
        for cluster in clusters["clusterArns"]:
            for page in ecs.get_paginator("list_container_instances").paginate(cluster=cluster):
                arns = page["containerInstanceArns"]
                described = ecs.describe_container_instances(cluster=cluster, containerInstances=arns) if arns else {}
                for each in described.get("containerInstances", ()):
                    tasks = each["runningTasksCount"] + each["pendingTasksCount"]
                    found[each.get("ec2InstanceId", "")] = cluster.rpartition("/")[2], tasks
    return found


def _gpus_of_types(ec2: Any, described: list[dict[str, Any]]) -> dict[str, int]:
    names = sorted({each["InstanceType"] for each in described})
    found: dict[str, int] = {}
    for at in range(0, len(names), DESCRIBE_MAX):
        for each in ec2.describe_instance_types(InstanceTypes=names[at : at + DESCRIBE_MAX])["InstanceTypes"]:
            found[each["InstanceType"]] = sum(gpu["Count"] for gpu in each.get("GpuInfo", {}).get("Gpus", ()))
    return found


def _own_facts(endpoint: Endpoint) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Return what Corral's own operation tells about instances, by instance id, and the numbers of instances in other regions.

    Both are empty for AWS, which has no such operation.
    """
    found, elsewhere = dict[str, dict[str, Any]](), dict[str, int]()
    if is_aws(endpoint):
        return found, elsewhere
    following: dict[str, str] | None = {}
    with suppress(CliError):
        while following is not None:
            page, _ = call(endpoint, "DescribeInstances", following)
            found |= {each["id"]: each for each in page["instances"]}
            elsewhere, following = page["elsewhere"], {"nextToken": page["nextToken"]} if "nextToken" in page else None
    return found, elsewhere


def _print(found: list[dict[str, Any]], now: datetime | None) -> None:
    rows = [
        {
            "ID": each["id"],
            "TYPE": each["type"],
            "STATE": each["state"],
            "GROUP": each["group"] or "",
            "CLUSTER": each["cluster"] or "",
            "HOST": each["host"] or "",
            "GPUS": str(each["gpus"]),
            "TASKS": str(each["tasks"]),
            "LAUNCHED": ago(each["launchTime"], now),
            "REASON": shorten_ids(_reason(each)),
        }
        for each in found
    ]
    optional = ("GROUP", "CLUSTER", "HOST", "REASON")
    print_table(rows, optional=optional, folded=optional, right=("GPUS", "TASKS"))


def _reason(instance: dict[str, Any]) -> str:
    """Return the text of the column REASON, for example `waits: train holds 3 of 4 GPUs; launched: RunInstances of …`."""
    texts = {name: _first_sentence(instance[name]) for name in ("endReason", "waitReason", "launchReason") if instance[name]}
    if "waitReason" in texts:
        texts["waitReason"] = short_reason(texts["waitReason"])
    labels = {"launchReason": "launched", "waitReason": "waits", "endReason": "ended"}
    return "; ".join(f"{labels[name]}: {text}" for name, text in texts.items())


def _first_sentence(cause: str) -> str:
    """Return the first sentence of a reason, without `At TIME`. The reason of an Auto Scaling activity has several sentences."""
    return _TIME.sub("", cause).partition(".  ")[0].rstrip(".")
