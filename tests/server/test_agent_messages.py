"""The messages between core and agent: what one side encodes, the other decodes to the same value; invalid messages are refused."""

from __future__ import annotations

import msgspec
import pytest

from corral.model.agent_protocol import (
    Ack,
    Declined,
    Execute,
    GpuFaultOrder,
    Hello,
    LogChunk,
    Measure,
    Measured,
    Orders,
    Report,
    SignalOrder,
    ToAgent,
    ToCore,
)
from corral.model.gpu import GpuDevice
from corral.model.gpu_metrics import GpuSample
from corral.model.run import HealthCheck, Observed, RunPause, RunSpec, Usage
from corral.server.agents.host_scope import checked

GPU = GpuDevice("GPU-1", 0, "NVIDIA H200", 143_771, simulated=True)
SPEC = RunSpec(
    "run.1", "task", "main", "busybox", ["sh", "-c", "é\u2028\x00"], {"A": "", "B": "1"}, ["GPU-1"],
    health=HealthCheck(["true"], interval_s=1.5), settings={"container": {"cpu": 1, "links": None}}, ships_logs=True,
)  # fmt: skip
ENDED = Observed("run.1", 7, 1_700_000_000.123456, 1_700_000_001.0, 137, "killed", "UNHEALTHY", about={"imageDigest": "sha256:0"})
USAGE = Usage(1.0, 0.5, 0.25, 9.0, 1 << 40, 3, 0, 12)


@pytest.mark.parametrize(
    "message",
    [
        {"hello": Hello("h", "b", "name", 2048, 512, [GPU], [ENDED], links=[[0]], foreign={"GPU-1": [(12, "python")]},
                        faults={"GPU-1": "Xid 79"})},
        {"report": Report([ENDED, Observed("other")], [LogChunk("run.1", 0, 9, [(1_700_000_000_000, "a line")])],
                          [GpuSample("GPU-1", 12.5, 100, None, 40.0, [(12, "python")], 1980)], faults={"GPU-1": "Xid 79"})},
        {"report": Report()},
        {"measured": Measured(3, {"run.1": USAGE}, {})},
        {"declined": Declined("session", "why")},
        {"accounts": {"ann": 1000}},
    ],
    ids=lambda message: next(iter(message)),
)  # fmt: skip
def test_to_the_core(message):
    assert msgspec.json.decode(msgspec.json.encode(message), type=ToCore) == ToCore(**message)


@pytest.mark.parametrize(
    "message",
    [
        {"welcome": {}},
        {"ack": Ack({"run.1": 9})},
        {"orders": Orders([SPEC], ["run.2"], [SPEC])},
        {"measure": Measure(3, ["run.1"])},
        {"execute": Execute("session", SPEC, ["sh"], has_terminal=True)},
        {"gpu_fault": GpuFaultOrder("GPU-1", 79)},
        {"signal": SignalOrder(["run.1", "run.2"], "SIGINT")},
        {"accounts": ["ann", "bob"]},
        {"quit": "why"},
    ],
    ids=lambda message: next(iter(message)),
)
def test_to_an_agent(message):
    assert msgspec.json.decode(msgspec.json.encode(message), type=ToAgent) == ToAgent(**message)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b'{"report": []}', b'{"report": {"runs": [{"pid": 1}]}}', b'{"report": {"runs": [{"run_id": "a", "pid": "1"}]}}',
     b'{"hello": {}}', b'{"report": {"logs": [{"run_id": "a", "start": 0, "end": 1, "events": [[1]]}]}}', b'{"report": {}'],
)  # fmt: skip
def test_what_is_not_a_message(line):
    with pytest.raises(ValueError):
        msgspec.json.decode(line, type=ToCore)


def test_facts_about_containers_have_the_types_of_responses():
    """A response with other types would fail, with all other tasks in it."""
    known = {"runtimeId": "a", "networkBindings": [{"hostPort": 1, "protocol": "tcp"}], "pullStartedAt": 1.5}
    assert checked(Observed("run", about={**known, "unknown": 1})) == Observed("run", about=known)
    for about in ({"networkBindings": "x"}, {"networkBindings": [1]}, {"imageDigest": {}}, {"pullStoppedAt": "a"}):
        assert checked(Observed("run", about=about)) == Observed("run")
    assert len(checked(Observed("run", reason="r" * 100_000)).reason) == 4096
    wrong = (RunPause(3, True, "w" * 100_000, 2**80, 1e308), RunPause(3, True, "", -(2**80), -1e308))
    high, low = (checked(Observed("run", pause=each)).pause for each in wrong)
    assert (len(high.why_not), high.moved_bytes, high.took_s) == (4096, 2**50, 86_400.0)
    assert low == RunPause(3, True, "", 0, 0.0)
