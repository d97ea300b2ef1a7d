"""kill -9 of the server between launch, join, placement and start: no instance, task or GPU is doubled or leaked."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from eventually import eventually
from harness import Corral, container

ROUNDS = 16
KILLS = 6
ALIVE = 4  # instances that exist at once, of one GPU each
JOIN = "#!/bin/sh\necho ECS_CLUSTER=crash >> /etc/ecs/ecs.config\n"


class Worker:
    """Launches an instance, runs a task on it and terminates an older one, again and again. It repeats calls without an answer."""

    def __init__(self, corral: Corral) -> None:
        self.corral = corral
        self.calls = 0
        self.launched: list[str] = []
        self.tasks: list[str] = []
        self.up = threading.Event()
        self.up.set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for at in range(ROUNDS):
                self._round(at)
        except BaseException as failure:
            self.failure = failure

    def _round(self, at: int) -> None:
        launch = {"ImageId": "ami-1", "InstanceType": "p3.2xlarge", "MinCount": 1, "MaxCount": 1, "ClientToken": f"launch-{at}"}
        reply = self.answer("ec2", "run_instances", **launch, UserData=JOIN)
        self.launched.append(reply["Instances"][0]["InstanceId"])
        started = self.answer(
            "ecs", "run_task", cluster="crash", taskDefinition="crash", launchType="EC2", clientToken=f"task-{at}"
        )
        assert not started["failures"], started["failures"]
        self.tasks.append(started["tasks"][0]["taskArn"])
        if at >= ALIVE:
            self.answer("ec2", "terminate_instances", InstanceIds=[self.launched[at - ALIVE]])

    def answer(self, service: str, operation: str, **params: Any) -> Any:
        while True:
            try:
                client = self.corral.client(service, connect_timeout=5, read_timeout=20)
                found = getattr(client, operation)(**params)
                self.calls += 1
                return found
            except (BotoCoreError, ClientError) as error:
                if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    raise
                self.up.wait()


def test_nothing_is_doubled_or_leaked(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("sim:8").start()
    ecs, ec2 = corral.client("ecs"), corral.client("ec2")
    ecs.create_cluster(clusterName="crash")
    ecs.register_task_definition(family="crash", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    worker = Worker(corral)
    thread = threading.Thread(target=worker.run)
    thread.start()
    rng = random.Random(7)
    for number in range(KILLS):
        enough = (number + 1) * 3 * ROUNDS // (KILLS + 1) + rng.randrange(3)
        eventually(lambda enough=enough: worker.calls >= enough or not thread.is_alive(), f"{enough} calls")
        worker.up.clear()
        corral.kill("corral.server")
        corral.start()
        worker.up.set()
    thread.join()
    assert worker.failure is None, worker.failure

    assert len(set(worker.launched)) == len(set(worker.tasks)) == ROUNDS
    ended, alive = worker.launched[:-ALIVE], worker.launched[-ALIVE:]
    eventually(lambda: states(ec2, ended) == {"terminated"}, "the terminated instances have ended")
    assert states(ec2, alive) == {"running"}
    everything = [each["InstanceId"] for found in ec2.describe_instances()["Reservations"] for each in found["Instances"]]
    assert sorted(everything) == sorted(worker.launched), "no launch was doubled"
    tasks = ecs.describe_tasks(cluster="crash", tasks=worker.tasks)["tasks"]
    running = [task for task in tasks if task["lastStatus"] != "STOPPED"]
    used = [gpu for task in running for gpu in task["containers"][0]["gpuIds"]]
    assert len(running) == len(set(used)) == ALIVE
    assert len({task["containerInstanceArn"] for task in running}) == ALIVE

    ec2.terminate_instances(InstanceIds=alive)
    eventually(lambda: states(ec2, alive) == {"terminated"}, "all instances have ended")
    whole = ec2.run_instances(ImageId="ami-1", InstanceType="p3.16xlarge", MinCount=1, MaxCount=1)["Instances"][0]
    assert whole["State"]["Name"] == "running", "all eight GPUs are free again"


def states(ec2: Any, ids: list[str]) -> set[str]:
    found = ec2.describe_instances(InstanceIds=ids)["Reservations"]
    return {each["State"]["Name"] for reservation in found for each in reservation["Instances"]}
