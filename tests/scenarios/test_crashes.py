"""kill -9 of server, agent and spawner in random order, under load: nothing acknowledged is lost, nothing happens twice.

The load is tasks, logs, Batch arrays, services, stacks, functions and SNS (`crash_load.py`). CORRAL_KILLS=500 is a long run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from corral.node.spawner_recovery import EXIT_STATUS_LOST, MAY_HAVE_RUN, NEVER_STARTED
from harness import Corral, container, eventually, wait_stopped
from scenarios.crash_load import KINDS, OtherServices

KILLS = int(os.environ.get("CORRAL_KILLS", "6"))
CALLS = 50 * KILLS
SERVER, AGENT, SPAWNER = "corral.server", "corral.node", "corral.node.spawner"
VICTIMS = [(SERVER,), (AGENT,), (SPAWNER,), (SERVER, AGENT), (AGENT, SPAWNER), (SERVER, AGENT, SPAWNER)]  # in turn
THREADS = 6
GPUS = 4

# What each task does: takes a lock that only the holder of its GPU may have, says that it started, writes its log.
SCRIPT = """
exec 9>"$SHARED/gpu-$CUDA_VISIBLE_DEVICES"
flock -n 9 || echo "$CORRAL_TEST_NAME" >> "$SHARED/doubled"
echo started >> "$SHARED/starts/$CORRAL_TEST_NAME"
for i in 1 2 3 4 5; do echo "line $i of $CORRAL_TEST_NAME"; done
sleep $NAP
echo "end of $CORRAL_TEST_NAME"
exit $CODE
"""


@dataclass
class Ledger:
    """What was acknowledged, and what may or may not have happened."""

    run: dict[str, str] = field(default_factory=dict)  # task ARN → name
    stopped: set[str] = field(default_factory=set)
    logged: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Load:
    def __init__(self, corral: Corral, shared: Path) -> None:
        self.corral = corral
        self.shared = shared
        self.ledger = Ledger()
        self.done = 0
        self.up = threading.Event()
        self.up.set()
        self._local = threading.local()
        self.others = OtherServices(self.client, shared)

    def client(self, service: str):
        clients = self._local.__dict__
        if service not in clients:
            clients[service] = self.corral.client(service, connect_timeout=5, read_timeout=20)
        return clients[service]

    def call(self, number: int) -> None:
        kind = random.Random(number).choices(["run", "stop", "log", *KINDS], [50, 10, 40, *KINDS.values()])[0]
        while not self._answered(kind, number):
            self.up.wait()
            if kind != "run":
                break  # it may have happened or not; a run is sent again with its token, which makes twice once
        with self.ledger.lock:
            self.done += 1

    def _answered(self, kind: str, number: int) -> bool:
        try:
            getattr(self.others if kind in KINDS else self, kind)(number)
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise  # a refusal is an answer, and there is no reason for one
            return False
        return True

    def run(self, number: int) -> None:
        name = f"task-{number}"
        environment = {
            "CORRAL_TEST_NAME": name, "CODE": str(number % 100), "NAP": str(random.Random(number).choice([0, 0, 0.05, 0.3])),
            "SHARED": str(self.shared),
        }  # fmt: skip
        override = {"name": "main", "environment": [{"name": key, "value": value} for key, value in environment.items()]}
        answer = self.client("ecs").run_task(taskDefinition="crash", clientToken=name, overrides={"containerOverrides": [override]})
        assert answer.get("failures") == [], answer
        with self.ledger.lock:
            self.ledger.run[answer["tasks"][0]["taskArn"]] = name

    def stop(self, number: int) -> None:
        with self.ledger.lock:
            arns = sorted(self.ledger.run)
        if arns:
            arn = random.Random(number).choice(arns)
            with self.ledger.lock:
                self.ledger.stopped.add(arn)  # asked for: it may now end early
            self.client("ecs").stop_task(task=arn)

    def log(self, number: int) -> None:
        text = f"event {number}"
        event = {"timestamp": int(time.time() * 1000), "message": text}
        self.client("logs").put_log_events(logGroupName="/own", logStreamName="own", logEvents=[event])
        with self.ledger.lock:
            self.ledger.logged.add(text)


@pytest.mark.timeout(600 + 5 * KILLS)
def test_kill_minus_nine_under_load(own_corral, tmp_path):
    shared = tmp_path / "shared"
    (shared / "starts").mkdir(parents=True)
    corral = own_corral(f"sim:{GPUS}").start()
    corral.client("ecs").register_task_definition(
        family="crash", containerDefinitions=[container(["sh", "-c", SCRIPT], 1, "crash", stopTimeout=2)]
    )
    corral.client("logs").create_log_group(logGroupName="/own")
    corral.client("logs").create_log_stream(logGroupName="/own", logStreamName="own")
    load, order = Load(corral, shared), random.Random(KILLS).sample(VICTIMS, len(VICTIMS))
    load.others.prepare()
    with ThreadPoolExecutor(THREADS) as pool:
        calls = [pool.submit(load.call, number) for number in range(CALLS)]
        for kill in range(KILLS):
            eventually(lambda kill=kill: load.done >= CALLS * (kill + 0.5) / KILLS, "calls go on", 60)
            victims = order[kill % len(order)]
            if SERVER in victims:
                load.up.clear()
            corral.kill(*victims)
            if SERVER in victims:
                corral.start()
                load.up.set()
        for call in calls:
            call.result()

    ecs, logs, ledger = corral.client("ecs"), corral.client("logs"), load.ledger
    assert len(ledger.run) > CALLS / 3 and ledger.stopped and len(ledger.logged) > CALLS / 4, "the load must have been one"
    tasks = wait_stopped(ecs, sorted(ledger.run), within_s=120 + 3 * KILLS)  # the four GPUs must serve all tasks that still wait
    check_tasks(tasks, ledger, shared, logs)
    check_own_events(logs, ledger)
    assert len(tasks) == len(set(ledger.run.values())), "a token was taken twice"
    started = {path.name for path in (shared / "starts").iterdir()}
    assert started <= set(ledger.run.values()), "a task ran that no response names"
    load.others.check(120 + 3 * KILLS)
    assert not (shared / "doubled").exists(), f"a GPU was promised twice: {(shared / 'doubled').read_text()}"
    [instance] = ecs.describe_container_instances(containerInstances=ecs.list_container_instances()["containerInstanceArns"])[
        "containerInstances"
    ]
    assert all(gpu["sharingMode"] == "IDLE" for gpu in instance["gpuDevices"])


def check_tasks(tasks, ledger: Ledger, shared: Path, logs) -> None:
    for task in tasks:
        name = ledger.run[task["taskArn"]]
        starts = shared / "starts" / name
        started = starts.read_text().count("started") if starts.exists() else 0
        assert started <= 1, f"{name} was started {started} times"
        [main] = task["containers"]
        if task["taskArn"] in ledger.stopped and task["stopCode"] == "UserInitiated":
            assert main.get("exitCode") in (None, 143, 137, int(name[5:]) % 100)
            continue
        if main.get("reason") == NEVER_STARTED:
            assert started == 0, f"{name} ran, and is reported as never started"
            continue
        if main.get("reason") == MAY_HAVE_RUN:
            continue  # the spawner died between the start of the process and the note of it
        assert started == 1, f"{name} was lost: {task['stoppedReason']} {main.get('reason')}"
        if main.get("reason") != EXIT_STATUS_LOST:
            assert main.get("exitCode") == int(name[5:]) % 100, f"{name}: {task}"
        stream = f"crash/main/{task['taskArn'].rpartition('/')[2]}"
        events = logs.get_log_events(logGroupName="/tests", logStreamName=stream, startFromHead=True)["events"]
        lines = [f"line {at} of {name}" for at in range(1, 6)] + [f"end of {name}"]
        assert [event["message"] for event in events] == lines, f"{name}: {task}"


def check_own_events(logs, ledger: Ledger) -> None:
    events, token = [], {}
    while True:
        page = logs.get_log_events(logGroupName="/own", logStreamName="own", startFromHead=True, **token)
        events += [event["message"] for event in page["events"]]
        if token == {"nextToken": page["nextForwardToken"]}:
            break
        token = {"nextToken": page["nextForwardToken"]}
    doubled = [text for text, count in Counter(events).items() if count > 1]
    assert ledger.logged <= set(events) and not doubled
