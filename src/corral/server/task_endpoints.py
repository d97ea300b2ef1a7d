"""The endpoints that containers call without a signature: credentials of the role, metadata, and task protection.

Their URLs are in the environment of the container (`services/ecs/run_spec.py`). The credentials endpoint also requires the token of
the task. The URLs of the other endpoints contain a secret. All endpoints of a task stop working when the task ends.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.blobs import Blobs
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.fleet.spot_interruptions import notice_of
from corral.model.instance import Instance
from corral.model.json_documents import read_json
from corral.model.shipped_folder import PATH
from corral.model.task import Task
from corral.server.agents.connections import Agents
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.services.ecs import shipped_folders, task_metadata, task_protection
from corral.services.ecs.errors import InvalidParameterException, TaskNotFound
from corral.store import Store

_CREDENTIALS = re.compile(r"/v2/credentials/([0-9a-f]{32})")
_SHIPPED = re.compile(rf"{PATH}([0-9a-f]{{32}})/([0-9a-f]{{64}})")
_METADATA = re.compile(r"/v[34]/(([0-9a-f]{32})-[0-9a-f]{32})((?:/.*)?)")
_PROTECTION = re.compile(r"/api/(([0-9a-f]{32})-[0-9a-f]{32})/task-protection/v1/state")
_PAGES = frozenset({"", "/task", "/taskWithTags", "/stats", "/task/stats"})
_SPOT_PAGES = {"/latest/meta-data/spot/instance-action": "", "/latest/meta-data/spot/termination-time": "time"}

NO_CREDENTIALS = "the task has stopped, or `corral revoke` ended its credentials"

# The codes for credentials are those of the ECS agent. The other endpoints use similar codes.
NotFound = api_error("NotFound", 404)
InvalidIdInRequest = api_error("InvalidIdInRequest", 400)
Unauthorized = api_error("Unauthorized", 401)
Forbidden = api_error("Forbidden", 403)
MethodNotAllowed = api_error("MethodNotAllowed", 405)
StatsUnavailable = api_error("StatsUnavailable", 503)


class TaskEndpoints:
    def __init__(self, state: Lane[Store], agents: Agents, blobs: Blobs) -> None:
        self.state = state
        self.blobs = blobs
        self.agents = agents

    def exchange(self, request: aws.Request) -> CredentialsRequest | MetadataRequest | ProtectionRequest | None:
        """Return the request object for the endpoint at this path. Return None if there is no such endpoint."""
        if match := _CREDENTIALS.fullmatch(request.path):
            return CredentialsRequest(request, match[1], self)
        if match := _SHIPPED.fullmatch(request.path):
            return ShippedRequest(request, match[1], self, key=match[2])
        if match := _METADATA.fullmatch(request.path):
            return MetadataRequest(request, match[1], match[2], match[3].rstrip("/"), self)
        if match := _PROTECTION.fullmatch(request.path):
            return ProtectionRequest(request, match[1], match[2], self)
        return None


class TaskExchange(Struct, eq=False):
    """A request of a container about its own task. Such a request needs no permission."""

    def required(self, caller: Caller) -> None:
        return None

    def denied(self, message: str) -> ApiError:
        return Forbidden(message)


class CredentialsRequest(TaskExchange, eq=False):
    request: aws.Request
    task_id: str
    endpoints: TaskEndpoints
    action: str = "ecs:GetTaskCredentials"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        token = self.request.headers.get("authorization")
        if token is None:
            raise Unauthorized("Send the value of AWS_CONTAINER_AUTHORIZATION_TOKEN as the Authorization header.")
        identity = authentication.task_token(self.task_id, token)
        if identity is None:
            raise Forbidden("The Authorization header is not the AWS_CONTAINER_AUTHORIZATION_TOKEN of this task.")
        return identity

    async def run(self, caller: Caller) -> aws.Response:
        _must_be_get(self.request)
        found = await self.endpoints.state.submit(partial(task_metadata.task_credentials, task_id=self.task_id))
        if found is None:
            raise InvalidIdInRequest(f"CredentialsV2Request: Credentials not found: {NO_CREDENTIALS}.")
        role_arn, credentials = found
        expires = datetime.fromtimestamp(credentials.session.expires_at_s, UTC)
        return _json(
            {
                "RoleArn": role_arn,
                "AccessKeyId": credentials.session.access_key_id,
                "SecretAccessKey": credentials.secret_key,
                "Token": credentials.token,
                "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )

    def refuse(self, error: ApiError) -> aws.Response:
        return _refusal(error)


class ShippedRequest(CredentialsRequest, eq=False, kw_only=True):
    """A request for a part of the folder that `corral run --ship` has sent."""

    key: str
    action: str = "ecs:GetShippedFolder"

    async def run(self, caller: Caller) -> aws.Response:
        _must_be_get(self.request)
        slices = await self.endpoints.state.submit(partial(shipped_folders.slices, task_id=self.task_id, key=self.key))
        blobs = self.endpoints.blobs
        try:
            with blobs.reading([each.blob for each in slices]):
                content = await asyncio.to_thread(blobs.read, slices)
        except FileNotFoundError:
            raise NotFound(shipped_folders.GONE) from None
        return aws.Response(200, [("content-type", "application/octet-stream")], content)


class MetadataRequest(TaskExchange, eq=False):
    request: aws.Request
    address: str
    run_id: str
    page: str
    endpoints: TaskEndpoints
    action: str = "ecs:GetTaskMetadata"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        identity = authentication.container_address(self.run_id, self.address)
        if identity is None:
            raise NotFound(f"There is nothing at {self.request.path}.")
        return identity

    async def run(self, caller: Caller) -> aws.Response:
        _must_be_get(self.request)
        page = self.page
        if page not in _PAGES and page not in _SPOT_PAGES:
            raise NotFound(f"There is nothing at {self.request.path}.")
        if page in _SPOT_PAGES:
            return await self._spot_notice(_SPOT_PAGES[page])
        if page.endswith("/stats"):
            return _json(await self._stats(whole_task=page == "/task/stats"))
        document = partial(task_metadata.task_metadata, tags=page == "/taskWithTags") if page else task_metadata.container_metadata
        found: dict[str, Any] | None = await self.endpoints.state.submit(partial(document, run_id=self.run_id))
        if found is None:
            raise NotFound("The task of this container has stopped.")
        return _json(found)

    def refuse(self, error: ApiError) -> aws.Response:
        return _refusal(error)

    async def _spot_notice(self, member: str) -> aws.Response:
        """Return the notice that the spot instance of the task will be interrupted, as EC2's instance metadata does.

        If `member` is not empty, return only this member of the notice. Raise NotFound if there is no notice.
        """
        run_id = self.run_id

        def load(tx: Tx[Store]) -> dict[str, str] | None:
            task = task_metadata.unstopped_task(tx, run_id)
            instance = tx.store.instances.get(task.instance_id) if task is not None and task.instance_id is not None else None
            return notice_of(tx, instance) if instance is not None else None

        notice: dict[str, str] | None = await self.endpoints.state.submit(load)
        if notice is None:
            raise NotFound("The instance of this task has no notice of a spot interruption.")
        return aws.Response(200, [("content-type", "text/plain")], notice[member].encode()) if member else _json(notice)

    async def _stats(self, *, whole_task: bool) -> dict[str, Any]:
        run_id = self.run_id

        def load(tx: Tx[Store]) -> tuple[Task, Instance] | None:
            task = task_metadata.unstopped_task(tx, run_id)
            instance = tx.store.instances.get(task.instance_id) if task is not None and task.instance_id is not None else None
            return (task, instance) if task is not None and instance is not None else None

        found: tuple[Task, Instance] | None = await self.endpoints.state.submit(load)
        if found is None:
            raise NotFound("The task of this container has stopped.")
        task, instance = found
        runs = [run for run in task.runs if whole_task or run.id == run_id]
        measured = await self.endpoints.agents.measure(str(instance.host_id), [run.attempt_id for run in runs])
        if measured is None:
            raise StatsUnavailable("The agent of this host does not respond; try again.")
        stats = {run.id: task_metadata.docker_stats(run, measured, instance) for run in runs}
        if whole_task:
            return stats
        if (of_run := stats[run_id]) is None:
            raise StatsUnavailable("This container has no running process.")
        return of_run


class ProtectionRequest(TaskExchange, eq=False):
    request: aws.Request
    address: str
    run_id: str
    endpoints: TaskEndpoints
    action: str = "ecs:UpdateTaskProtection"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        identity = authentication.container_address(self.run_id, self.address)
        if identity is None:
            raise TaskNotFound(task_protection.NO_TASK)
        return identity

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method not in ("GET", "PUT"):
            raise MethodNotAllowed(f"{self.request.method} is not served here; use GET or PUT.")
        change = _object(self.request.body) if self.request.method == "PUT" else None
        command = partial(task_protection.agent_task_protection, run_id=self.run_id, change=change)
        return _json(await self.endpoints.state.submit(command))

    def refuse(self, error: ApiError) -> aws.Response:
        return _json({"error": {"Code": error.code, "Message": error.message}}, error.status)


def _must_be_get(request: aws.Request) -> None:
    if request.method != "GET":
        raise MethodNotAllowed(f"{request.method} is not served here; use GET.")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = read_json(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidParameterException(task_protection.NOT_DECODED)
    return value


def _json(value: dict[str, Any], status: int = 200) -> aws.Response:
    return aws.Response(status, [("content-type", "application/json")], orjson.dumps(value))


def _refusal(error: ApiError) -> aws.Response:
    """Return an error response in the format of the ECS agent."""
    return _json({"code": error.code, "message": error.message, "HTTPErrorCode": error.status}, error.status)
