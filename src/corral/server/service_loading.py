"""Loads the models and the modules of services in a thread when a request needs them first.

Loading takes up to 200 ms of CPU time. On the event loop, all other requests would wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from corral import aws
from corral.aws.catalogue import SERVICE_BY_NAME
from corral.operations.services import SERVICES

TARGETS_MAX = 1_000


class ServiceLoader:
    def __init__(self) -> None:
        self._models, self._handlers = FirstUse(aws.load_model), FirstUse(SERVICES.get)
        self._targets: set[str] = set()  # values of X-Amz-Target of services whose models are loaded

    def has_model(self, request: aws.Request) -> bool:
        """Whether the model of the service that the head of a request names is loaded. False also means that it is not known."""
        return request.headers.get("x-amz-target") in self._targets

    async def load_model(self, request: aws.Request) -> None:
        """Load the model of the service that the head of a request names."""
        target = request.headers.get("x-amz-target")
        service = aws.service_of(request)
        if service is not None:
            await self.load_service(service)
        if target is not None and service is not None and len(self._targets) < TARGETS_MAX:
            self._targets.add(target)

    async def load_service(self, service: str) -> None:
        """Load the model of a service that Corral serves. Other names are ignored."""
        if service not in self._models.done and service in SERVICE_BY_NAME:
            await self._models.load(service)

    def has_handlers(self, action: str) -> bool:
        """Whether the handlers of the service of an action are loaded."""
        return action.partition(":")[0] in self._handlers.done

    async def load_handlers(self, action: str) -> None:
        """Load the handlers of the service of an action, for example `ecs:RunTask`. Call this only for verified requests."""
        if not self.has_handlers(action):
            await self._handlers.load(action.partition(":")[0])


class FirstUse:
    """Calls a slow function once for each name, in a thread."""

    def __init__(self, function: Callable[[str], object]) -> None:
        self.done: set[str] = set()
        self._function = function
        self._running: dict[str, asyncio.Future[None]] = {}

    async def load(self, name: str) -> None:
        """Call the function, or wait for the call that another request has begun. It goes on if the client disconnects."""
        if name not in self._running:
            self._running[name] = asyncio.ensure_future(self._call(name))
        await asyncio.shield(self._running[name])

    async def _call(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._function, name)
            self.done.add(name)
        finally:
            del self._running[name]
