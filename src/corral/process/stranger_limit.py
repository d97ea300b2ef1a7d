"""Limits the connections that have proved nothing yet: those whose TLS handshake has not ended, or without a certificate.

If there are too many, the oldest of the client that has most of them is closed. So slow handshakes of one client do not keep out
others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial


class StrangerLimit:
    def __init__(self, most: int) -> None:
        self._most = most
        self._of_client: dict[str, dict[asyncio.Task[None], None]] = defaultdict(dict)  # oldest first

    def add(self, client: str, task: asyncio.Task[None]) -> None:
        """Count the task that serves a connection, until it ends or `forget` is called. If there are too many, cancel one."""
        self._of_client[client][task] = None
        task.add_done_callback(partial(self.forget, client))
        if sum(map(len, self._of_client.values())) > self._most:
            largest = max(self._of_client, key=lambda each: len(self._of_client[each]))
            next(iter(self._of_client[largest])).cancel()

    def forget(self, client: str, task: asyncio.Task[None]) -> None:
        """Do not count a connection as a stranger any more."""
        of_client = self._of_client.get(client, {})
        of_client.pop(task, None)
        if not of_client:
            self._of_client.pop(client, None)
