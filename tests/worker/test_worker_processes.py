"""Worker programs as processes of their own: signals, feeders in other processes, tasks, a restart of Corral."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.worker import Batch, Item, QueueWorker, WorkerError
from eventually import eventually
from harness import Corral, container, wait_stopped
from worker.queue_setup import SOURCE, WorkQueue, program

HOLDS = """
import time
from pathlib import Path
from corral.worker import QueueWorker

def predict(batch):
    Path("predicting").touch()
    while not Path("go").exists():
        time.sleep(0.01)

totals = QueueWorker({name!r}, predict, batch_max=2, prefetch=10, processes={processes}, poll_s=1, metrics=None).run()
print(totals.done, totals.failed)
"""


def ended(worker: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, errors = worker.communicate(timeout=60)
    return worker.returncode, said, errors


@pytest.mark.parametrize("processes, whole_group", [(0, False), (2, False), (2, True)])
def test_sigterm_finishes_the_batch_and_returns_the_rest_at_once(work, corral, tmp_path, processes, whole_group):
    queue = work(receives_max=5)
    queue.send(map(str, range(10)))
    worker = program(corral, tmp_path, HOLDS.format(name=queue.name, processes=processes), group=whole_group)
    try:
        eventually(lambda: (tmp_path / "predicting").exists() and queue.counts()[1] == 10, "all are prefetched")
        os.killpg(worker.pid, signal.SIGTERM) if whole_group else worker.terminate()
        visible, in_flight = eventually(lambda: (found := queue.counts())[0] > 0 and found[1] <= 2 and found, "the rest is visible")
        assert visible + in_flight == 10 and in_flight in (1, 2)
        (tmp_path / "go").touch()
        code, said, errors = ended(worker)
    finally:
        worker.kill()
    assert (code, said) == (0, f"{in_flight} 0\n"), errors
    assert queue.counts() == (10 - in_flight, 0)


def test_the_second_signal_ends_the_worker(work, corral, tmp_path):
    queue = work(receives_max=5)
    queue.send(["a", "b"])
    worker = program(corral, tmp_path, HOLDS.format(name=queue.name, processes=2))
    try:
        eventually(lambda: (tmp_path / "predicting").exists(), "predict runs")
        worker.terminate()
        worker.send_signal(signal.SIGINT)
        assert ended(worker)[0] in (-signal.SIGINT, -signal.SIGTERM)
    finally:
        worker.kill()
    eventually(lambda: queue.counts() == (2, 0), "feeders return the messages of a worker that is gone")


def test_feeders_return_the_messages_of_a_killed_worker(work, corral, tmp_path):
    queue = work(receives_max=5)
    queue.send(map(str, range(6)))
    worker = program(corral, tmp_path, HOLDS.format(name=queue.name, processes=2))
    eventually(lambda: (tmp_path / "predicting").exists() and queue.counts() == (0, 6), "all are prefetched")
    worker.kill()
    ended(worker)
    eventually(lambda: queue.counts() == (6, 0), "all are visible again")


DECODES = """
import os
from corral.worker import QueueWorker

def decode(item):
    return os.getpid(), item.objects[0].data.decode()

def predict(batch):
    for item in batch:
        print(item.data[0] != os.getpid(), item.data[1])

if __name__ == "__main__":
    QueueWorker({name!r}, predict, decode=decode, processes=2, start_method={method!r}, metrics=None).run()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_decode_in_processes(work, corral, tmp_path, method):
    queue = work()
    bucket = queue.bucket()
    for number in range(20):
        queue.s3.put_object(Bucket=bucket, Key=f"{number:02}", Body=f"bytes {number:02}".encode())
    worker = program(corral, tmp_path, DECODES.format(name=queue.name, method=method), "--once")
    code, said, errors = ended(worker)
    assert code == 0, errors
    assert sorted(said.splitlines()) == [f"True bytes {number:02}" for number in range(20)]
    assert queue.counts() == (0, 0)


def test_large_data_travels_between_processes(work):
    queue = work()
    queue.send(map(str, range(30)))

    def decode(item: Item) -> bytearray:
        return bytearray(item.body.encode() * 200_000)

    right = []

    def predict(batch: Batch) -> None:
        right.extend(item.data == item.body.encode() * 200_000 for item in batch)

    QueueWorker(queue.name, predict, decode=decode, processes=2, prefetch_bytes=1_000_000, once=True, metrics=None).run()
    assert right == [True] * 30 and queue.counts() == (0, 0)


def test_data_that_cannot_travel_fails_its_message(work, caplog):
    queue = work()
    queue.send(["good", "bad"])

    def decode(item: Item) -> object:
        return item.body if item.body == "good" else lambda: None

    seen = []
    predict = lambda batch: seen.extend(item.data for item in batch)  # noqa: E731
    QueueWorker(queue.name, predict, decode=decode, processes=1, once=True, metrics=None).run()
    assert seen == ["good"] and queue.dead_letters() == ["bad"]
    assert "decode returned a value of type function, which cannot be sent to another process" in caplog.text


def test_spawned_processes_need_a_decode_function_that_can_be_imported(work):
    with pytest.raises(WorkerError, match="decode cannot be sent to a process: define it at the top level of a module"):
        QueueWorker(work().name, print, decode=lambda item: item, processes=1, start_method="spawn", metrics=None).run()


def test_every_message_ends_once(work):
    """Failures of every kind at the same time, in three processes: each message is done once or becomes a dead letter."""
    queue, target = work(), work()
    kinds = ["good", "good", "good", "decode", "good", "raise", "good", "fail", "good", "exit"]
    bodies = [f"{kinds[number % 10]} {number}" for number in range(200)]
    queue.send(bodies)

    def decode(item: Item) -> str:
        if item.body.startswith("decode"):
            raise ValueError("for the test")
        if item.body.startswith("exit"):
            sys.exit("for the test")
        return item.body

    def predict(batch: Batch) -> list[str]:
        if any(item.data.startswith("raise") for item in batch):
            raise RuntimeError("for the test")
        for item in batch:
            if item.data.startswith("fail"):
                item.fail("for the test")
        return [item.data for item in batch]

    options = {"decode": decode, "processes": 3, "batch_max": 7, "prefetch": 40, "once": True, "metrics": None}
    totals = QueueWorker(queue.name, predict, results=target.name, **options).run()
    good = sorted(body for body in bodies if body.startswith("good"))
    found: list[str] = []
    QueueWorker(target.name, lambda batch: found.extend(item.json()["result"] for item in batch), once=True, metrics=None).run()
    assert sorted(found) == good and totals.done == len(good)
    assert queue.dead_letters() == sorted(set(bodies) - set(good)) and queue.counts() == (0, 0)


def test_a_feeder_that_dies_ends_the_worker(work):
    queue = work()
    queue.send(["a"])

    def decode(item: Item) -> None:
        os._exit(3)

    with pytest.raises(WorkerError, match="Feeder process 0 ended with exit code 3"):
        QueueWorker(queue.name, print, decode=decode, processes=1, visibility_s=5, metrics=None).run()


TASK = """
import sys
sys.path.insert(0, {source!r})
import os, time
from pathlib import Path
from corral.worker import QueueWorker

def predict(batch):
    while not Path({go!r}).exists():
        time.sleep(0.01)

QueueWorker({name!r}, predict, poll_s=1, metrics=None).run()
"""


def test_a_task_is_protected_while_it_works(work: Callable[..., WorkQueue], corral: Corral, tmp_path: Path):
    queue, ecs, go = work(), corral.client("ecs"), tmp_path / "go"
    queue.send(["a"])
    text = TASK.format(source=str(SOURCE), go=str(go), name=queue.name)
    definition = container([sys.executable, "-c", text])
    ecs.register_task_definition(family="protected", containerDefinitions=[definition])
    task = ecs.run_task(taskDefinition="protected")["tasks"][0]["taskArn"]

    def is_protected() -> bool:
        [found] = ecs.get_task_protection(cluster="default", tasks=[task])["protectedTasks"]
        return found["protectionEnabled"]

    eventually(is_protected, "the task is protected while it holds a message")
    assert queue.counts() == (0, 1)
    go.touch()
    eventually(lambda: not is_protected(), "and not afterwards")
    assert queue.counts() == (0, 0)
    ecs.stop_task(task=task)
    [stopped] = wait_stopped(ecs, [task])
    assert stopped["containers"][0]["exitCode"] == 0


def test_a_worker_survives_a_restart_of_corral(own_corral, tmp_path):
    corral = own_corral().start()
    queue = WorkQueue(corral)
    queue.send(["before"])
    text = (
        "from corral.worker import QueueWorker\n"
        f"QueueWorker({queue.name!r}, lambda batch: print(*[i.body for i in batch], flush=True), metrics=None, poll_s=1).run()"
    )
    worker = program(corral, tmp_path, text)
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "before\n"
        corral.kill("corral.server")
        corral.start()
        queue.send(["after"])
        assert worker.stdout.readline() == "after\n"
        worker.terminate()
        assert ended(worker)[0] == 0
    finally:
        worker.kill()


def test_the_worker_imports_nothing_else_of_corral():
    shown = "import sys, corral.worker; print(json.dumps([name for name in sys.modules if name.startswith('corral')]))"
    done = subprocess.run([sys.executable, "-c", f"import json; {shown}"], capture_output=True, text=True, check=True)
    assert all(name == "corral" or name.startswith("corral.worker") for name in json.loads(done.stdout))
