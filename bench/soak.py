"""`bench/soak.py [--minutes 60] [--clients 10] [--rate 4] [--seconds-kept 300] [--json FILE]`: use all services, and show that
nothing grows.

Clients create, use and delete resources of all services, each with names of its own. They begin a fixed number of errands per
second, so that the speed of the machine does not change what Corral keeps. Once a minute the script reads the memory of
Corral's processes, the rows of each table and the files of the data folder. What has ended is kept for five minutes
(`soak_server.py`). Memory may grow by 5 % after the first ten minutes: the most in the last ten minutes is compared with the
most in the ten minutes after the first ten. Rows and files may not grow: their means in these times are compared, because what
has ended is deleted every five minutes, and some rows exist for a moment only.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import zipfile
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import boto3
import machine
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from client import ACCESS_KEY, REGION, SECRET_KEY
from launches import TRUE
from local import Local
from rich.console import Console
from rich.table import Table
from rows import Bench

SETTLED_MIN, WINDOW_MIN = 10, 10
MEMORY_GROWTH_MAX = 1.05
ROWS_SPARE = 20  # a table may have this many rows more: which resources exist differs from minute to minute
# Rows of this table with longer steps have the values of a series for up to 60 hours, so an hour cannot show that they are deleted.
PACKED, FINE = "metrics.packed", " WHERE step_s = 1"
GROWTH_MAX = 1.10
FILES_SPARE = 50
RATE_PER_S = 4.0  # errands of all clients together
LATE_MAX_S = 30.0  # a client that is later than this leaves errands out
JOBS_GROUP = "/aws/batch/job"
ROLE = json.dumps(
    {"Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
)
ALLOW_ALL = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}
TEMPLATE = {
    "Parameters": {"Seconds": {"Type": "Number", "Default": 30}},
    "Resources": {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": {"Ref": "Seconds"}}},
        "Group": {"Type": "AWS::Logs::LogGroup"},
        "Topic": {"Type": "AWS::SNS::Topic"},
        "Inner": {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": {"Ref": "Queue"}}},
    },
}


class Sample(NamedTuple):
    """What Corral uses at one time."""

    minute: float
    memory_mb: float
    rows: dict[str, int]  # database.table → rows
    files: int
    file_mb: float
    calls: int
    errors: int
    late: int  # errands that were left out, because the machine is too slow for the rate


class Client:
    """A client that does one errand after the other, in all services. It deletes what it makes."""

    def __init__(self, port: int, number: int, kept_s: float) -> None:
        self._kept_s = kept_s
        self._endpoint = f"http://127.0.0.1:{port}"
        self.name = f"soak{number}"
        self.calls = 0
        self._clients: dict[str, Any] = {}
        self._zip = io.BytesIO()
        with zipfile.ZipFile(self._zip, "w") as archive:
            archive.writestr("main.py", "def handler(event, context):\n    return event\n")
        self.errands: Sequence[Callable[[], None]] = (
            self.tasks, self.service, self.jobs, self.messages, self.topic, self.objects, self.metrics, self.lines, self.stack,
            self.function, self.group, self.parameters, self.repository, self.status, self.streams,
        )  # fmt: skip

    def __getattr__(self, service: str) -> Any:
        if service.startswith("_"):
            raise AttributeError(service)
        if service not in self._clients:
            client = boto3.client(
                service.replace("_", "-").rstrip("-"),
                endpoint_url=self._endpoint,
                region_name=REGION,
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
                config=Config(retries={"max_attempts": 1}, read_timeout=70),
            )
            client.meta.events.register("after-call", self._count)
            self._clients[service] = client
        return self._clients[service]

    def _count(self, **_: Any) -> None:
        self.calls += 1

    def prepare(self) -> None:
        self.iam.create_role(RoleName=self.name, AssumeRolePolicyDocument=ROLE)
        self.sqs.create_queue(QueueName=self.name, Attributes={"MessageRetentionPeriod": "300", "Policy": json.dumps(ALLOW_ALL)})
        self.s3.create_bucket(Bucket=self.name)
        told = [{"QueueArn": f"arn:aws:sqs:{REGION}:123456789012:{self.name}", "Events": ["s3:ObjectCreated:*"]}]
        self.s3.put_bucket_notification_configuration(Bucket=self.name, NotificationConfiguration={"QueueConfigurations": told})
        self.batch.create_compute_environment(
            computeEnvironmentName=self.name, type="UNMANAGED", tags={"corral:cluster": "default"}
        )
        order = [{"order": 1, "computeEnvironment": self.name}]
        self.batch.create_job_queue(jobQueueName=self.name, priority=1, computeEnvironmentOrder=order)
        job = {"image": "corral/host", "command": [TRUE], "vcpus": 1, "memory": 16}
        self.batch.register_job_definition(jobDefinitionName=self.name, type="container", containerProperties=job)
        data = {"ImageId": "ami-1", "InstanceType": "g5.xlarge", "UserData": b64encode(b"#!/bin/bash\n").decode()}
        self.ec2.create_launch_template(LaunchTemplateName=self.name, LaunchTemplateData=data)
        with suppress(ClientError):  # each client needs it, and one makes it
            self.ecs.create_cluster(clusterName="default")

    # --- errands ------------------------------------------------------------------------------------------------------

    def _define(self, *command: str) -> str:
        log = {"awslogs-group": f"/{self.name}", "awslogs-create-group": "true", "awslogs-stream-prefix": "task"}
        container = {"name": "main", "image": "corral/host", "command": list(command), "memory": 16}
        container["logConfiguration"] = {"logDriver": "awslogs", "options": log}
        found = self.ecs.register_task_definition(family=self.name, containerDefinitions=[container])
        return str(found["taskDefinition"]["taskDefinitionArn"])

    def _forget(self, definition: str) -> None:
        self.ecs.deregister_task_definition(taskDefinition=definition)
        self.ecs.delete_task_definitions(taskDefinitions=[definition])

    def tasks(self) -> None:
        definition = self._define("/bin/sh", "-c", "echo a line; echo another")
        started = [task["taskArn"] for task in self.ecs.run_task(taskDefinition=definition, count=4)["tasks"]]
        self.ecs.stop_task(task=started[0])
        self.ecs.describe_tasks(tasks=started)
        self.ecs.get_waiter("tasks_stopped").wait(tasks=started, WaiterConfig={"Delay": 0.5, "MaxAttempts": 120})
        self._forget(definition)
        self.logs.delete_log_group(logGroupName=f"/{self.name}")

    def service(self) -> None:
        definition, name = self._define("/bin/sleep", "60"), f"service/default/{self.name}"
        self.ecs.create_service(serviceName=self.name, taskDefinition=definition, desiredCount=1)
        target = {"ServiceNamespace": "ecs", "ResourceId": name, "ScalableDimension": "ecs:service:DesiredCount"}
        self.application_autoscaling.register_scalable_target(**target, MinCapacity=0, MaxCapacity=2)
        self.ecs.update_service(service=self.name, desiredCount=2)
        self.ecs.describe_services(services=[self.name])
        self.application_autoscaling.deregister_scalable_target(**target)
        self.ecs.delete_service(service=self.name, force=True)
        self._forget(definition)

    def jobs(self) -> None:
        self.batch.submit_job(jobName=self.name, jobQueue=self.name, jobDefinition=self.name, arrayProperties={"size": 5})
        for status in ("RUNNABLE", "SUCCEEDED"):
            self.batch.list_jobs(jobQueue=self.name, jobStatus=status)

    def messages(self) -> None:
        url = self.sqs.get_queue_url(QueueName=self.name)["QueueUrl"]
        self.sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(at), "MessageBody": "x" * 500} for at in range(10)])
        got = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(got)]
        if entries:
            self.sqs.delete_message_batch(QueueUrl=url, Entries=entries)

    def topic(self) -> None:
        arn = self.sns.create_topic(Name=self.name)["TopicArn"]
        self.sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=f"arn:aws:sqs:{REGION}:123456789012:{self.name}")
        for number in range(5):
            self.sns.publish(TopicArn=arn, Message=f"message {number}")
        self.sns.delete_topic(TopicArn=arn)

    def objects(self) -> None:
        for number in range(5):
            self.s3.put_object(Bucket=self.name, Key=f"a/{number}", Body=os.urandom(20_000))
        self.s3.copy_object(Bucket=self.name, Key="copy", CopySource=f"{self.name}/a/0")
        self.s3.get_object(Bucket=self.name, Key="copy")["Body"].read()
        found = self.s3.list_objects_v2(Bucket=self.name)["Contents"]
        self.s3.delete_objects(Bucket=self.name, Delete={"Objects": [{"Key": each["Key"]} for each in found]})

    def metrics(self) -> None:
        self.cloudwatch.put_metric_data(Namespace="Soak", MetricData=[{"MetricName": self.name, "Value": 1.0}] * 10)
        self.cloudwatch.put_metric_alarm(
            AlarmName=self.name, Namespace="Soak", MetricName=self.name, Statistic="Sum", Period=60, EvaluationPeriods=1,
            Threshold=5.0, ComparisonOperator="GreaterThanThreshold",
        )  # fmt: skip
        metric = {"Namespace": "Soak", "MetricName": self.name}
        query = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
        now_s = time.time()
        self.cloudwatch.get_metric_data(MetricDataQueries=[query], StartTime=now_s - 600, EndTime=now_s)
        self.cloudwatch.delete_alarms(AlarmNames=[self.name])

    def lines(self) -> None:
        group = f"/lines/{self.name}"
        self.logs.create_log_group(logGroupName=group)
        self.logs.create_log_stream(logGroupName=group, logStreamName="s")
        events = [{"timestamp": int(time.time() * 1000), "message": f"line {at}"} for at in range(100)]
        self.logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=events)
        self.logs.filter_log_events(logGroupName=group, filterPattern="line")
        self.logs.delete_log_group(logGroupName=group)

    def stack(self) -> None:
        stack = {"StackName": self.name}
        wait = {"Delay": 0.5, "MaxAttempts": 120}
        self.cloudformation.create_stack(**stack, TemplateBody=json.dumps(TEMPLATE))
        self.cloudformation.get_waiter("stack_create_complete").wait(**stack, WaiterConfig=wait)
        changed = [{"ParameterKey": "Seconds", "ParameterValue": "60"}]
        self.cloudformation.update_stack(**stack, UsePreviousTemplate=True, Parameters=changed)
        self.cloudformation.get_waiter("stack_update_complete").wait(**stack, WaiterConfig=wait)
        self.cloudformation.delete_stack(**stack)
        self.cloudformation.get_waiter("stack_delete_complete").wait(**stack, WaiterConfig=wait)

    def function(self) -> None:
        role = f"arn:aws:iam::123456789012:role/{self.name}"
        code = {"ZipFile": self._zip.getvalue()}
        self.lambda_.create_function(FunctionName=self.name, Role=role, Runtime="python3.12", Handler="main.handler", Code=code)
        try:
            self.lambda_.invoke(FunctionName=self.name, Payload=b'{"number": 1}')["Payload"].read()
        finally:
            self.lambda_.delete_function(FunctionName=self.name)
        with suppress(ClientError):
            self.logs.delete_log_group(logGroupName=f"/aws/lambda/{self.name}")

    def group(self) -> None:
        template = {"LaunchTemplateName": self.name}
        zones = [f"{REGION}a"]
        self.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=self.name,
            MinSize=0,
            MaxSize=1,
            DesiredCapacity=1,
            LaunchTemplate=template,
            AvailabilityZones=zones,
        )
        self.autoscaling.set_desired_capacity(AutoScalingGroupName=self.name, DesiredCapacity=0)
        self.autoscaling.describe_scaling_activities(AutoScalingGroupName=self.name)
        self.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=self.name, ForceDelete=True)
        for _ in range(120):
            if not self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.name])["AutoScalingGroups"]:
                break
            time.sleep(0.5)

    def parameters(self) -> None:
        self.ssm.put_parameter(Name=f"/{self.name}", Value="secret", Type="SecureString", Overwrite=True)
        self.ssm.get_parameter(Name=f"/{self.name}", WithDecryption=True)
        self.ssm.delete_parameter(Name=f"/{self.name}")
        self.sts.get_caller_identity()
        self.sts.get_session_token()
        self.iam.list_roles()

    def repository(self) -> None:
        self.ecr.create_repository(repositoryName=self.name)
        self.ecr.describe_repositories(repositoryNames=[self.name])
        self.ecr.delete_repository(repositoryName=self.name, force=True)

    def streams(self) -> None:
        """Delete the log streams of jobs that ended long ago, because Logs keeps a stream when all its events have expired."""
        names = {"logGroupName": JOBS_GROUP, "logStreamNamePrefix": f"{self.name}/"}
        with suppress(self.logs.exceptions.ResourceNotFoundException):  # no job has run yet
            for page in self.logs.get_paginator("describe_log_streams").paginate(**names):
                for each in page["logStreams"]:
                    if each["creationTime"] < (time.time() - self._kept_s) * 1000:
                        self.logs.delete_log_stream(logGroupName=JOBS_GROUP, logStreamName=each["logStreamName"])

    def status(self) -> None:
        self.ec2.describe_instances()
        self.ecs.list_tasks()
        self.autoscaling.describe_auto_scaling_groups()


class Counts(NamedTuple):
    """What a client has done, in memory that it shares with the script."""

    calls: Any
    errors: Any
    late: Any


def run_client(client: Client, every_s: float, first_s: float, until: float, counts: Counts) -> None:
    """Begin an errand every so often, until the end. An errand that fails is reported, and the next one goes on."""
    said = set[str]()
    client.prepare()
    due = time.monotonic() + first_s
    for errand in cycle(client.errands):
        if due >= until:
            return
        time.sleep(max(0.0, due - time.monotonic()))
        before = client.calls
        try:
            errand()
        except (BotoCoreError, ClientError) as error:
            counts.errors.value += 1
            if str(error) not in said and len(said) < 10:
                said.add(str(error))
                print(f"{client.name} {errand.__name__}: {error}", file=sys.stderr, flush=True)
        counts.calls.value += client.calls - before
        due += every_s
        while due < time.monotonic() - LATE_MAX_S:
            due += every_s
            counts.late.value += 1


# --- what Corral uses -------------------------------------------------------------------------------------------------


def sample(local: Local, minute: float, counts: Sequence[Counts]) -> Sample:
    files = [Path(folder) / name for folder, _, names in os.walk(local.data) for name in names]  # some vanish meanwhile
    sizes = []
    for path in files:
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    memory_mb = sum(machine.pss_mb(pid) for pid in local.pids.values())
    done = (sum(each.value for each in values) for values in zip(*counts, strict=True))
    return Sample(minute, memory_mb, table_rows(local.data), len(files), sum(sizes) / 1e6, *done)


def table_rows(data: Path) -> dict[str, int]:
    found = {}
    for path in sorted(data.glob("*.db")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()
            for (table,) in tables:
                name = f"{path.stem}.{table}"
                found[name] = database.execute(f'SELECT count(*) FROM "{table}"{FINE if name == PACKED else ""}').fetchone()[0]
    return found


def judged(samples: Sequence[Sample]) -> list[tuple[str, float, float, bool]]:
    """(what, its value after the first minutes, its value at the end, whether it grew)."""
    first = [each for each in samples if SETTLED_MIN <= each.minute < SETTLED_MIN + WINDOW_MIN]
    last = samples[-max(1, min(WINDOW_MIN, len(samples) // 3)) :]
    if not first:
        return []
    before, after = (max(each.memory_mb for each in window) for window in (first, last))
    found = [("memory, MB", before, after, after > before * MEMORY_GROWTH_MAX)]

    def compare(what: str, value: Callable[[Sample], float], spare: float) -> None:
        before, after = (fmean(map(value, window)) for window in (first, last))
        found.append((what, before, after, after > before * GROWTH_MAX + spare))

    compare("files", lambda each: each.files, FILES_SPARE)
    for table in samples[-1].rows:
        compare(f"rows of {table}", lambda each, table=table: each.rows.get(table, 0), ROWS_SPARE)
    return found


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 120)
    bench = Bench(Path(tempfile.mkdtemp(prefix="corral-soak-", dir=machine.real_disk())))
    local = Local(bench.fresh("soak") / "data", "sim:8")
    local._command[1:3] = [str(Path(__file__).with_name("soak_server.py")), "corral.server", str(options.seconds_kept)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    local.launch()
    samples: list[Sample] = []
    try:
        local.wait_ready()
        began = time.monotonic()
        until = began + options.minutes * 60
        counts = [Counts(*(multiprocessing.Value("q", 0) for _ in Counts._fields)) for _ in range(options.clients)]
        every_s = options.clients / options.rate
        clients = []
        for number, count in enumerate(counts):
            schedule = (every_s, every_s * number / options.clients, until)
            arguments = (Client(local.port, number, options.seconds_kept), *schedule, count)
            clients.append(multiprocessing.Process(target=run_client, args=arguments, daemon=True))
        for client in clients:
            client.start()
        woken = threading.Event()
        while time.monotonic() < until:
            woken.wait(min(60.0, max(0.0, until - time.monotonic())))
            samples.append(sample(local, (time.monotonic() - began) / 60, counts))
            now = samples[-1]
            alive = sum(map(multiprocessing.Process.is_alive, clients))
            console.print(
                f"minute {now.minute:3.0f}: {now.memory_mb:.1f} MB, {sum(now.rows.values()):,} rows, {now.files:,} files "
                f"({now.file_mb:.0f} MB), {now.calls:,} calls, {now.errors} failed errands, {now.late} left out; {alive} clients",
                highlight=False,
            )
        for client in clients:
            client.join()
    finally:
        local.stop()
        shutil.rmtree(bench.folder, ignore_errors=True)
    rows = judged(samples)
    table = Table("what", "most in minutes 10 to 20", "most at the end", "grew", header_style="bold")
    for what, before, after, grew in rows:
        if grew or not what.startswith("rows") or after > ROWS_SPARE:
            table.add_row(what, f"{before:,.1f}", f"{after:,.1f}", "yes" if grew else "", style="red" if grew else None)
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps([each._asdict() for each in samples]))
    failed = Counter(grew for *_, grew in rows)[True]
    console.print(
        f"{failed} of {len(rows)} grew; {samples[-1].calls:,} calls, {samples[-1].errors} failed errands" if rows else "too short"
    )
    return 1 if failed or samples[-1].errors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/soak.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help=f"errands per second (default {RATE_PER_S:.0f})")
    parser.add_argument("--seconds-kept", type=float, default=300.0, help="how long Corral keeps what has ended (default 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the samples to a file, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
