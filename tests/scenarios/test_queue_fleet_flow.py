"""GPU workers that follow a queue, from zero: made by hand with the API, and by the shipped template.

The worker is a plain boto3 loop. The alarms have a short period, so that the fleet returns to zero within seconds. The queues have
long polling, so that a worker without messages takes no CPU time from the rest of the fleet.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forkserver
from eventually import DEADLINE_S, eventually
from harness import Corral

WORKER = Path(__file__).parent / "workers" / "queue_worker.py"
TEMPLATE = Path(__file__).parent.parent.parent / "templates" / "queue-fleet.yaml"
ACCOUNT, REGION = "123456789012", "us-east-1"
BUCKET, QUEUE, CLUSTER, GROUP = "ml-gpu-example", "example-gpu-queue", "gpu-example-cluster", "gpu-example-group"
ALARM, LOGS = "gpu-example-alarm", "/gpu-example"
PERIOD_S = 10
LONG_POLLING = {"ReceiveMessageWaitTimeSeconds": "20"}
ZERO_S = 90.0  # a fleet is back at zero after this time at the latest


@pytest.fixture
def corral(tmp_path: Path) -> Iterator[Corral]:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    started = Corral(data, "sim:4", "--runtime", "process").start()
    yield started
    started.clear()


class Gate:
    """The model of the workers returns while the gate is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.path.touch()

    def close(self) -> None:
        self.path.unlink()


class Fleet:
    """What a user sees of a fleet."""

    def __init__(self, corral: Corral, bucket: str, queue: str, cluster: str, group: str, logs: str) -> None:
        self.bucket, self.cluster, self.group, self.log_group = bucket, cluster, group, logs
        self.s3, self.sqs, self.ecs, self.logs = (corral.client(name) for name in ("s3", "sqs", "ecs", "logs"))
        self.scaling = corral.client("autoscaling")
        self.queue_url = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]

    def put(self, *keys: str) -> None:
        for key in keys:
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=key.encode())

    def messages(self) -> tuple[int, int]:
        """(visible, in flight)"""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def instances(self) -> int:
        [group] = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])["AutoScalingGroups"]
        return sum(each["LifecycleState"] == "InService" for each in group["Instances"])

    def desired(self) -> int:
        [group] = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])["AutoScalingGroups"]
        return int(group["DesiredCapacity"])

    def activities(self) -> list[dict[str, Any]]:
        return self.scaling.describe_scaling_activities(AutoScalingGroupName=self.group)["Activities"]

    def tasks(self) -> list[dict[str, Any]]:
        arns = self.ecs.list_tasks(cluster=self.cluster)["taskArns"]
        found = self.ecs.describe_tasks(cluster=self.cluster, tasks=arns)["tasks"] if arns else []
        return [each for each in found if each["lastStatus"] == "RUNNING"]

    def predictions(self) -> list[list[str]]:
        """(key, digest, devices) of each prediction."""
        pages = self.logs.get_paginator("filter_log_events").paginate(logGroupName=self.log_group, filterPattern="Predicted")
        return [event["message"].split()[1:] for page in pages for event in page["events"]]

    def started(self) -> set[str]:
        """What the workers have printed when they started."""
        pages = self.logs.get_paginator("filter_log_events").paginate(logGroupName=self.log_group, filterPattern="Started")
        return {event["message"].removeprefix("Started: ") for page in pages for event in page["events"]}

    def until_zero(self) -> None:
        def gone() -> bool:
            [group] = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])["AutoScalingGroups"]
            return not group["Instances"] and not self.tasks()

        eventually(gone, "the fleet is back at zero", ZERO_S)


def make_queue_and_bucket(corral: Corral) -> None:
    sqs, s3 = corral.client("sqs"), corral.client("s3")
    url = sqs.create_queue(QueueName=QUEUE, Attributes=LONG_POLLING)["QueueUrl"]
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{QUEUE}"
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "SQS:SendMessage",
        "Resource": arn,
        "Condition": {"ArnLike": {"aws:SourceArn": f"arn:aws:s3:*:*:{BUCKET}"}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    s3.create_bucket(Bucket=BUCKET)
    notification = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:Put"]}]}
    s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration=notification)
    [test] = sqs.receive_message(QueueUrl=url)["Messages"]  # the worker cannot read it: a user deletes it first
    assert json.loads(test["Body"])["Event"] == "s3:TestEvent"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=test["ReceiptHandle"])


def make_service(corral: Corral, gate: Gate, folder: Path) -> None:
    ecs = corral.client("ecs")
    corral.client("logs").create_log_group(logGroupName=LOGS)
    logs = {"awslogs-group": LOGS, "awslogs-region": REGION, "awslogs-stream-prefix": "gpu-worker"}
    container = {
        "name": "gpu-worker-container",
        "image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/ml-gpu-example",
        "memory": 48000,
        "cpu": 4096,
        "essential": True,
        "entryPoint": [sys.executable, str(WORKER)],
        "workingDirectory": str(folder),
        # The image sets NVIDIA_VISIBLE_DEVICES; the task definition requires no GPU.
        "environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "GATE", "value": str(gate.path)}],
        "logConfiguration": {"logDriver": "awslogs", "options": logs},
    }
    ecs.register_task_definition(family="gpu-worker", memory="48000", cpu="4096", containerDefinitions=[container])
    ecs.create_cluster(clusterName=CLUSTER)
    ecs.create_service(
        cluster=CLUSTER,
        serviceName="gpu-worker-service",
        taskDefinition="gpu-worker",
        launchType="EC2",
        schedulingStrategy="DAEMON",
        deploymentConfiguration={"minimumHealthyPercent": 0, "maximumPercent": 100},
    )


def make_group(corral: Corral) -> str:
    """Create the launch template, the group and its policy. Return the ARN of the policy."""
    user_data = f"#!/bin/bash\necho ECS_CLUSTER={CLUSTER} >> /etc/ecs/ecs.config;echo ECS_BACKEND_HOST= >> /etc/ecs/ecs.config;\n"
    data = {
        "ImageId": "ami-0123456789abcdef0",
        "InstanceType": "p2.xlarge",
        "UserData": base64.b64encode(user_data.encode()).decode(),
    }
    corral.client("ec2").create_launch_template(LaunchTemplateName="gpu-example-template", LaunchTemplateData=data)
    scaling = corral.client("autoscaling")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchTemplate={"LaunchTemplateName": "gpu-example-template"},
        MinSize=0,
        MaxSize=2,
        AvailabilityZones=[f"{REGION}a"],
    )
    steps = [
        {"MetricIntervalLowerBound": 0, "MetricIntervalUpperBound": 1, "ScalingAdjustment": 0},
        {"MetricIntervalLowerBound": 1, "MetricIntervalUpperBound": 100, "ScalingAdjustment": 1},
        {"MetricIntervalLowerBound": 100, "ScalingAdjustment": 2},
    ]
    return scaling.put_scaling_policy(
        AutoScalingGroupName=GROUP,
        PolicyName="gpu-example-policy",
        PolicyType="StepScaling",
        AdjustmentType="ExactCapacity",
        StepAdjustments=steps,
        EstimatedInstanceWarmup=0,
    )["PolicyARN"]


def put_alarm(corral: Corral, **actions: Any) -> None:
    corral.client("cloudwatch").put_metric_alarm(
        AlarmName=ALARM,
        Namespace="AWS/SQS",
        MetricName="ApproximateNumberOfMessagesVisible",
        Dimensions=[{"Name": "QueueName", "Value": QUEUE}],
        Statistic="Average",
        Period=PERIOD_S,
        EvaluationPeriods=1,
        Threshold=0,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="missing",
        **actions,
    )


def check_flow(fleet: Fleet, gate: Gate) -> None:
    """0 → 1 on the first object, → 2 beyond 100 messages, → 0 when the queue is empty; no message is lost or processed twice."""
    fleet.put("first.jpg")
    eventually(lambda: fleet.instances() == 1 and len(fleet.tasks()) == 1, "the first object launches a worker")
    eventually(lambda: [key for key, *_ in fleet.predictions()] == ["first.jpg"], "the worker has processed it")

    gate.close()
    many = [f"image-{number}.jpg" for number in range(150)]
    fleet.put(*many)
    eventually(lambda: fleet.instances() == 2 and len(fleet.tasks()) == 2, "more than 100 messages launch a second worker")
    eventually(lambda: fleet.messages()[1] > 10, "both workers hold messages, at most ten each")
    gate.open()
    eventually(lambda: fleet.messages() == (0, 0), "the queue is empty", ZERO_S)
    fleet.until_zero()
    eventually(lambda: len(fleet.predictions()) == 151, "the log has all predictions")
    assert Counter(key for key, *_ in fleet.predictions()) == Counter(["first.jpg", *many])
    assert all(each["StatusCode"] == "Successful" for each in fleet.activities())


def test_a_fleet_made_by_hand(corral: Corral, tmp_path: Path) -> None:
    gate, folder = Gate(tmp_path / "gate"), tmp_path / "work"
    folder.mkdir()
    make_queue_and_bucket(corral)
    make_service(corral, gate, folder)
    put_alarm(corral)
    policy = make_group(corral)
    put_alarm(corral, AlarmActions=[policy], OKActions=[policy])
    fleet = Fleet(corral, BUCKET, QUEUE, CLUSTER, GROUP, LOGS)
    fleet.until_zero()  # the metrics of the test event may have launched a worker
    check_flow(fleet, gate)
    devices = {each[2] for each in fleet.predictions()}
    assert len(devices) == 2 and all(each.startswith("GPU-") for each in devices), devices

    # The trap of this alarm: messages in flight are not visible, so the policy wants no worker while one holds the last batch.
    gate.close()
    fleet.put("last.jpg")
    eventually(lambda: fleet.messages() == (0, 1), "a worker holds the message")
    eventually(lambda: fleet.desired() == 0, "the policy wants no worker", ZERO_S)
    [task] = fleet.tasks()
    task_id = task["taskArn"].rpartition("/")[2]

    def waits() -> bool:
        newest = fleet.activities()[0]
        reason = newest.get("StatusMessage", "")
        is_waiting = newest["Description"].startswith("Terminating") and newest["StatusCode"] not in ("Successful", "Failed")
        return is_waiting and task_id in reason and "holds 1 message" in reason

    eventually(waits, "the termination waits for the worker, and says why")
    gate.open()
    fleet.until_zero()
    assert fleet.messages() == (0, 0)
    eventually(lambda: len(fleet.predictions()) == 152, "the log has all predictions")
    assert [key for key, *_ in fleet.predictions()].count("last.jpg") == 1


def test_a_fleet_made_by_the_template(corral: Corral, tmp_path: Path) -> None:
    gate, folder = Gate(tmp_path / "gate"), tmp_path / "work"
    folder.mkdir()
    shutil.copy(WORKER, folder / "worker.py")
    given = {
        "Image": "corral/host",
        "Command": f'echo "Started: $TITLE in $OUT"; cd {folder} && {sys.executable} worker.py; exit $?',
        "Variables": f"GATE={gate.path} TITLE='first deployment' OUT=s3://$BUCKET/out",
        "InstanceType": "p2.xlarge",
    }
    template = tmp_path / "queue-fleet.yaml"
    template.write_text(TEMPLATE.read_text().replace("Period: 60", f"Period: {PERIOD_S}"))
    deploy(corral, template, "fleet", *(f"{key}={value}" for key, value in given.items()))
    stack = corral.client("cloudformation").describe_stacks(StackName="fleet")["Stacks"][0]
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    queue = outputs["QueueUrl"].rpartition("/")[2]
    fleet = Fleet(corral, outputs["BucketName"], queue, outputs["ClusterName"], outputs["GroupName"], outputs["LogGroupName"])
    corral.client("sqs").set_queue_attributes(QueueUrl=outputs["QueueUrl"], Attributes=LONG_POLLING)
    corral.client("sqs").purge_queue(QueueUrl=outputs["QueueUrl"])  # the test event of S3, which this worker cannot read
    check_flow(fleet, gate)

    # The alarm of the template counts messages in flight, so the policy keeps the worker.
    gate.close()
    fleet.put("last.jpg")
    eventually(lambda: fleet.messages() == (0, 1), "a worker holds the message")
    since = corral.client("cloudwatch").describe_alarms()["MetricAlarms"][0]["StateUpdatedTimestamp"]
    eventually(lambda: len(fleet.tasks()) == 1 and fleet.desired() == 1, "the worker stays")
    check_drawing(corral, "fleet", fleet.tasks()[0]["taskArn"].rpartition("/")[2])
    gate.open()
    eventually(lambda: fleet.messages() == (0, 0), "the worker has deleted the message")
    assert fleet.started() == {f"first deployment in s3://{fleet.bucket}/out"}
    given["Variables"] = given["Variables"].replace("first", "second")
    update(corral, template, "fleet", WorkersMax="3", **given)
    eventually(lambda: f"second deployment in s3://{fleet.bucket}/out" in fleet.started(), "the update has replaced the worker")
    fleet.until_zero()
    alarm = corral.client("cloudwatch").describe_alarms()["MetricAlarms"][0]
    assert alarm["StateValue"] == "OK" and alarm["StateUpdatedTimestamp"] > since


def check_drawing(corral: Corral, name: str, task_id: str) -> None:
    """`corral fleet` shows a worker that holds a message, and each step of its launch."""
    shown: dict[str, Any] = {}

    def has_sample() -> bool:
        """Metrics are published once a second."""
        shown.update(json.loads(draw(corral, name, "--json")))
        return bool(shown["history"]["workers"][-1] == 1)

    eventually(has_sample, "the graph has the worker")
    assert (shown["visible"], shown["inFlight"], shown["workers"], shown["gpus"]) == (0, 1, 1, 1)
    [worker] = shown["tasks"]
    assert (worker["id"], worker["held"], worker["leaving"]) == (task_id, 1, False)
    assert max(shown["history"]["workers"]) == 2
    line = shown["scaleOut"]
    steps = [each["step"] for each in line["steps"]]
    assert (line["before"], line["after"]) == (0, 1)
    assert steps == ["message", "alarm", "policy", "instance", "joined", "task", "running", "receive"]
    times = [each["ms"] for each in line["steps"]]
    assert times[0] == 0 and times == sorted(times) and times[-1] < 1000 * DEADLINE_S
    drawn = draw(corral, name)
    for text in (
        "messages in flight 1",
        "1 to 100",
        "message sent by S3",
        "first message received",
        "1 message",
        task_id[:8],
    ):
        assert text in " ".join(drawn.split()), f"{text} is not in {drawn}"


def draw(corral: Corral, name: str, *options: str) -> str:
    command = [forkserver.program("corral"), "fleet", name, "--data", str(corral.data), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout


def deploy(corral: Corral, template: Path, name: str, *parameters: str) -> None:
    command = [
        forkserver.program("aws"), "cloudformation", "deploy", "--stack-name", name, "--template-file", str(template),
        "--capabilities", "CAPABILITY_IAM", "--parameter-overrides", *parameters,
    ]  # fmt: skip
    done = subprocess.run(command, env=corral.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def update(corral: Corral, template: Path, name: str, **parameters: str) -> None:
    cloudformation = corral.client("cloudformation")
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
    cloudformation.update_stack(
        StackName=name, TemplateBody=template.read_text(), Parameters=given, Capabilities=["CAPABILITY_IAM"]
    )
    ended = ("UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
    status = eventually(
        lambda: next(
            (each for each in ended if each == cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]), None
        ),
        "the update ends",
    )
    assert status == "UPDATE_COMPLETE"
