"""Run containers as users do: register a task definition, call RunTask, then read DescribeTasks and the log."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3

from engines.dockerd import BUSYBOX, SYSTEM, SYSTEM_VOLUMES
from harness import Corral, eventually, wait_stopped


def shell(script: str, **more: Any) -> dict[str, Any]:
    """A container of busybox."""
    return {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script], "memory": 64, "stopTimeout": 0, **more}


def python(script: str, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A container that runs this Python with its libraries, and the volumes that it needs."""
    libraries = str(Path(boto3.__file__).parent.parent)
    seen = [*SYSTEM_VOLUMES, libraries, *([] if sys.base_prefix.startswith("/usr") else [sys.base_prefix])]
    volumes = [{"name": f"v{at}", "host": {"sourcePath": path}} for at, path in enumerate(seen)]
    container = {
        "name": "main",
        "image": SYSTEM,
        "command": [os.path.realpath(sys.executable), "-c", script],
        "environment": [{"name": "PYTHONPATH", "value": libraries}],
        "memory": 256,
        "mountPoints": [{"sourceVolume": f"v{at}", "containerPath": path, "readOnly": True} for at, path in enumerate(seen)],
    }
    return {**container, **more}, volumes


class Containers:
    def __init__(self, corral: Corral) -> None:
        self.ecs = corral.client("ecs")
        self.logs = corral.client("logs")

    def start(self, *containers: dict[str, Any], count: int = 1, **task: Any) -> list[str]:
        """The ARNs of tasks with these containers; each has a log stream."""
        request = {key: task.pop(key) for key in ("networkConfiguration", "overrides", "enableExecuteCommand") if key in task}
        family = f"t{uuid4().hex[:12]}"
        logging = {
            "logDriver": "awslogs",
            "options": {"awslogs-group": "/tests", "awslogs-create-group": "true", "awslogs-stream-prefix": "t"},
        }
        given = [{"logConfiguration": logging, **container} for container in containers]
        self.ecs.register_task_definition(family=family, containerDefinitions=given, **task)
        reply = self.ecs.run_task(taskDefinition=family, count=count, **request)
        assert not reply["failures"], reply["failures"]
        return [task["taskArn"] for task in reply["tasks"]]

    def __call__(self, *containers: dict[str, Any], **task: Any) -> dict[str, Any]:
        """Run one task, wait until it has stopped, and return it."""
        [stopped] = wait_stopped(self.ecs, self.start(*containers, **task))
        return stopped

    def show(self, arn: str) -> dict[str, Any]:
        [task] = self.ecs.describe_tasks(tasks=[arn])["tasks"]
        return task

    def until(self, arn: str, state: str = "RUNNING") -> dict[str, Any]:
        def reached() -> Any:
            task = self.show(arn)
            assert state == "STOPPED" or task["lastStatus"] != "STOPPED", (task["stoppedReason"], task["containers"])
            return task if task["lastStatus"] == state else None

        return eventually(reached, state)

    def stop(self, arn: str) -> dict[str, Any]:
        self.ecs.stop_task(task=arn)
        return self.until(arn, "STOPPED")

    def printed(self, task: dict[str, Any] | str, container: str = "main") -> list[str]:
        """The lines of a task's log stream."""
        task_id = (task if isinstance(task, str) else task["taskArn"]).rpartition("/")[2]
        pages = self.logs.get_paginator("filter_log_events").paginate(
            logGroupName="/tests", logStreamNames=[f"t/{container}/{task_id}"]
        )
        return [event["message"] for page in pages for event in page["events"]]
