"""On a machine with an NVIDIA GPU: what only a real one can show. Needs PyTorch on the PATH's python3.

    python bench/gpu.py

NVML names the real UUID and how far the GPUs are from each other; a task with one GPU sees exactly that device, one with ALL
sees every one, and one without sees none; with every GPU held a further task waits and says why; a GPU on which a program outside
Corral computes is left alone while it does; a GPU program runs at its bare speed. Exit code 0 only if all of it held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from harness import Corral, container, eventually, wait_stopped

SEES = """
import json, torch
ids = [f"GPU-{torch.cuda.get_device_properties(at).uuid}" for at in range(torch.cuda.device_count())]
print("SEES " + json.dumps(ids))
"""
# Matrix products timed by the GPU's own clock, after a warm-up.
WORKS = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
for _ in range(20): a @ a
torch.cuda.synchronize()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
for _ in range(300): a @ a
end.record()
torch.cuda.synchronize()
print("TOOK", begin.elapsed_time(end))
"""
BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True: a @ a; torch.cuda.synchronize()
"""


def main() -> None:
    real = real_gpus()
    print(f"nvidia-smi shows {real}")
    with tempfile.TemporaryDirectory() as folder:
        corral = Corral(Path(folder) / "data", "auto").start()
        try:
            check(corral, real)
        finally:
            corral.clear()
    print("all of it held")


def check(corral: Corral, real: list[str]) -> None:
    ecs = corral.client("ecs")
    [instance] = ecs.describe_container_instances(containerInstances=ecs.list_container_instances()["containerInstanceArns"])[
        "containerInstances"
    ]
    shown = [gpu["gpuId"] for gpu in instance["gpuDevices"]]
    assert sorted(shown) == sorted(real), f"Corral shows {shown}"
    print(f"Corral shows {shown}: {[gpu['totalMemoryInMiB'] for gpu in instance['gpuDevices']]} MiB")

    gpu_ids, output = run(corral, "sees", ["python3", "-c", SEES], 1)
    seen = json.loads(next(line for line in output if line.startswith("SEES "))[5:])
    assert seen == gpu_ids, f"leased {gpu_ids}, saw {seen}"
    print(f"a task with one GPU was given {gpu_ids} and CUDA sees {seen}")
    _, output = run(corral, "blind", ["python3", "-c", SEES], 0)
    assert json.loads(next(line for line in output if line.startswith("SEES "))[5:]) == []
    print("a task without one sees none")
    gpu_ids, output = run(corral, "everything", ["python3", "-c", SEES], "ALL")
    assert json.loads(next(line for line in output if line.startswith("SEES "))[5:]) == gpu_ids
    assert sorted(gpu_ids) == sorted(real)
    print(f"a task with ALL sees {len(gpu_ids)}")

    check_topology(corral, len(real))
    check_waiting(corral, len(real))
    check_others(corral, len(real))
    check_load_is_shown(corral)
    check_speed(corral)


def check_waiting(corral: Corral, gpus: int) -> None:
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="holds", containerDefinitions=[container(["sleep", "600"], gpus)])
    ecs.register_task_definition(family="follows", containerDefinitions=[container(["true"], 1)])
    holder = ecs.run_task(taskDefinition="holds")["tasks"][0]
    [failure] = ecs.run_task(taskDefinition="follows", launchType="EC2")["failures"]
    assert failure["reason"] == "RESOURCE:GPU"
    waiting = ecs.run_task(taskDefinition="follows")["tasks"][0]
    assert waiting["lastStatus"] == "PROVISIONING"
    print(f"a second task waits: {waiting['containers'][0]['reason']}")
    ecs.stop_task(task=holder["taskArn"])
    [done] = wait_stopped(ecs, [waiting["taskArn"]])
    assert done["containers"][0]["exitCode"] == 0 and done["containers"][0]["gpuIds"]
    print("and runs when the first has ended")


def check_topology(corral: Corral, gpus: int) -> None:
    """The links between the GPUs by NVML, and as nvidia-smi draws them."""
    links = host(corral)["links"]
    print(f"distances: {links}")
    print(subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True).stdout)
    if gpus > 2:
        assert links is not None and all(row[at] == 0 for at, row in enumerate(links))
        assert all(links[at][other] == links[other][at] > 0 for at in range(gpus) for other in range(gpus) if at != other)


def check_others(corral: Corral, count: int) -> None:
    """A program outside Corral computes on the first GPU: it is named, nothing is placed there, and then it goes."""
    ecs = corral.client("ecs")
    first = min(gpus(corral), key=lambda gpu: gpu["index"])
    other = subprocess.Popen(["python3", "-c", BUSY], env={**os.environ, "CUDA_VISIBLE_DEVICES": first["id"]})
    try:
        shown = eventually(lambda: next(g for g in gpus(corral) if g["id"] == first["id"])["foreign"], "it is seen", 60)
        print(f"a program of process {other.pid} computes on {first['id']}: shown as {shown}")
        assert [each["pid"] for each in shown] == [other.pid] or shown[0]["name"] == "?"  # in a container pids may differ
        ecs.register_task_definition(family="rest", containerDefinitions=[container(["true"], count)])
        [failure] = ecs.run_task(taskDefinition="rest", launchType="EC2")["failures"]
        assert failure["reason"] == "RESOURCE:GPU"
        waiting = ecs.run_task(taskDefinition="rest")["tasks"][0]
        print(f"a task that needs it waits: {waiting['containers'][0]['reason']}")
        assert "1 GPU is withheld: process" in waiting["containers"][0]["reason"]
    finally:
        other.kill()
        other.wait()
    [done] = wait_stopped(ecs, [waiting["taskArn"]])
    assert first["id"] in done["containers"][0]["gpuIds"]
    print("and runs when the other has gone")


def check_load_is_shown(corral: Corral) -> None:
    """NVML's utilisation reaches the status page."""
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="busy", containerDefinitions=[container(["python3", "-c", BUSY], 1, stopTimeout=2)])
    task = ecs.run_task(taskDefinition="busy")["tasks"][0]
    [gpu_id] = task["containers"][0]["gpuIds"]
    shown = eventually(lambda: next((g for g in gpus(corral) if g["id"] == gpu_id and (g["utilizationPercent"] or 0) > 50), None),
                       "a busy GPU is shown busy", 60)  # fmt: skip
    figures = ("utilizationPercent", "memoryUsedMiB", "powerW", "temperatureC")
    print("a busy GPU: " + ", ".join(f"{key} {shown[key]}" for key in figures))
    ecs.stop_task(task=task["taskArn"])
    wait_stopped(ecs, [task["taskArn"]])


def check_speed(corral: Corral) -> None:
    bare, under = [], []
    for _ in range(3):
        done = subprocess.run(["python3", "-c", WORKS], capture_output=True, text=True, check=True)
        bare.append(took(done.stdout.splitlines()))
        under.append(took(run(corral, "works", ["python3", "-c", WORKS], 1)[1]))
    ratio = min(bare) / min(under)
    print(f"300 matrix products: {min(bare):.1f} ms bare, {min(under):.1f} ms under Corral; {ratio:.4f} of the bare speed")
    assert ratio > 0.98


def took(lines: list[str]) -> float:
    return float(next(line for line in lines if line.startswith("TOOK")).split()[1])


def run(corral: Corral, family: str, command: list[str], gpus: int | str) -> tuple[list[str], list[str]]:
    """Run one task to its end; the GPUs it was given and what it wrote."""
    ecs, logs = corral.client("ecs"), corral.client("logs")
    ecs.register_task_definition(family=family, containerDefinitions=[container(command, gpus, family)])  # type: ignore[arg-type]
    task = ecs.run_task(taskDefinition=family)["tasks"][0]
    [done] = wait_stopped(ecs, [task["taskArn"]], within_s=120)
    stream = f"{family}/main/{task['taskArn'].rpartition('/')[2]}"
    page = logs.get_log_events(logGroupName="/tests", logStreamName=stream, startFromHead=True)
    output = [event["message"] for event in page["events"]]
    assert done["containers"][0]["exitCode"] == 0, output
    return done["containers"][0].get("gpuIds", []), output


def gpus(corral: Corral) -> list[dict[str, Any]]:
    return host(corral)["gpus"]


def host(corral: Corral) -> dict[str, Any]:
    return corral.own("DescribeHosts")["hosts"][0]


def real_gpus() -> list[str]:
    listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


if __name__ == "__main__":
    main()
