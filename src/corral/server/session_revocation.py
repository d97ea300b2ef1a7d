"""Revocation of sessions: the page `/_corral/revoke`, which `corral revoke` calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any

import orjson
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.model.session import SessionValidity
from corral.server.authentication import Authentication
from corral.server.task_permissions import RequiredOperation

AccessDenied = api_error("AccessDenied", 403)
InvalidRequest = api_error("InvalidRequest", 400)
MethodNotAllowed = api_error("MethodNotAllowed", 405)
TaskNotFound = api_error("TaskNotFound", 404)

USAGE = 'Send {"all": true}, or {"task": ID} with the 32 hexadecimal digits of a running task.'


class SessionRevocation:
    """Revokes sessions: first on disk, then in memory."""

    def __init__(self, validity: SessionValidity, live_tasks: Container[str], save: Callable[[dict[str, Any]], None]) -> None:
        """`save` writes the given members into sessions.json."""
        self._validity = validity
        self._live_tasks = live_tasks
        self._save = save
        self._lock = asyncio.Lock()  # two requests must not overwrite each other's members

    def exchange(self, request: aws.Request, request_id: str) -> RevokeRequest:
        return RevokeRequest(request, request_id, self)

    async def revoke_all(self) -> None:
        """End all sessions. A running task can request new credentials."""
        async with self._lock:
            generation = self._validity.generation + 1
            await asyncio.to_thread(self._save, {"generation": generation})
            self._validity.generation = generation

    async def revoke_task(self, task_id: str) -> None:
        """End the sessions of a task. The task gets no new credentials."""
        if task_id not in self._live_tasks:
            raise TaskNotFound(f"No task {task_id} is running. The sessions of a task end when the task stops.")
        async with self._lock:
            tasks = {each for each in self._validity.revoked_tasks if each in self._live_tasks} | {task_id}
            await asyncio.to_thread(self._save, {"revokedTasks": sorted(tasks)})
            self._validity.revoked_tasks = tasks


class RevokeRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    revocation: SessionRevocation
    action: str = "corral:Revoke"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", "Revoke", dict)

    def denied(self, message: str) -> ApiError:
        return AccessDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        if not caller.is_root:
            raise AccessDenied("Sessions cannot revoke sessions: sign the request with the root key (`corral env`).")
        if self.request.method != "POST":
            raise MethodNotAllowed(f"{self.request.method} is not served here; use POST.")
        try:
            wanted = orjson.loads(self.request.body)
        except ValueError:
            wanted = None
        if wanted == {"all": True}:
            await self.revocation.revoke_all()
        elif isinstance(wanted, dict) and wanted.keys() == {"task"} and isinstance(wanted["task"], str):
            await self.revocation.revoke_task(wanted["task"])
        else:
            raise InvalidRequest(USAGE)
        return aws.Response(200, [("content-type", "application/json")], orjson.dumps(wanted))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)
