"""What a task is told of the place it runs in: the variables that ECS sets and that AWS's libraries read."""

from __future__ import annotations

from corral.model.settings import Settings
from corral.model.task import Run, Task
from corral.services.sessions import address_of_run, password_of_task


def environment_inside(settings: Settings, task: Task, run: Run) -> dict[str, str]:
    """So a program that uses an AWS library needs no configuration. The addresses are served by `server/inside.py`."""
    url, address = settings.endpoint_url, address_of_run(settings.session_key, run.id)
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": task.region,
        "AWS_DEFAULT_REGION": task.region,
        "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE" if is_fargate(task) else "AWS_ECS_EC2",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v2/credentials/{task.id}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": password_of_task(settings.session_key, task.id),
        "ECS_CONTAINER_METADATA_URI": f"{url}/v3/{address}",
        "ECS_CONTAINER_METADATA_URI_V4": f"{url}/v4/{address}",
        "ECS_AGENT_URI": f"{url}/api/{address}",
    }


def is_fargate(task: Task) -> bool:
    return task.launch_type == "FARGATE"
