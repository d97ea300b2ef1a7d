"""Workers of these tests run in the test's process and find Corral in the environment, as on ECS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import Corral
from worker.queue_setup import WorkQueue


@pytest.fixture
def work(corral: Corral, monkeypatch: pytest.MonkeyPatch) -> Callable[..., WorkQueue]:
    """Makes queues for a test."""
    for name, value in corral.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("ECS_AGENT_URI", raising=False)

    def make(**options: Any) -> WorkQueue:
        return WorkQueue(corral, **options)

    return make
