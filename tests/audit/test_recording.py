"""A call whose record cannot be made: the caller gets its response, and the loss is reported."""

from __future__ import annotations

from pathlib import Path
from random import Random

from corral import aws
from corral.access.caller import Caller
from corral.audit.trail import AuditTrail, records_back
from corral.core.clock import WallClock
from corral.core.errors import api_error
from corral.core.ids import SeededIds
from corral.model.principal import root_user
from corral.server.audit.recording import Audit

ACCOUNT = "123456789012"
REQUEST = aws.Request("POST", "/", "", {"user-agent": "test"}, b"")
CALLER = Caller(ACCOUNT, "us-east-1", root_user(ACCOUNT))


def test_a_call_that_no_model_has_is_answered_and_reported(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path)
    audit = Audit(trail, (), SeededIds(Random(0)), WallClock())
    audit.succeeded(REQUEST, CALLER, ("ecs", "StopTask"), {"task": "a"}, {})
    assert trail.problems() == []
    audit.succeeded(REQUEST, CALLER, ("ecs", "NotInTheModel"), {}, {})
    audit.failed(REQUEST, CALLER, ("ecs", "NotInTheModel"), {}, api_error("AccessDenied", 403)("no"))
    [problem] = trail.problems()
    assert "2 records are lost" in problem["problem"]
    [(_, record)] = records_back(tmp_path, 0.0, 1e11, None)
    assert (record.operation, record.params) == ("StopTask", {"task": "a"})
