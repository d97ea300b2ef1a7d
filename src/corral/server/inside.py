"""What the inside of a task may ask for without a signature: its credentials, and what it may know of itself.

The addresses are in the task's environment (`services/ecs/inside.py`). Credentials want the task's password beside; the rest is
found only by who knows the address, which nobody can guess. All of it ends with the task.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from hmac import compare_digest
from typing import Any

import orjson

from corral import aws
from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.model.instance import Instance
from corral.model.settings import Settings
from corral.model.task import Task
from corral.server.agents import Agents
from corral.server.lanes import Lane
from corral.services import sessions
from corral.services.ecs import agent_api, metadata
from corral.services.ecs.naming import InvalidParameterException
from corral.store import Store

_CREDENTIALS = re.compile(r"/v2/credentials/([0-9a-f]{32})")
_METADATA = re.compile(r"/v[34]/(([0-9a-f]{32})-[0-9a-f]{32})((?:/.*)?)")
_PROTECTION = re.compile(r"/api/(([0-9a-f]{32})-[0-9a-f]{32})/task-protection/v1/state")
_PAGES = frozenset({"", "/task", "/taskWithTags", "/stats", "/task/stats"})

# The agent's codes for credentials; the others are of the same kind.
NotFound = api_error("NotFound", 404)
InvalidIdInRequest = api_error("InvalidIdInRequest", 400)
Unauthorized = api_error("Unauthorized", 401)
Forbidden = api_error("Forbidden", 403)
MethodNotAllowed = api_error("MethodNotAllowed", 405)
StatsUnavailable = api_error("StatsUnavailable", 503)


class Inside:
    def __init__(self, settings: Settings, state: Lane[Store], agents: Agents) -> None:
        self._key = settings.session_key
        self._state = state
        self._agents = agents

    async def answer(self, request: aws.Request) -> aws.Response | None:
        """None: this is not a page of ours."""
        try:
            if match := _CREDENTIALS.fullmatch(request.path):
                return _json(await self._credentials(request, match[1]))
            if match := _METADATA.fullmatch(request.path):
                return _json(await self._metadata(request, *match.groups()))
            if match := _PROTECTION.fullmatch(request.path):
                return await self._protection(request, match[1], match[2])
        except ApiError as error:
            return _refusal(error)
        return None

    async def _credentials(self, request: aws.Request, task_id: str) -> dict[str, str]:
        _must_be_get(request)
        given = request.headers.get("authorization")
        if given is None:
            raise Unauthorized("Send the value of AWS_CONTAINER_AUTHORIZATION_TOKEN as the Authorization header.")
        password = sessions.password_of_task(self._key, task_id)
        if not compare_digest(given.encode("utf-8", "replace"), password.encode()):
            raise Forbidden("The Authorization header is not the AWS_CONTAINER_AUTHORIZATION_TOKEN of this task.")
        found = await self._state.submit(partial(metadata.credentials_inside, task_id=task_id))
        if found is None:
            raise InvalidIdInRequest("CredentialsV2Request: Credentials not found: the task has stopped.")
        role_arn, credentials = found
        expires = datetime.fromtimestamp(credentials.session.expires_at_s, UTC)
        return {
            "RoleArn": role_arn,
            "AccessKeyId": credentials.session.access_key_id,
            "SecretAccessKey": credentials.secret_key,
            "Token": credentials.token,
            "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    async def _protection(self, request: aws.Request, address: str, run_id: str) -> aws.Response:
        """Errors stand inside the answer here, as the agent has it."""
        try:
            if request.method not in ("GET", "PUT"):
                raise MethodNotAllowed(f"{request.method} is not served here; use GET or PUT.")
            if not compare_digest(address, sessions.address_of_run(self._key, run_id)):
                raise agent_api.ResourceNotFoundException("Failed to find a task for the request")
            wanted = _object(request.body) if request.method == "PUT" else None
            return _json(await self._state.submit(partial(agent_api.protection_inside, run_id=run_id, wanted=wanted)))
        except ApiError as error:
            return _json({"error": {"Code": error.code, "Message": error.message}}, error.status)

    async def _metadata(self, request: aws.Request, address: str, run_id: str, page: str) -> dict[str, Any]:
        _must_be_get(request)
        page = page.rstrip("/")
        if not compare_digest(address, sessions.address_of_run(self._key, run_id)) or page not in _PAGES:
            raise NotFound(f"There is nothing at {request.path}.")
        if page.endswith("/stats"):
            return await self._stats(run_id, whole_task=page == "/task/stats")
        document = partial(metadata.task_metadata, tags=page == "/taskWithTags") if page else metadata.container_metadata
        found: dict[str, Any] | None = await self._state.submit(partial(document, run_id=run_id))
        if found is None:
            raise NotFound("The task of this container has stopped.")
        return found

    async def _stats(self, run_id: str, *, whole_task: bool) -> dict[str, Any]:
        def look(tx: Tx[Store]) -> tuple[Task, Instance] | None:
            task = metadata.task_inside(tx, run_id)
            instance = tx.store.instances.get(task.instance_id) if task is not None and task.instance_id is not None else None
            return (task, instance) if task is not None and instance is not None else None

        found: tuple[Task, Instance] | None = await self._state.submit(look)
        if found is None:
            raise NotFound("The task of this container has stopped.")
        task, instance = found
        runs = [run for run in task.runs if whole_task or run.id == run_id]
        measured = await self._agents.measure(str(instance.host_id), [run.attempt_id for run in runs])
        if measured is None:
            raise StatsUnavailable("The agent of this host does not answer; try again.")
        stats = {run.id: metadata.stats(run, measured, instance) for run in runs}
        if whole_task:
            return stats
        if (of_run := stats[run_id]) is None:
            raise StatsUnavailable("Nothing of this container runs now.")
        return of_run


def _must_be_get(request: aws.Request) -> None:
    if request.method != "GET":
        raise MethodNotAllowed(f"{request.method} is not served here; use GET.")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidParameterException("UpdateTaskProtection: failed to decode request")
    return value


def _json(value: dict[str, Any], status: int = 200) -> aws.Response:
    return aws.Response(status, [("content-type", "application/json")], orjson.dumps(value))


def _refusal(error: ApiError) -> aws.Response:
    """In the shape of ECS's agent."""
    return _json({"code": error.code, "message": error.message, "HTTPErrorCode": error.status}, error.status)
