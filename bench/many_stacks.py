"""A data folder with 10,000 nested stacks, of a time when nested stacks had no quota: the root stack is deleted.

Four other callers send requests at a steady pace meanwhile (`attack.Load`).
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from attack import Figures, Load
from client import REGION, Caller
from local import corral
from rows import Bench, Row, percentile

from corral.model.principal import root_user
from corral.model.stack import (
    STACK_TYPE,
    ResourceStatus,
    ResourceVersion,
    Stack,
    StackCaller,
    StackResource,
    StackStatus,
    StackVersion,
)
from corral.store import Store

STACKS, BRANCHES = 10_000, 10
DELETES_MIN_PER_S = 500.0
OTHERS_MAX_MS = 50.0
GIVE_UP_S = 300.0
BEFORE_S = 5.0
ACCOUNT = "123456789012"
ROOT = "bomb"


def rows(bench: Bench) -> list[Row]:
    count = bench.size(STACKS, 1_000)
    with corral(bench, "many-stacks", "none") as local:
        local.stop()
        fill(local.data / "state.db", count)
        local.launch()
        local.wait_ready()
        call, load = Caller(local.port), Load(local)
        try:
            before = load.during(BEFORE_S).times_s
            load.figures = Figures()
            began = time.perf_counter()
            call("cloudformation", "DeleteStack", StackName=ROOT)
            while left := stacks_left(local.data / "state.db"):
                if time.perf_counter() > began + GIVE_UP_S:
                    raise RuntimeError(f"{left} stacks are left after {GIVE_UP_S:.0f} s")
                time.sleep(0.2)
            took_s = time.perf_counter() - began
        finally:
            load.stop()
            call.close()
        others = load.figures.times_s
        worst = f"worst {max(others) * 1e3:.0f} ms of {len(others)} requests; {len(load.figures.failures)} failed"
    return [
        Row(f"delete {count} nested stacks", count / took_s, "stacks/s", budget=DELETES_MIN_PER_S),
        Row(
            "  requests of other callers meanwhile, p99",
            percentile(others, 99) * 1e3,
            "ms",
            percentile(before, 99) * 1e3,
            "before",
            OTHERS_MAX_MS,
            worst,
        ),
    ]


def fill(path: Path, count: int) -> None:
    """Write the rows of `count` complete stacks into a state.db that no server uses. Each has up to BRANCHES nested stacks."""
    store, now_s = Store(path), time.time()
    caller = StackCaller(ACCOUNT, REGION, root_user(ACCOUNT))
    arns = [f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{ROOT}{f'-{at}' if at else ''}/{at}" for at in range(count)]
    nested = f"{{Type: {STACK_TYPE}, Properties: {{TemplateURL: http://localhost:4566/none/none}}}}"
    branches = ", ".join(f"N{at}: {nested}" for at in range(BRANCHES))
    template = f"Resources: {{{branches}}}"
    store.begin()
    for at, arn in enumerate(arns):
        parent = arns[(at - 1) // BRANCHES] if at else ""
        name = f"{ROOT}-{at}" if at else ROOT
        store.stacks.put(
            Stack(
                arn, REGION, name, StackStatus.CREATE_COMPLETE, caller, StackVersion(1), now_s, caller.principal.owner,
                parent_id=parent, root_id=arns[0] if at else "",
            )
        )  # fmt: skip
        store.stacks.put_template(arn, 1, template, "{}")
        if parent:
            version = ResourceVersion(STACK_TYPE, {"TemplateURL": "http://localhost:4566/none/none"}, physical_id=arn)
            row = StackResource(parent, f"N{(at - 1) % BRANCHES}", ResourceStatus.CREATE_COMPLETE, version, now_s, operation=1)
            store.stacks.put_resource(row)
    store.commit()
    store.close()


def stacks_left(path: Path) -> int:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        found: int = connection.execute("SELECT count(*) FROM stack WHERE deleted_at IS NULL").fetchone()[0]
    return found
