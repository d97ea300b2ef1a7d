"""Workers that follow a queue: how long the first message waits until a worker runs that did not exist before.

Each round has its own fleet of templates/queue-fleet.yaml, with a boto3 loop as its worker. The test event of S3 wakes each fleet.
When all fleets are back at zero, each round puts one object, at a random time of a second, because Corral publishes metrics once a
second, and at most once more if a message arrives in an empty queue.
"""

from __future__ import annotations

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

from corral.cli.client.endpoint import Endpoint, client
from corral.cli.fleets.facts import read_fleet
from corral.cli.fleets.search import WorkerFleet, find_fleet

TEMPLATE = Path(__file__).parent.parent / "templates" / "queue-fleet.yaml"
GPUS = "sim:16"
PERIOD_S = 10  # of the alarms, so that the fleets are back at zero soon
STACK = "queue-fleet"
FIRST = "first object to a worker RUNNING, from zero instances, p50"
RUNNING_MAX_S = 1.0
GIVE_UP_S = 120.0
POLL_S = 0.02
STEPS = {
    "alarm": "alarm",
    "instance": "instance in service",
    "joined": "joined",
    "running": "task running",
    "receive": "first receive",
}
WORKER = """
import boto3, os
queue = boto3.resource("sqs").Queue(os.environ["QUEUE_URL"])
while True:
    for message in queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=5):
        message.delete()
"""


def rows(bench: Bench) -> list[Row]:
    rounds = bench.size(12, 3)
    random = Random(0)
    with corral(bench, "queue-fleet", GPUS) as local:
        worker = local.data.parent / "worker.py"
        worker.write_text(WORKER)
        endpoint = Endpoint(f"http://127.0.0.1:{local.port}", REGION, ACCESS_KEY, SECRET_KEY)
        fleets = [_deploy(endpoint, f"{STACK}-{number}", worker) for number in range(rounds)]
        _until(lambda: all(_is_at_zero(endpoint, fleet) for fleet, _ in fleets), "all fleets are back at zero")
        lines = [_first_object(endpoint, fleet, bucket, random.random()) for fleet, bucket in fleets]
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


def _deploy(endpoint: Endpoint, name: str, worker: Path) -> tuple[WorkerFleet, str]:
    """Deploy the template, and return the fleet and its bucket."""
    cloudformation = client(endpoint, "cloudformation")
    given = {"Image": "corral/host", "Command": f"{sys.executable} {worker}", "WorkerMemory": "512", "WorkerCpu": "128"}
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=TEMPLATE.read_text().replace("Period: 60", f"Period: {PERIOD_S}"),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    )

    def stack() -> dict[str, Any]:
        found: dict[str, Any] = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
        return found

    _until(lambda: not stack()["StackStatus"].endswith("_IN_PROGRESS"), "the stack is complete")
    if stack()["StackStatus"] != "CREATE_COMPLETE":
        raise RuntimeError(f"the stack is {stack()['StackStatus']}: {stack().get('StackStatusReason')}")
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack()["Outputs"]}
    return find_fleet(endpoint, name), outputs["BucketName"]


def _first_object(endpoint: Endpoint, fleet: WorkerFleet, bucket: str, wait_s: float) -> dict[str, float]:
    """Put one object into the bucket of a fleet without instances. Return the milliseconds from the put to each step."""
    s3 = client(endpoint, "s3")
    time.sleep(wait_s)  # a random time of a second
    sent = time.time()
    s3.put_object(Bucket=bucket, Key="image.jpg", Body=b"image")
    found: dict[str, Any] = {}

    def received() -> bool:
        found["line"] = read_fleet(endpoint, fleet)["scaleOut"]
        return found["line"] is not None and found["line"]["at"].timestamp() > sent - 1 and _has(found["line"], "receive")

    _until(received, "the worker has received the message")
    offset_ms = (found["line"]["at"].timestamp() - sent) * 1000
    return {each["step"]: each["ms"] + offset_ms for each in found["line"]["steps"]}


def _has(line: dict[str, Any], step: str) -> bool:
    return any(each["step"] == step for each in line["steps"])


def _is_at_zero(endpoint: Endpoint, fleet: WorkerFleet) -> bool:
    """Whether a worker has processed the test event, and the fleet has no instances again."""
    state = read_fleet(endpoint, fleet)
    return state["visible"] == state["inFlight"] == state["desired"] == state["workers"] == 0 and state["scaleOut"] is not None


def _until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not holds():
        if time.monotonic() > give_up:
            raise RuntimeError(f"not within {GIVE_UP_S:.0f} s: {what}")
        time.sleep(POLL_S)  # between two polls
