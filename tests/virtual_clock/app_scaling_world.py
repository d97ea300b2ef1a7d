"""ECS services, their scaling policies and alarms on one virtual clock."""

from __future__ import annotations

from functools import partial
from typing import Any

from corral.model.metric import Metric, Point
from corral.model.settings import ScalingTimes
from corral.services.cloudwatch.metric_writes import record
from virtual_clock.group_world import REGION
from virtual_clock.scaling_world import ScalingWorld
from virtual_clock.service_world import ServiceWorld

RESOURCE = "service/default/web"
PLACE = {"ServiceNamespace": "ecs", "ResourceId": RESOURCE, "ScalableDimension": "ecs:service:DesiredCount"}
GPU = Metric(REGION, "Demo", "Gpu", (("ClusterName", "default"), ("ServiceName", "web")))
METRIC = {
    "Namespace": GPU.namespace,
    "MetricName": GPU.name,
    "Dimensions": [{"Name": name, "Value": value} for name, value in GPU.dimensions],
    "Statistic": "Average",
}


class AppScalingWorld(ScalingWorld, ServiceWorld):
    def __init__(self, timing: str = "fast", gpus: int = 8, scaling: ScalingTimes | None = None) -> None:
        super().__init__(timing, gpus, scaling)

    def app(self, operation: str, /, **params: Any) -> Any:
        answer = self.call(operation, "application-autoscaling", **params)
        self.deliver()
        return answer

    def scaled(self, desired: int = 1, least: int = 1, most: int = 3, **more: Any) -> None:
        """Create a service with running tasks, and register it."""
        self.define(gpus=1)
        self.serve(desiredCount=desired, launchType="EC2")
        self.report()
        self.app("RegisterScalableTarget", **PLACE, MinCapacity=least, MaxCapacity=most, **more)

    def track(self, target: float = 75.0, name: str = "gpu", **more: Any) -> tuple[str, ...]:
        """Put a target tracking policy on GPU. Return the names of its alarms."""
        configuration = {"CustomizedMetricSpecification": METRIC, "TargetValue": target, **more}
        made = self.app(
            "PutScalingPolicy", **PLACE, PolicyName=name, PolicyType="TargetTrackingScaling",
            TargetTrackingScalingPolicyConfiguration=configuration,
        )  # fmt: skip
        return tuple(each["AlarmName"] for each in made["Alarms"])

    def measure(self, value: float, seconds: int = 1, metric: Metric = GPU) -> None:
        """Publish a value once a second. The host starts and stops tasks as it is ordered."""
        for _ in range(seconds):
            self._measure(partial(record, points=[Point(metric, self.clock.now_s(), float(value), "Percent", 1)], own=False))
            self.report()
            self.wait(1)

    def tasks(self) -> int:
        return int(self.service()["desiredCount"])

    def acts(self, **more: Any) -> list[dict[str, Any]]:
        return list(self.app("DescribeScalingActivities", **PLACE, **more)["ScalingActivities"])
