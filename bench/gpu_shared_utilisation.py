"""On a machine with an NVIDIA GPU: two tasks share a GPU, one computes and one is idle. Each has a utilization of its own.

    python bench/gpu_shared_utilisation.py [SECONDS]

1. It reads the metric DCGM_FI_DEV_GPU_UTIL of both tasks and of the GPU from CloudWatch's API, and `nvidia-smi pmon`.
2. A service of tasks that share the GPU, and that all compute, has a target tracking policy on its GPU utilization with a target of
   75% and a maximum of 8 tasks. Two tasks have half of the GPU each, so the policy must stop at two.

If the driver does not report the load of single processes, it prints the reason of the agent, and checks that the tasks have no
such metric, and that the policy adds no task. Exit code 0 only if all of it held. The load is a kernel that CUDA's driver compiles:
no PyTorch is necessary. Without a GPU, Corral simulates one, and the load is a busy CPU core.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from harness import Corral, container, eventually

KERNEL = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .u64 %rd<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [cycles];
    mov.u64 %rd2, %clock64;
again:
    mov.u64 %rd3, %clock64;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, %rd1;
    @%p1 bra again;
    ret;
}
"""
# Creates a CUDA context with some memory. Then it keeps all multiprocessors busy, or sleeps.
PROGRAM = f"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{{name}}: error {{code}}"
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(512 * 2**20))
module, kernel, cycles = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(10_000_000)
call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p({KERNEL!r}.encode()))
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
print("READY", flush=True)
while sys.argv[1] == "busy":
    call("cuLaunchKernel", kernel, 264, 1, 1, 256, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")
time.sleep(100_000)
"""
STAND_IN = "import sys, time\nwhile sys.argv[1] == 'busy': pass\ntime.sleep(100_000)"
METRIC = "DCGM_FI_DEV_GPU_UTIL"
SHARES = [{"type": "GPU", "sharingStrategy": {"nvidiaMps": {"memory": 4096}}}]
MISSING = "tasks that share a GPU have no utilization of their own: "


def main() -> None:
    seconds, real = int(sys.argv[1]) if len(sys.argv) > 1 else 20, shutil.which("nvidia-smi") is not None
    if not real:
        print("no nvidia-smi: Corral simulates a GPU")
    with tempfile.TemporaryDirectory() as folder:
        corral = Corral(Path(folder) / "data", "auto" if real else "sim:1").start()
        try:
            check_tasks(corral, seconds, real)
            check_service(corral, seconds, real)
        finally:
            corral.clear()
    print("all of it held")


def define(corral: Corral, kind: str, real: bool) -> None:
    program = container(["python3", "-c", PROGRAM if real else STAND_IN, kind], log_prefix=kind) | {"resourceRequirements": SHARES}
    corral.client("ecs").register_task_definition(family=kind, containerDefinitions=[program])


def check_tasks(corral: Corral, seconds: int, real: bool) -> None:
    ecs = corral.client("ecs")
    tasks = {}
    for kind in ("busy", "idle"):
        define(corral, kind, real)
        tasks[kind] = ecs.run_task(taskDefinition=kind)["tasks"][0]
    [gpu_id] = tasks["busy"]["containers"][0]["gpuIds"]
    assert tasks["idle"]["containers"][0]["gpuIds"] == [gpu_id], "both tasks have the same GPU"
    device = {"UUID": gpu_id, "Hostname": host_name(corral)}
    eventually(lambda: (last(corral, "Corral/GPU", device) or 0.0) > 50, "the GPU is busy", 60)
    began = datetime.now(UTC)
    if real:
        shown = subprocess.run(["nvidia-smi", "pmon", "-c", "2"], capture_output=True, text=True)
        print(f"nvidia-smi pmon (exit status {shown.returncode}):\n{shown.stdout}{shown.stderr}")
    time.sleep(seconds)
    of_gpu = average(corral, "Corral/GPU", device, began)
    found = {kind: average(corral, "Corral/GPU", of_task(task), began) for kind, task in tasks.items()}
    print(f"average utilization of {seconds} s: GPU {of_gpu}, busy task {found['busy']}, idle task {found['idle']}")
    if found["busy"] is None or found["idle"] is None:
        assert found == {"busy": None, "idle": None} and missing_parts(corral), "no task has a utilization, and the agent says why"
        print(f"the agent says: {MISSING}{missing_parts(corral)}")
    else:
        assert found["busy"] > 50 and found["idle"] < 5, "each task has its own part"
    for task in tasks.values():
        ecs.stop_task(task=task["taskArn"])
    eventually(lambda: not ecs.list_tasks()["taskArns"], "both tasks have stopped", 60)


def check_service(corral: Corral, seconds: int, real: bool) -> None:
    """All tasks compute. The utilization of the whole GPU is 100% with any number of tasks."""
    ecs, scaling = corral.client("ecs"), corral.client("application-autoscaling")
    place = {"ServiceNamespace": "ecs", "ResourceId": "service/default/shared", "ScalableDimension": "ecs:service:DesiredCount"}
    ecs.create_service(serviceName="shared", taskDefinition="busy", desiredCount=2)
    scaling.register_scalable_target(**place, MinCapacity=1, MaxCapacity=8)
    dimensions = {"ClusterName": "default", "ServiceName": "shared"}
    metric = {"Namespace": "ECS/ContainerInsights/Prometheus", "MetricName": METRIC, "Statistic": "Average"}
    scaling.put_scaling_policy(
        **place, PolicyName="gpu", PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={
            "TargetValue": 75.0, "ScaleOutCooldown": 5,
            "CustomizedMetricSpecification": metric | {"Dimensions": pairs(dimensions)},
        },
    )  # fmt: skip
    largest, end_s = 0, time.monotonic() + 3 * seconds
    while time.monotonic() < end_s:
        [service] = ecs.describe_services(services=["shared"])["services"]
        largest = max(largest, service["desiredCount"])
        time.sleep(1)
    value = last(corral, metric["Namespace"], dimensions)
    print(f"after {3 * seconds} s: {service['desiredCount']} tasks, at most {largest}; the metric of the service is {value}")
    assert largest == 2, "two tasks have half of the GPU each, which is below the target"
    ecs.delete_service(service="shared", force=True)


def missing_parts(corral: Corral) -> str:
    text = (corral.data / "node" / "agent.log").read_text(errors="replace")
    return text.rpartition(MISSING)[2].splitlines()[0] if MISSING in text else ""


def host_name(corral: Corral) -> str:
    named = corral.client("cloudwatch").list_metrics(Namespace="Corral/GPU", Dimensions=[{"Name": "UUID"}])["Metrics"]
    while not named:
        time.sleep(0.5)
        named = corral.client("cloudwatch").list_metrics(Namespace="Corral/GPU", Dimensions=[{"Name": "UUID"}])["Metrics"]
    return str(next(each["Value"] for each in named[0]["Dimensions"] if each["Name"] == "Hostname"))


def of_task(task: Any) -> dict[str, str]:
    return {"ClusterName": "default", "TaskId": task["taskArn"].rpartition("/")[2]}


def pairs(dimensions: dict[str, str]) -> list[dict[str, str]]:
    return [{"Name": name, "Value": value} for name, value in dimensions.items()]


def values(corral: Corral, namespace: str, dimensions: dict[str, str], began: datetime) -> list[float]:
    found = corral.client("cloudwatch").get_metric_statistics(
        Namespace=namespace, MetricName=METRIC, Dimensions=pairs(dimensions), Period=1, Statistics=["Average"],
        StartTime=began, EndTime=datetime.now(UTC),
    )["Datapoints"]  # fmt: skip
    return [each["Average"] for each in sorted(found, key=lambda each: each["Timestamp"])]


def average(corral: Corral, namespace: str, dimensions: dict[str, str], began: datetime) -> float | None:
    found = values(corral, namespace, dimensions, began)
    return round(sum(found) / len(found), 1) if found else None


def last(corral: Corral, namespace: str, dimensions: dict[str, str]) -> float | None:
    found = values(corral, namespace, dimensions, datetime.fromtimestamp(time.time() - 30, UTC))
    return found[-1] if found else None


if __name__ == "__main__":
    main()
