"""CloudFormation stacks: a template with 500 resources is deployed, changed in one of them, and deleted.

Another client reads a small resource meanwhile: stack operations must not make others wait.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from client import Caller
from local import corral
from rows import Bench, Row, percentile

RESOURCES = 500  # the most that a template may have
DEPLOY_MAX_S = 5.0
GIVE_UP_S = 120.0
POLL_S = 0.005
OTHERS_MAX_MS = 250.0
STACK = "large"


def rows(bench: Bench) -> list[Row]:
    count = bench.size(RESOURCES, RESOURCES)
    found = []
    with corral(bench, "stacks", "none") as local:
        call = Caller(local.port)
        for what, kind in (("stored only", _stored_only), ("queues", _queues)):
            name = f"{STACK}-{what.split()[0]}"
            with _others(local.port) as waits:
                created = stack_seconds(call, "CreateStack", name, "CREATE_COMPLETE", kind(count, 30))
                updated = stack_seconds(call, "UpdateStack", name, "UPDATE_COMPLETE", kind(count, 60))
                touched = _touched(call, name)
                deleted = stack_seconds(call, "DeleteStack", name, None)
            note = f"update of one resource {updated * 1e3:.0f} ms, touched {touched}; delete {deleted:.2f} s"
            found += [
                Row(f"stack with {count} resources ({what}): create", created, "s", budget=DEPLOY_MAX_S, note=note),
                Row("  ListTasks of another client meanwhile, p99", percentile(waits, 99) * 1e3, "ms", budget=OTHERS_MAX_MS,
                    note=f"worst {max(waits) * 1e3:.1f} ms"),
            ]  # fmt: skip
        call.close()
    return found


def _stored_only(count: int, changed: int) -> str:
    """Keys of a service that Corral does not have. Each needs the key 25 places before, so 25 of them are created at a time."""
    resources = {
        f"T{at}": {
            "Type": "AWS::KMS::Key",
            "Properties": {"Description": f"{changed if at == count // 2 else 0}"},
            **({"DependsOn": f"T{at - 25}"} if at >= 25 else {}),
        }
        for at in range(count)
    }
    return json.dumps({"Resources": resources}, separators=(",", ":"))


def _queues(count: int, changed: int) -> str:
    resources = {
        f"Q{at}": {"Type": "AWS::SQS::Queue", "Properties": {"VisibilityTimeout": changed if at == count // 2 else 10}}
        for at in range(count)
    }
    return json.dumps({"Resources": resources}, separators=(",", ":"))


def stack_seconds(call: Caller, operation: str, name: str, status: str | None, body: str | None = None) -> float:
    """Send a stack operation, and return the seconds until the stack has this status, or until it is gone."""
    began = time.perf_counter()
    call("cloudformation", operation, StackName=name, **({"TemplateBody": body} if body else {}))
    deadline = began + GIVE_UP_S
    while time.perf_counter() < deadline:
        reply = call("cloudformation", "ListStacks").decode()
        found = re.search(rf"<StackName>{name}</StackName>.*?<StackStatus>(\w+)</StackStatus>", reply, re.S)
        now = found[1] if found else ""
        if now == (status or "DELETE_COMPLETE"):
            return time.perf_counter() - began
        assert "FAILED" not in now and "ROLLBACK" not in now, now
        time.sleep(POLL_S)
    raise RuntimeError(f"{operation} of {name} did not end within {GIVE_UP_S:.0f} s")


def _touched(call: Caller, name: str) -> int:
    """The number of resources with an event of the last update."""
    reply = call("cloudformation", "DescribeStackEvents", StackName=name).decode()
    events = re.findall(
        r"<LogicalResourceId>(\w+)</LogicalResourceId>.*?<ResourceStatus>UPDATE_COMPLETE</ResourceStatus>", reply, re.S
    )
    return len(set(events) - {name})


@contextmanager
def _others(port: int) -> Iterator[list[float]]:
    """Call ListTasks again and again in another thread. Yields the list of the times that it waited."""
    waits: list[float] = []
    done = threading.Event()

    def read() -> None:
        call = Caller(port)
        while not done.is_set():
            began = time.perf_counter()
            call("ecs", "ListTasks")
            waits.append(time.perf_counter() - began)
            done.wait(POLL_S)
        call.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield waits
    finally:
        done.set()
        thread.join()
