"""On a machine with an NVIDIA GPU: Corral's GPU metrics and nvidia-smi, while a matrix product runs in a task of a service.

    python bench/gpu_metrics.py [SECONDS]

Every second, it reads nvidia-smi and the page /metrics. At the end it reads the same time from CloudWatch's API, by the name of the
service, and prints the medians and their differences. Exit code 0 only if utilisation, memory, power, temperature and clock agree,
and the GPU counts as healthy. The task uses PyTorch of the PATH's python3. Without PyTorch, it is a stand-in that keeps a CPU core
busy, and without a GPU, Corral simulates one: both are said, and then nothing is compared with nvidia-smi.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from harness import Corral, container, eventually

MATRIX_PRODUCT = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True: a @ a; torch.cuda.synchronize()
"""
STAND_IN = "while True: pass"
NAMESPACE = "ECS/ContainerInsights/Prometheus"
SERVICE, FAMILY = "matmul", "matrix-product"
# (nvidia-smi's name, DCGM's name, the largest difference of medians, and the largest relative difference)
COMPARED = (
    ("utilization.gpu", "DCGM_FI_DEV_GPU_UTIL", 5.0, 0.05),
    ("memory.used", "DCGM_FI_DEV_FB_USED", 2.0, 0.01),
    ("power.draw", "DCGM_FI_DEV_POWER_USAGE", 15.0, 0.05),
    ("temperature.gpu", "DCGM_FI_DEV_GPU_TEMP", 2.0, 0.05),
    ("clocks.sm", "DCGM_FI_DEV_SM_CLOCK", 60.0, 0.05),
)
SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
Rows = dict[str, list[float]]  # name → one value per second


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    real = shutil.which("nvidia-smi") is not None
    torch = (
        real
        and subprocess.run(["python3", "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True).returncode == 0
    )
    if not real:
        print("no nvidia-smi: Corral simulates a GPU, and nothing is compared with a real one")
    elif not torch:
        print("no PyTorch: a stand-in keeps a CPU core busy, and the GPU idles")
    with tempfile.TemporaryDirectory() as folder:
        corral = Corral(Path(folder) / "data", "auto" if real else "sim:1").start()
        try:
            agree = compare(corral, seconds, MATRIX_PRODUCT if torch else STAND_IN, busy=torch, real=real)
        finally:
            corral.clear()
    sys.exit(0 if agree else 1)


def compare(corral: Corral, seconds: int, program: str, *, busy: bool, real: bool) -> bool:
    ecs = corral.client("ecs")
    ecs.register_task_definition(family=FAMILY, containerDefinitions=[container(["python3", "-c", program], 1)])
    ecs.create_service(serviceName=SERVICE, taskDefinition=FAMILY, desiredCount=1)
    token = corral_command(corral, "metrics", "--token").strip()
    [shown] = eventually(lambda: of_task(scraped(corral, token), "DCGM_FI_DEV_GPU_UTIL"), "a GPU has the name of the service", 60)
    print("labels: " + ", ".join(f"{name}={value}" for name, value in shown[1].items()))
    if busy:
        eventually(lambda: of_task(scraped(corral, token), "DCGM_FI_DEV_GPU_UTIL")[0][2] > 50, "the GPU is busy", 120)
        time.sleep(5)  # until its power and its temperature are steady
    began, smi, page = datetime.now(UTC), Rows(), Rows()
    for _ in range(seconds):
        for name, value in (nvidia_smi(shown[1]["UUID"]) if real else {}).items():
            smi.setdefault(name, []).append(value)
        for name, _, value in of_task(scraped(corral, token)):
            page.setdefault(name, []).append(value)
        time.sleep(1)
    cloudwatch = {name: average(corral, name, began) for _, name, _, _ in COMPARED}
    healthy = of_task(scraped(corral, token), "corral_gpu_healthy")
    print(f"health: {'OK' if healthy[0][2] == 1 else corral_command(corral, 'status')}")
    return report(smi, page, cloudwatch) and healthy[0][2] == 1


def report(smi: Rows, page: Rows, cloudwatch: dict[str, float | None]) -> bool:
    """Print the medians. Return whether all metrics that nvidia-smi reports agree."""
    agree = True
    print(f"{'metric':26}{'nvidia-smi':>12}{'/metrics':>12}{'difference':>12}{'CloudWatch':>12}{'difference':>12}")
    for query, name, absolute, relative in COMPARED:
        ours, theirs, stored = median_of(page.get(name)), median_of(smi.get(query)), cloudwatch[name]
        cells = [theirs, ours, difference(ours, theirs), stored, difference(stored, theirs)]
        bad = theirs is not None and any(
            value is None or abs(value - theirs) > max(absolute, relative * abs(theirs)) for value in (ours, stored)
        )
        agree = agree and not bad
        print(
            f"{name:26}" + "".join(f"{'-' if cell is None else f'{cell:.1f}':>12}" for cell in cells) + ("  DIFFERS" if bad else "")
        )
    return agree


def scraped(corral: Corral, token: str) -> list[tuple[str, dict[str, str], float]]:
    request = Request(f"{corral.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=30) as reply:
        found = [SAMPLE.fullmatch(line) for line in reply.read().decode().splitlines()]
    return [(match[1], dict(LABEL.findall(match[2])), float(match[3])) for match in found if match]


def of_task(samples: list[tuple[str, dict[str, str], float]], name: str | None = None) -> list[tuple[str, dict[str, str], float]]:
    return [each for each in samples if each[1].get("service") == SERVICE and name in (None, each[0])]


def nvidia_smi(uuid: str) -> dict[str, float]:
    queries = [query for query, *_ in COMPARED]
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(queries)}", "--format=csv,noheader,nounits"]
    cells = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    return {query: float(cell) for query, cell in zip(queries, cells) if cell.replace(".", "", 1).isdigit()}


def average(corral: Corral, name: str, began: datetime) -> float | None:
    """CloudWatch's average over the seconds since `began`, of the service."""
    dimensions = [{"Name": "ClusterName", "Value": "default"}, {"Name": "ServiceName", "Value": SERVICE}]
    stat: dict[str, Any] = {
        "Metric": {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": dimensions}, "Period": 1, "Stat": "Average",
    }  # fmt: skip
    reply = corral.client("cloudwatch").get_metric_data(
        MetricDataQueries=[{"Id": "m1", "MetricStat": stat}], StartTime=began, EndTime=datetime.now(UTC)
    )
    return median_of(reply["MetricDataResults"][0]["Values"])


def median_of(values: list[float] | None) -> float | None:
    return median(values) if values else None


def difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def corral_command(corral: Corral, *words: str) -> str:
    command = [sys.executable, "-c", "from corral.cli.commands import main; main()", *words, "--data", str(corral.data)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
