"""Workers that follow a queue: how long the first message waits until a worker runs that did not exist before.

The fleet is that of templates/queue-fleet.yaml. Its worker is a boto3 loop. Each round puts one object at a random time of a second,
because Corral publishes the metrics of queues once a second.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from client import ACCESS_KEY, REGION, SECRET_KEY
from local import corral
from rows import Bench, Row, percentile

from corral.cli.endpoint import Endpoint, client
from corral.cli.fleet_facts import QueueFleet, find_fleet, read_fleet

TEMPLATE = Path(__file__).parent.parent / "templates" / "queue-fleet.yaml"
GPUS = "sim:2"
STACK = "queue-fleet"
RUNNING_MAX_S = 1.0
GIVE_UP_S = 60.0
POLL_S = 0.02
STEPS = {
    "alarm": "alarm",
    "instance": "instance in service",
    "joined": "joined",
    "running": "task running",
    "receive": "first receive",
}
ALARM_MEMBERS = (
    "AlarmName", "AlarmActions", "OKActions", "Metrics", "ComparisonOperator", "Threshold", "EvaluationPeriods", "TreatMissingData",
)  # fmt: skip
WORKER = """
import boto3, os
queue = boto3.resource("sqs").Queue(os.environ["QUEUE_URL"])
while True:
    for message in queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=5):
        message.delete()
"""


def rows(bench: Bench) -> list[Row]:
    rounds = bench.size(20, 3)
    random = Random(0)
    with corral(bench, "queue-fleet", GPUS) as local:
        worker = local.data.parent / "worker.py"
        worker.write_text(WORKER)
        endpoint = Endpoint(f"http://127.0.0.1:{local.port}", REGION, ACCESS_KEY, SECRET_KEY)
        fleet, bucket = _deploy(endpoint, worker)
        lines = [_round(endpoint, fleet, bucket, random.random()) for _ in range(rounds)]
        _back_to_zero(endpoint, fleet)
    running = [line["running"] for line in lines]
    middle = {step: statistics.median(line[step] for line in lines) for step in STEPS}
    time_line = ", ".join(f"{name} {middle[step]:.0f} ms" for step, name in STEPS.items())
    note = f"p90 {percentile(running, 90):.0f} ms; medians after the put: {time_line}; {rounds} rounds"
    return [
        Row(
            "first object to a worker RUNNING, from zero instances, p50",
            middle["running"] / 1000,
            "s",
            budget=RUNNING_MAX_S,
            note=note,
        ),
        Row("first object to the first receive of a boto3 worker, p50", middle["receive"] / 1000, "s"),
    ]


def _deploy(endpoint: Endpoint, worker: Path) -> tuple[QueueFleet, str]:
    """Deploy the template, and return the fleet and its bucket."""
    cloudformation = client(endpoint, "cloudformation")
    given = {"Image": "corral/host", "Command": f"{sys.executable} {worker}", "WorkerMemory": "512", "WorkerCpu": "128"}
    cloudformation.create_stack(
        StackName=STACK,
        TemplateBody=TEMPLATE.read_text(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    )

    def stack() -> dict[str, Any]:
        found: dict[str, Any] = cloudformation.describe_stacks(StackName=STACK)["Stacks"][0]
        return found

    _until(lambda: not stack()["StackStatus"].endswith("_IN_PROGRESS"), "the stack is complete")
    if stack()["StackStatus"] != "CREATE_COMPLETE":
        raise RuntimeError(f"the stack is {stack()['StackStatus']}: {stack().get('StackStatusReason')}")
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack()["Outputs"]}
    return find_fleet(endpoint, STACK), outputs["BucketName"]


def _round(endpoint: Endpoint, fleet: QueueFleet, bucket: str, wait_s: float) -> dict[str, float]:
    """Put one object into the bucket of a fleet without instances. Return the milliseconds from the put to each step."""
    _back_to_zero(endpoint, fleet)
    time.sleep(wait_s)  # a random time of a second
    sent = time.time()
    client(endpoint, "s3").put_object(Bucket=bucket, Key="image.jpg", Body=b"image")
    found: dict[str, Any] = {}

    def received() -> bool:
        found["line"] = read_fleet(endpoint, fleet)["scaleOut"]
        return found["line"] is not None and found["line"]["at"].timestamp() > sent - 1 and _has(found["line"], "receive")

    _until(received, "the worker has received the message")
    offset_ms = (found["line"]["at"].timestamp() - sent) * 1000
    return {each["step"]: each["ms"] + offset_ms for each in found["line"]["steps"]}


def _has(line: dict[str, Any], step: str) -> bool:
    return any(each["step"] == step for each in line["steps"])


def _back_to_zero(endpoint: Endpoint, fleet: QueueFleet) -> None:
    """Replace the alarm by a new one, so that no round waits until its period ends, and end the instances."""
    cloudwatch, scaling = client(endpoint, "cloudwatch"), client(endpoint, "autoscaling")
    [alarm] = cloudwatch.describe_alarms()["MetricAlarms"]
    cloudwatch.delete_alarms(AlarmNames=[alarm["AlarmName"]])
    client(endpoint, "sqs").purge_queue(QueueUrl=fleet.queue_url)
    scaling.update_auto_scaling_group(AutoScalingGroupName=fleet.group, DesiredCapacity=0)

    def empty() -> bool:
        [group] = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[fleet.group])["AutoScalingGroups"]
        return not group["Instances"] and group["DesiredCapacity"] == 0

    _until(empty, "no instance is left")
    cloudwatch.put_metric_alarm(**json.loads(json.dumps({name: alarm[name] for name in ALARM_MEMBERS})))


def _until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not holds():
        if time.monotonic() > give_up:
            raise RuntimeError(f"not within {GIVE_UP_S:.0f} s: {what}")
        time.sleep(POLL_S)  # between two polls
