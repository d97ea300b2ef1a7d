"""Task protection: when a service scales in or deploys, ECS does not stop the task of a worker that holds messages.

The worker calls the API of the ECS agent at ECS_AGENT_URI, which ECS and Corral set in every task.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request

from .errors import LOG

EXPIRES_MINUTES = 10
RENEW_S = EXPIRES_MINUTES * 60 / 2
LINGER_S = 1.0  # how long the protection stays after the last message, because each change is a request to ECS
RETRY_S = 60.0
REQUEST_MAX_S = 10.0


class WorkerProtection:
    """Protects the task of this process between `set_busy(True)` and `set_busy(False)`. It does nothing outside a task."""

    def __init__(self) -> None:
        agent = os.environ.get("ECS_AGENT_URI")
        self._url = f"{agent}/task-protection/v1/state" if agent else None
        self._changed = threading.Condition()
        self._is_busy = self._is_protected = self._is_closed = False
        self._idle_since_s = time.monotonic()
        self._next_s = 0.0  # when to renew the protection, or to retry
        self._thread = threading.Thread(target=self._run, name="worker-protection", daemon=True)

    def start(self) -> None:
        if self._url:
            self._thread.start()

    def set_busy(self, is_busy: bool) -> None:
        with self._changed:
            if self._is_busy and not is_busy:
                self._idle_since_s = time.monotonic()
            self._is_busy = is_busy
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._url:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (wanted := self._wanted()) is None:
                    if self._is_closed:
                        return
                    self._changed.wait(self._pause_s())
            self._put(wanted)
            if self._is_closed and not wanted:
                return

    def _wanted(self) -> bool | None:
        """Return True to begin or renew the protection, False to end it, and None if nothing has to change."""
        now_s = time.monotonic()
        if self._is_closed:
            return False if self._is_protected else None
        if self._is_busy:
            return True if now_s >= self._next_s else None
        return False if self._is_protected and now_s >= self._idle_since_s + LINGER_S else None

    def _pause_s(self) -> float | None:
        now_s = time.monotonic()
        if self._is_busy:
            return max(0.0, self._next_s - now_s)
        return max(0.0, self._idle_since_s + LINGER_S - now_s) if self._is_protected else None

    def _put(self, is_enabled: bool) -> None:
        assert self._url is not None
        wanted = {"ProtectionEnabled": True, "ExpiresInMinutes": EXPIRES_MINUTES} if is_enabled else {"ProtectionEnabled": False}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps(wanted).encode(), headers, method="PUT")
        refusal = ""
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_MAX_S) as answer:
                said = json.loads(answer.read())
            if "protection" not in said:
                refusal = json.dumps(said)
        except urllib.error.HTTPError as error:
            refusal = f"{error}: {error.read(1000).decode(errors='replace')}"
        except (OSError, ValueError) as error:
            refusal = str(error)
        if refusal:
            LOG.warning("task protection was not %s: %s", "set" if is_enabled else "ended", refusal)
        # If a renewal fails, the earlier protection still exists, and the worker must end it later.
        self._is_protected = is_enabled and (self._is_protected or not refusal)
        self._next_s = 0.0 if not is_enabled else time.monotonic() + (RETRY_S if refusal else RENEW_S)
