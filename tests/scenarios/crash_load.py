"""Calls of other services for `test_crashes.py`, and what must be true of them after all kills.

If a request was answered, its effect must be there. If the server was killed before its answer, the effect may be there or not.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.function_help import create
from eventually import eventually
from harness import container

KINDS = {
    "array": 3,
    "service": 3,
    "stack": 2,
    "event": 2,
    "publish": 6,
}  # kind of call → how often, if 100 calls are of ECS and Logs
SERVICES = 3
JOBS_PER_ARRAY = 3
ENDED = ("SUCCEEDED", "FAILED")
HANDLER = """
def handler(event, context):
    with open(event["path"], "a") as file:
        file.write("invoked\\n")
"""
JOB = 'echo started >> "$SHARED/jobs/$NAME-$AWS_BATCH_JOB_ARRAY_INDEX"'
TEMPLATE = json.dumps(
    {
        "Parameters": {"Name": {"Type": "String"}},
        "Resources": {
            "First": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Fn::Sub": "${Name}-first"}}},
            "Second": {"Type": "AWS::SQS::Queue", "DependsOn": "First", "Properties": {"QueueName": {"Fn::Sub": "${Name}-second"}}},
            "Topic": {"Type": "AWS::SNS::Topic", "DependsOn": "Second"},
        },
    }
)


class OtherServices:
    """What was acknowledged, and what may or may not have happened."""

    def __init__(self, client: Callable[[str], Any], shared: Path) -> None:
        self._client = client
        self._shared = shared
        self._lock = threading.Lock()
        self._updating = [threading.Lock() for _ in range(SERVICES)]
        self._counts = [{0} for _ in range(SERVICES)]  # the counts that a service may have
        self._arrays: dict[str, str] = {}  # job id → name
        self._created: dict[str, bool] = {}  # stack → whether its deletion was acknowledged
        self._maybe_deleted: set[str] = set()
        self._events: set[str] = set()
        self._published: set[str] = set()

    def prepare(self) -> None:
        for folder in ("jobs", "events"):
            (self._shared / folder).mkdir()
        ecs, batch, sns = self._client("ecs"), self._client("batch"), self._client("sns")
        ecs.register_task_definition(family="serves", containerDefinitions=[container(["sleep", "3600"], stopTimeout=2)])
        for number in range(SERVICES):
            ecs.create_service(serviceName=f"service-{number}", taskDefinition="serves", desiredCount=0)
        batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
        order = [{"order": 1, "computeEnvironment": "here"}]
        batch.create_job_queue(jobQueueName="jobs", priority=1, computeEnvironmentOrder=order)
        sizes = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]
        job = {"image": "corral/host", "command": ["sh", "-c", JOB], "resourceRequirements": sizes}
        batch.register_job_definition(jobDefinitionName="job", type="container", containerProperties=job)
        create(self._client("lambda"), "marks", HANDLER)
        self._topic = sns.create_topic(Name="news")["TopicArn"]
        policy = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}]}
        self._inbox = self._client("sqs").create_queue(QueueName="inbox", Attributes={"Policy": json.dumps(policy)})["QueueUrl"]
        queue = self._topic.replace(":sns:", ":sqs:").replace("news", "inbox")
        sns.subscribe(TopicArn=self._topic, Protocol="sqs", Endpoint=queue, Attributes={"RawMessageDelivery": "true"})

    # --- calls --------------------------------------------------------------------------------------------------------

    def array(self, number: int) -> None:
        name = f"array-{number}"
        variables = [{"name": "SHARED", "value": str(self._shared)}, {"name": "NAME", "value": name}]
        answer = self._client("batch").submit_job(
            jobName=name, jobQueue="jobs", jobDefinition="job", arrayProperties={"size": JOBS_PER_ARRAY},
            containerOverrides={"environment": variables},
        )  # fmt: skip
        with self._lock:
            self._arrays[answer["jobId"]] = name

    def service(self, number: int) -> None:
        at, count = number % SERVICES, number % 4
        with self._updating[at]:  # one at a time, so that the order of updates is known
            self._counts[at] = self._counts[at] | {count}
            self._client("ecs").update_service(service=f"service-{at}", desiredCount=count)
            self._counts[at] = {count}

    def stack(self, number: int) -> None:
        name = f"stack-{number}"
        stacks = self._client("cloudformation")
        stacks.create_stack(StackName=name, TemplateBody=TEMPLATE, Parameters=[{"ParameterKey": "Name", "ParameterValue": name}])
        with self._lock:
            self._created[name] = False
        if number % 2:
            with self._lock:
                self._maybe_deleted.add(name)
            stacks.delete_stack(StackName=name)
            with self._lock:
                self._created[name] = True

    def event(self, number: int) -> None:
        path = self._shared / "events" / str(number)
        self._client("lambda").invoke(FunctionName="marks", InvocationType="Event", Payload=json.dumps({"path": str(path)}))
        with self._lock:
            self._events.add(path.name)

    def publish(self, number: int) -> None:
        self._client("sns").publish(TopicArn=self._topic, Message=f"news {number}")
        with self._lock:
            self._published.add(f"news {number}")

    # --- what must be true afterwards ---------------------------------------------------------------------------------

    def check(self, within_s: float) -> None:
        self._check_arrays(within_s)
        self._check_services(within_s)
        self._check_stacks(within_s)
        self._check_events(within_s)
        self._check_messages(within_s)

    def _check_arrays(self, within_s: float) -> None:
        """Each array ends, no job of it starts twice, and a job that succeeded has run."""
        batch, ids = self._client("batch"), sorted(self._arrays)

        def ended() -> list[dict[str, Any]] | None:
            found = [job for at in range(0, len(ids), 100) for job in batch.describe_jobs(jobs=ids[at : at + 100])["jobs"]]
            return found if len(found) == len(ids) and all(job["status"] in ENDED for job in found) else None

        starts = {}
        for job in eventually(ended, f"{len(ids)} arrays ended", within_s) if ids else []:
            summary = job["arrayProperties"]["statusSummary"]
            assert sum(summary.get(status, 0) for status in ENDED) == JOBS_PER_ARRAY, job
            marks = [self._shared / "jobs" / f"{job['jobName']}-{at}" for at in range(JOBS_PER_ARRAY)]
            starts = {path.name: path.read_text().count("started") for path in marks if path.exists()}
            assert all(count == 1 for count in starts.values()), f"jobs started twice: {starts}"
            assert len(starts) >= summary.get("SUCCEEDED", 0), f"{job['jobName']} succeeded and did not run: {job}"

    def _check_services(self, within_s: float) -> None:
        """Each service has the count of the last update, and as many tasks."""
        ecs = self._client("ecs")
        for at, counts in enumerate(self._counts):
            name = f"service-{at}"

            def steady(name: str = name) -> dict[str, Any] | None:
                [found] = ecs.describe_services(services=[name])["services"]
                tasks = ecs.list_tasks(serviceName=name)["taskArns"]
                is_steady = found["runningCount"] == found["desiredCount"] == len(tasks) and not found["pendingCount"]
                return {"count": found["desiredCount"]} if is_steady else None

            found = eventually(steady, f"{name} is steady", within_s)
            assert found["count"] in counts, f"{name}: {found}, not one of {counts}"
            ecs.update_service(service=name, desiredCount=0)
            eventually(lambda name=name: not ecs.list_tasks(serviceName=name)["taskArns"], f"{name} has stopped", within_s)

    def _check_stacks(self, within_s: float) -> None:
        """Each stack is complete or deleted, and each of its queues exists once, or not at all."""
        stacks, sqs = self._client("cloudformation"), self._client("sqs")

        def statuses() -> dict[str, str] | None:
            pages = stacks.get_paginator("list_stacks").paginate()
            found = {each["StackName"]: each["StackStatus"] for page in pages for each in page["StackSummaries"]}
            return None if any(status.endswith("IN_PROGRESS") for status in found.values()) else found

        found = eventually(statuses, "no stack is in progress", within_s)
        queues = {
            url.rpartition("/")[2] for page in sqs.get_paginator("list_queues").paginate() for url in page.get("QueueUrls", [])
        }
        assert set(self._created) <= set(found)
        for name, status in found.items():
            allowed = ["DELETE_COMPLETE"] if self._created.get(name) else ["CREATE_COMPLETE"]
            allowed += ["DELETE_COMPLETE"] if name in self._maybe_deleted else []
            assert status in allowed, f"{name} is {status}"
            own = {f"{name}-first", f"{name}-second"} & queues
            assert len(own) == (2 if status == "CREATE_COMPLETE" else 0), f"{name} is {status}, and has {own}"
        of_stacks = {queue.rpartition("-")[0] for queue in queues if queue.startswith("stack-")}
        assert of_stacks <= set(found), "a queue has no stack"

    def _check_events(self, within_s: float) -> None:
        """Lambda invokes a function for each accepted event, at least once."""
        events = self._shared / "events"
        missing = lambda: self._events - {path.name for path in events.iterdir()}  # noqa: E731
        eventually(lambda: not missing(), "all events are handled", within_s)

    def _check_messages(self, within_s: float) -> None:
        """Each published message arrives once."""
        sqs, received = self._client("sqs"), Counter[str]()

        def has_all() -> bool:
            got = sqs.receive_message(QueueUrl=self._inbox, MaxNumberOfMessages=10, VisibilityTimeout=600).get("Messages", [])
            received.update(message["Body"] for message in got)
            return not got and received.keys() >= self._published

        eventually(has_all, "all published messages arrive", within_s)
        assert max(received.values(), default=1) == 1, f"messages arrived twice: {received.most_common(3)}"
