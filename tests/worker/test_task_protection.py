"""The requests that WorkerProtection sends to the ECS agent."""

from __future__ import annotations

import io
import json
import threading
from typing import Any
from urllib.request import Request

import pytest

from corral.worker import task_protection
from corral.worker.task_protection import WorkerProtection

ANSWER_MAX_S = 10.0


def test_a_protection_ends_although_its_renewal_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[bool] = []
    renewed = threading.Event()

    def answer(request: Request, timeout: float) -> io.BytesIO:
        assert isinstance(request.data, bytes)
        body: dict[str, Any] = json.loads(request.data)
        wanted.append(body["ProtectionEnabled"])
        if len(wanted) == 2:
            renewed.set()
            raise OSError("the agent does not respond")
        return io.BytesIO(b'{"protection": {}}')

    monkeypatch.setenv("ECS_AGENT_URI", "http://agent")
    monkeypatch.setattr(task_protection, "RENEW_S", 0.0)
    monkeypatch.setattr("urllib.request.urlopen", answer)
    protection = WorkerProtection()
    protection.start()
    protection.set_busy(True)
    assert renewed.wait(ANSWER_MAX_S)
    protection.close()
    assert wanted == [True, True, False]
