"""A call whose record cannot be made: the caller gets its response, and the loss is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from msgspec.structs import replace

from corral import aws
from corral.access.caller import Caller
from corral.audit.trail import AuditTrail, records_back
from corral.core.clock import WallClock
from corral.core.errors import api_error
from corral.core.ids import SeededIds
from corral.model.principal import iam_user, root_user
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


def test_denials_of_another_key_and_of_another_machine_are_recorded_separately(tmp_path: Path) -> None:
    """Otherwise a thief of a key would be hidden behind the denials of its owner."""
    audit, denied = Audit(AuditTrail(tmp_path), (), SeededIds(Random(0)), WallClock()), api_error("AccessDenied", 403)("no")
    ann = Caller(ACCOUNT, "us-east-1", iam_user(ACCOUNT, "ann"))
    places = [("AKIA1", "10.0.0.1"), ("AKIA1", "10.0.0.2"), ("AKIA2", "10.0.0.2")]

    async def deny() -> None:
        for key, address in 3 * places:
            audit.failed(REQUEST, replace(ann, access_key_id=key, source_ip=address), ("ecs", "StopTask"), {"task": "a"}, denied)
        audit.close()

    asyncio.run(deny())
    found = [(record.access_key_id, record.source, record.repeats) for _, record in records_back(tmp_path, 0.0, 1e11, None)]
    assert sorted(found) == sorted((*place, repeats) for place in places for repeats in (0, 2))
