"""Container tasks in all network modes while the agent is killed at random moments and `docker system prune -f` runs once.

    python bench/container_crashes.py [--tasks 160] [--seed 1]

Every task must run exactly once, reach Corral and have its exit code, and no volume, network or pause container may be left. The
script prints what it found and exits with 1 if something is wrong. It starts a Docker engine of its own, which needs root.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from corral.node.docker_networks import INSIDE_SUBNET, first_route_to
from engines.dockerd import BUSYBOX, Dockerd, clear_left_behind, only_networks, why_not
from harness import Corral, eventually

MODES = ("host", "bridge", "awsvpc", "none")
KILL_PAUSE_S = (0.2, 6.0)  # the server starts the next agent after up to 5 s
ENDED_MAX_S = 300
OWN_NETWORKS = ("corral", "corral-inside")  # Corral keeps them; a prune removes them while no task runs
CALL = 10  # tasks of each mode between two pauses of the launcher
# Fetch the metadata until it works: a prune may cut the network for a moment.
SCRIPT = """
echo start >> /out/$NAME
sleep $SECONDS_LONG
until timeout 2 wget -qO /dev/null $ECS_CONTAINER_METADATA_URI_V4; do sleep 0.2; done
echo end >> /out/$NAME
exit $CODE
"""
EXPECTED = "start\nend\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--tasks", type=int, default=160)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    if reason := why_not():
        sys.exit(f"this script cannot run here: {reason}")
    with only_networks():
        clear_left_behind()
        if other := first_route_to(INSIDE_SUBNET):
            sys.exit(f"this script cannot run here: the interface {other} of another Docker engine has the subnet {INSIDE_SUBNET}")
        dockerd = Dockerd()
        try:
            with tempfile.TemporaryDirectory(prefix="corral-crashes-") as folder:
                return _run(dockerd, Path(folder), given.tasks, random.Random(given.seed))
        finally:
            dockerd.close()


def _run(dockerd: Dockerd, folder: Path, tasks: int, rng: random.Random) -> int:
    out = folder / "out"
    out.mkdir()
    corral = Corral(folder / "data", "none", "--runtime", "docker", environment={"DOCKER_HOST": dockerd.host}).start()
    try:
        ecs = corral.client("ecs")
        for mode in MODES:
            _register(ecs, mode, out)
        began_s = time.monotonic()
        over = threading.Event()
        kills: list[float] = []
        killer = threading.Thread(target=_kill, args=(corral, rng, over, kills))
        killer.start()
        try:
            arns = _launch(ecs, tasks, rng, lambda: _prune(dockerd))
            ended = _wait(ecs, arns)
        finally:
            over.set()
            killer.join()
        print(f"{tasks} tasks, {len(kills)} kills of the agent, {time.monotonic() - began_s:.0f} s")
        faults = _wrong_runs(ended, arns, out)
        print("\n".join(faults) or "every task ran once", flush=True)
        left = _leftovers(dockerd, corral)
        corral.stop()
        if eventually(lambda: not corral.processes("corral.node")) and (pauses := dockerd.containers("label=corral.pause")):
            left.append(f"{len(pauses)} pause containers are left after the server has stopped")
    finally:
        corral.clear()
    print("\n".join(left) or "no container, volume, network or connection is left")
    return 1 if faults or left else 0


def _register(ecs: Any, mode: str, out: Path) -> None:
    container = {
        "name": "main", "image": BUSYBOX, "memory": 16, "command": ["sh", "-c", SCRIPT], "stopTimeout": 2,
        "mountPoints": [
            {"sourceVolume": "out", "containerPath": "/out"},
            {"sourceVolume": "own", "containerPath": "/own"},
        ],
    }  # fmt: skip
    volumes = [{"name": "out", "host": {"sourcePath": str(out)}}, {"name": "own", "host": {}}]
    ecs.register_task_definition(family=mode, containerDefinitions=[container], networkMode=mode, volumes=volumes)


def _launch(ecs: Any, tasks: int, rng: random.Random, in_the_middle: Any) -> dict[str, int]:
    """Start the tasks. Return their ARNs with the number of each task."""
    arns: dict[str, int] = {}
    for number in range(tasks):
        mode = MODES[number % len(MODES)]
        more = {"networkConfiguration": {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}} if mode == "awsvpc" else {}
        variables = {"NAME": f"{mode}-{number}", "SECONDS_LONG": f"{rng.uniform(0, 8):.1f}", "CODE": str(number % 100)}
        environment = [{"name": name, "value": value} for name, value in variables.items()]
        overrides = {"containerOverrides": [{"name": "main", "environment": environment}]}
        [task] = eventually(lambda mode=mode, overrides=overrides, more=more: _run_task(ecs, mode, overrides, more), "RunTask", 120)
        arns[task["taskArn"]] = number
        if number % CALL == 0:
            time.sleep(rng.uniform(0, 2))
        if number == tasks // 2:
            in_the_middle()
    return arns


def _run_task(ecs: Any, mode: str, overrides: Any, more: Any) -> list[dict[str, Any]]:
    """Empty while the host is not connected or full."""
    found: list[dict[str, Any]] = ecs.run_task(taskDefinition=mode, overrides=overrides, **more)["tasks"]
    return found


def _prune(dockerd: Dockerd) -> None:
    print("docker system prune -f:", " ".join(dockerd("system", "prune", "-f").split())[-300:])


def _kill(corral: Corral, rng: random.Random, over: threading.Event, kills: list[float]) -> None:
    while not over.wait(rng.uniform(*KILL_PAUSE_S)):
        if corral.processes("corral.node"):
            kills.append(time.monotonic())
        corral.kill("corral.node")


def _wait(ecs: Any, arns: dict[str, int]) -> list[dict[str, Any]]:
    """Wait until all tasks have stopped. Exit with those that have not."""
    names, until_s = list(arns), time.monotonic() + ENDED_MAX_S
    while True:
        found = [task for at in range(0, len(names), 100) for task in ecs.describe_tasks(tasks=names[at : at + 100])["tasks"]]
        left = [task for task in found if task["lastStatus"] != "STOPPED"]
        if not left:
            return found
        if time.monotonic() > until_s:
            shown = [(arns[task["taskArn"]], task["lastStatus"], task["containers"][0].get("reason")) for task in left]
            sys.exit(f"{len(left)} tasks have not stopped: {shown[:20]}")
        time.sleep(1.0)


def _wrong_runs(ended: list[dict[str, Any]], arns: dict[str, int], out: Path) -> list[str]:
    faults, codes = [], Counter[str]()
    for task in ended:
        number = arns[task["taskArn"]]
        mode = MODES[number % len(MODES)]
        path = out / f"{mode}-{number}"
        said = path.read_text() if path.exists() else ""
        [container] = task["containers"]
        if said != EXPECTED:
            faults.append(f"task {number} ({mode}) wrote {said!r}: {container.get('exitCode')}, {task['stoppedReason']}")
        elif container.get("exitCode") == number % 100:
            codes["the right exit code"] += 1
        else:
            codes["a wrong exit code or none"] += 1
            shown = f"{container.get('exitCode')}, {container.get('reason')}"
            faults.append(f"task {number} ({mode}) ran once, but its exit code is not {number % 100}: {shown}")
    print("tasks with", ", ".join(f"{what}: {count}" for what, count in codes.items()))
    return faults


def _leftovers(dockerd: Dockerd, corral: Corral) -> list[str]:
    """Remove the ended containers, which Corral keeps for a while, and see whether the rest goes within a minute."""
    ours = f"label=corral.host={corral.host_id}"
    dockerd("container", "prune", "-f")

    def left() -> list[str]:
        networks = dockerd("network", "ls", "--format", "{{.Name}}").split()
        connected = [
            f"{name}: {given}" for name in OWN_NETWORKS if name in networks
            if (given := dockerd("network", "inspect", "--format", "{{len .Containers}}", name)) != "0"
        ]  # fmt: skip
        found = {
            "containers": dockerd.containers(ours),
            "pause containers": dockerd.containers("label=corral.pause"),
            "volumes": dockerd("volume", "ls", "-q").split(),
            "networks": [name for name in networks if name not in ("none", "host", "bridge", *OWN_NETWORKS)],
            "second networks": [name for name in OWN_NETWORKS if networks.count(name) > 1],
            "connections": connected,
        }
        return [f"{len(names)} {kind} are left: {names[:5]}" for kind, names in found.items() if names]

    until_s = time.monotonic() + 60
    while (found := left()) and time.monotonic() < until_s:
        time.sleep(0.5)
    return found


if __name__ == "__main__":
    sys.exit(main())
