"""Workers on a virtual clock: tasks of a DAEMON service on the instances of an Auto Scaling group, which receive messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from corral.core.commands import Command
from corral.core.core import Outcome
from corral.model.instance import ec2_id
from corral.operations.services import SERVICES
from virtual_clock.group_world import CALLER
from virtual_clock.service_world import USER_DATA, ServiceWorld

FLEET = "fleet"


class BusyWorld(ServiceWorld):
    """`polls` are the ReceiveMessage calls that wait: command → the function that gets the messages."""

    def start(self) -> None:
        self.polls: dict[Command, Callable[[list[dict[str, Any]]], None]] = {}
        super().start()

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        self.check_leaving()
        for command, answer in outcome.answers:
            if (took := self.polls.pop(command, None)) is not None:
                took(answer.get("Messages", []))
        return outcome

    def check_leaving(self) -> None:
        """The leaving tasks in memory are those of the rows."""
        rows: dict[str, dict[str, float]] = {}
        for task_id, key, at_s in self.store.execute("SELECT task_id, chosen_by, chosen_at FROM leaving_task"):
            rows.setdefault(task_id, {})[key] = at_s
        assert self.store.tasks.leaving.snapshot() == rows

    def fleet(self, desired: int, visibility_s: int = 30, **more: Any) -> str:
        """A queue, and a group whose instances run one worker each. Return the URL of the queue."""
        self.define(gpus=1)
        self.call("CreateCluster", "ecs", clusterName=FLEET)
        self.serve(FLEET, schedulingStrategy="DAEMON")
        self.configuration("joins", UserData=USER_DATA)
        self.group(LaunchConfigurationName="joins", desired=desired, **more)
        self.report()
        made = self.call("CreateQueue", "sqs", QueueName="work", Attributes={"VisibilityTimeout": str(visibility_s)})
        return str(made["QueueUrl"])

    def send(self, url: str, count: int = 1) -> None:
        for at in range(count):
            self.call("SendMessage", "sqs", QueueUrl=url, MessageBody=f"message {at}")

    def as_task(self, task_id: str, operation: str, service: str = "sqs", /, **params: Any) -> Any:
        caller = replace(CALLER, task_id=task_id)
        return self.run(lambda tx: SERVICES[service].operations[operation](tx, params, caller))

    def receive(self, task_id: str, url: str, count: int = 1) -> list[dict[str, Any]]:
        found = self.as_task(task_id, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=count, WaitTimeSeconds=0)
        return list(found.get("Messages", []))

    def poll(self, task_id: str, url: str, wait_s: int, took: Callable[[list[dict[str, Any]]], None], count: int = 1) -> None:
        """A long poll of a task. `took` gets its messages."""
        caller = replace(CALLER, task_id=task_id)
        params = {"QueueUrl": url, "MaxNumberOfMessages": count, "WaitTimeSeconds": wait_s}
        receive = SERVICES["sqs"].operations["ReceiveMessage"]
        command = Command(lambda tx: receive(tx, params, caller), lambda answer: None)
        self.polls[command] = took
        self.transact([command])

    def delete(self, task_id: str, url: str, message: dict[str, Any]) -> None:
        self.as_task(task_id, "DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def workers(self) -> dict[str, str]:
        """Running task → its EC2 instance, oldest first."""
        rows = self.store.execute("SELECT id, instance_id FROM task WHERE state = 'RUNNING' AND desired = 'RUNNING' ORDER BY rowid")
        return {task_id: ec2_id(instance_id) for task_id, instance_id in rows.fetchall()}

    def state_of(self, task_id: str) -> tuple[str, str]:
        task = self.store.tasks.get(task_id)
        assert task is not None
        return task.state.value, task.desired.value

    def lifecycle(self) -> dict[str, str]:
        return {each["InstanceId"]: each["LifecycleState"] for each in self.shown()["Instances"]}
