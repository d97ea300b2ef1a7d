"""The GPU load of a run, from the metrics in CloudWatch, as a line of bars.

Corral publishes the metrics of each GPU once a second, in the namespace Corral/GPU with the dimensions ClusterName and TaskId.
CloudWatch keeps values of one second for three hours, of a minute for 15 days, of five minutes for 63 days, and of an hour for 455
days.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, client

NAMESPACE = "Corral/GPU"
UTILIZATION, MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"  # instead of a bar for a period without values
# (age in seconds, the shortest period in seconds that CloudWatch has for values up to this age)
KEPT_S = ((3 * 3600, 1), (15 * 86_400, 60), (63 * 86_400, 300), (455 * 86_400, 3600))
PERIODS_S = (1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86_400)


class GpuLoad(NamedTuple):
    begin: datetime
    period_s: int
    mean: list[float | None]  # the mean utilization of each period in percent; None: no values
    highest: float | None  # percent
    peak_memory_mib: float | None  # of one GPU

    @property
    def utilization(self) -> float | None:
        """The mean of all periods with values, in percent. None: no period has values."""
        known = [value for value in self.mean if value is not None]
        return sum(known) / len(known) if known else None

    def described(self) -> dict[str, Any]:
        return {"begin": self.begin, "periodSeconds": self.period_s, "meanUtilizationPercent": self.mean}


def gpu_load(
    endpoint: Endpoint, cluster: str, task_id: str, begin: datetime, end: datetime, now: datetime, columns: int
) -> GpuLoad | None:
    """Read the load of a run's GPUs in at most `columns` periods. Return None if CloudWatch has no values."""
    period_s = period_of((end - begin).total_seconds(), (now - begin).total_seconds(), columns)
    first_s = int(begin.timestamp()) // period_s * period_s
    count = max(1, ceil((end.timestamp() - first_s) / period_s))
    first = datetime.fromtimestamp(first_s, UTC)
    dimensions = [{"Name": "ClusterName", "Value": cluster}, {"Name": "TaskId", "Value": task_id}]
    wanted = {"mean": (UTILIZATION, "Average"), "highest": (UTILIZATION, "Maximum"), "memory": (MEMORY, "Maximum")}
    queries = [
        {
            "Id": name,
            "MetricStat": {
                "Metric": {"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": dimensions},
                "Period": period_s,
                "Stat": statistic,
            },
        }
        for name, (metric, statistic) in wanted.items()
    ]
    until = first + timedelta(seconds=count * period_s)
    found: dict[str, dict[float, float]] = {name: {} for name in wanted}
    for page in (
        client(endpoint, "cloudwatch")
        .get_paginator("get_metric_data")
        .paginate(MetricDataQueries=queries, StartTime=first, EndTime=until)
    ):
        for result in page["MetricDataResults"]:
            found[result["Id"]] |= {at.timestamp(): value for at, value in zip(result["Timestamps"], result["Values"], strict=True)}
    if not found["mean"]:
        return None
    mean = [found["mean"].get(first_s + at * period_s) for at in range(count)]
    return GpuLoad(first, period_s, mean, max(found["highest"].values()), max(found["memory"].values(), default=None))


def period_of(duration_s: float, age_s: float, columns: int) -> int:
    """Return the length of a period in seconds: the shortest for which CloudWatch still has values of this age, and with which the
    graph needs at most `columns` columns.
    """
    least_s = next((period_s for kept_s, period_s in KEPT_S if age_s < kept_s), KEPT_S[-1][1])
    # Each period begins at a multiple of its length, so the graph can need one period more than fit into the duration.
    fitting = (each for each in PERIODS_S if each >= least_s and duration_s / each <= columns - 1)
    return next(fitting, PERIODS_S[-1] * ceil(duration_s / PERIODS_S[-1] / (columns - 1)))


def bars(percentages: Sequence[float | None]) -> str:
    """Draw one bar per value, from 0 to 100 percent."""
    top = len(BARS) - 1
    return "".join(UNKNOWN if each is None else BARS[max(0, min(top, round(each / 100 * top)))] for each in percentages)
