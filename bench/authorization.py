"""What it costs to authorise a request: CPU time of the check before the handler, for users with ten policies each.

The check runs on the event loop, so the time is that of this thread. There are 1,000 users, who share nothing: 10,000 policies.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import Bench, Row

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.model.principal import iam_user, root_user
from corral.model.settings import Settings
from corral.model.task import Demand, Task, TaskState
from corral.server.authorization import Authorizer, RequiredOperation
from corral.store import Store

ACCOUNT, REGION = "123456789012", "us-east-1"
POLICIES = 10
CALLERS = 10  # the users that repeat requests
BUDGET_US = 30.0
ROUNDS = 5
OWN = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}
REQUESTS = {
    "ecs:DescribeTasks": ("ecs", "DescribeTasks", {"tasks": ["0" * 32]}),
    "ecs:StopTask of its own task": ("ecs", "StopTask", {"task": f"{'0' * 31}{{}}"}),
    "sqs:SendMessage to its own queue": ("sqs", "SendMessage", {"QueueUrl": f"{ACCOUNT}/jobs-{{}}", "MessageBody": "x"}),
    "s3:GetObject": ("s3", "GetObject", {"Bucket": "data", "Key": "a/b"}),
    "batch:DescribeJobQueues": ("batch", "DescribeJobQueues", {}),
}


class Reads:
    """The methods of a lane that the check calls."""

    def __init__(self, store: Store) -> None:
        self._store = store.reader()

    def read_without_snapshot(self, handler: Callable[[Tx[Store]], Any], settings: Settings, ids: RandomIds) -> Any:
        return handler(Tx(self._store, time.time(), ids, settings, final=False))


class Request:
    """A request of each user, whose parameters are parsed."""

    def __init__(self, service: str, operation: str, params: dict[str, Any]) -> None:
        each = {f"user{at}": {name: _of_user(value, at) for name, value in params.items()} for at in range(CALLERS)}
        self._required = {name: RequiredOperation(service, operation, given) for name, given in each.items()}
        self._of_others = RequiredOperation(service, operation, params)

    def required(self, caller: Caller) -> RequiredOperation:
        return self._required.get(caller.principal.name, self._of_others)

    def denied(self, message: str) -> ApiError:
        raise AssertionError(message)


def _of_user(value: Any, number: int) -> Any:
    return value.replace("{}", str(number)) if isinstance(value, str) else value


def rows(bench: Bench) -> list[Row]:
    users = bench.size(1_000, 100)
    store = _store(bench.folder / "authorization.db", users)
    authorizer = Authorizer(Reads(store), Settings(), RandomIds())  # type: ignore[arg-type]
    callers = [Caller(ACCOUNT, REGION, iam_user(ACCOUNT, f"user{number}"), source_ip="10.0.0.7") for number in range(users)]
    found = [_first(authorizer, callers)]
    for name, given in REQUESTS.items():
        cost = min(_cost_us(authorizer, callers[:CALLERS], Request(*given), bench.size(20_000, 2_000)) for _ in range(ROUNDS))
        found.append(Row(f"authorise {name}, a user with {POLICIES} policies", cost, "µs", budget=BUDGET_US))
    root = Caller(ACCOUNT, REGION, root_user(ACCOUNT))
    found.append(Row("decide that the root user needs no policy", min(_root_us(root) for _ in range(ROUNDS)), "µs"))
    store.close()
    return found


def _first(authorizer: Authorizer, callers: list[Caller]) -> Row:
    """The first request of each user reads and parses its policies."""
    request = Request(*REQUESTS["batch:DescribeJobQueues"])
    before_mib, began_s = _resident_mib(), time.thread_time()
    asyncio.run(_check(authorizer, callers, request, 1))
    took_us = 1e6 * (time.thread_time() - began_s) / len(callers)
    note = f"{_resident_mib() - before_mib:.0f} MiB for all of them"
    return Row(f"first request of each of {len(callers):,} users with {POLICIES} policies", took_us, "µs", note=note)


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _cost_us(authorizer: Authorizer, callers: list[Caller], request: Request, count: int) -> float:
    began_s = time.thread_time()
    asyncio.run(_check(authorizer, callers, request, count // len(callers)))
    return 1e6 * (time.thread_time() - began_s) / count


async def _check(authorizer: Authorizer, callers: list[Caller], request: Request, rounds: int) -> None:
    for _ in range(rounds):
        for caller in callers:
            await authorizer.check(caller, request)


def _root_us(root: Caller, count: int = 100_000) -> float:
    began_s = time.thread_time()
    for _ in range(count):
        assert not root.is_restricted
    return 1e6 * (time.thread_time() - began_s) / count


def _store(path: Path, users: int) -> Store:
    store = Store(path)
    store.begin()
    for number in range(users):
        name = f"user{number}"
        arns = [_policy(store, name, index) for index in range(POLICIES)]
        user = {"UserName": name, "UserId": f"AIDA{number:016}", "Arn": f"arn:aws:iam::{ACCOUNT}:user/{name}", "Path": "/"}
        store.stored.add("iam", "user", "", name, {**user, "_inline": {}, "_attached": arns, "_groups": []}, 0.0, "root")
    store.buckets.add("data", REGION, 0.0, "root")
    for number in range(CALLERS):
        details = {"tags": [{"key": "team", "value": "a"}]}
        store.tasks.add(
            Task(f"{'0' * 31}{number}", REGION, "default", "d", "hosts:default", TaskState.PROVISIONING, TaskState.RUNNING,
                 Demand(1, 0, 0), 0.0, details=details, owner=f"user/user{number}")
        )  # fmt: skip
        store.queues.add_queue(REGION, f"jobs-{number}", {"VisibilityTimeout": "30"}, {"team": "a"}, 0, f"user/user{number}")
    store.commit()
    return store


def _policy(store: Store, user: str, index: int) -> str:
    """Store one of the policies of a user: what a lab would write, with statements that do not concern the request."""
    service = ("ecs", "batch", "logs", "s3", "sqs", "ssm", "ecr", "cloudwatch", "sns", "lambda")[index % POLICIES]
    statements = [
        {"Effect": "Allow", "Action": [f"{service}:Describe*", f"{service}:List*", f"{service}:Get*"], "Resource": "*"},
        {"Effect": "Allow", "Action": f"{service}:*", "Resource": "*", "Condition": OWN},
        {"Effect": "Allow", "Action": f"{service}:*", "Resource": f"arn:aws:{service}:*:*:{user}-*"},
        {
            "Effect": "Deny",
            "Action": f"{service}:Delete*",
            "Resource": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "maybe"}},
        },
    ]
    name = f"{user}-{service}"
    arn = f"arn:aws:iam::{ACCOUNT}:policy/{name}"
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})
    store.stored.add(
        "iam", "policy", "", name, {"Arn": arn, "DefaultVersionId": "v1", "_versions": {"v1": {"document": text}}}, 0.0
    )
    return arn
