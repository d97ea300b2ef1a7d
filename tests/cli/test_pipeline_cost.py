"""What a run used: hours, prices and the tags that store them, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from corral.cli.client.endpoint import Endpoint
from corral.cli.pipelines.cost import (
    THIS_MACHINE,
    ExecutionUsage,
    InstanceSize,
    Prices,
    StepUsage,
    add_usages,
    attempts,
    format_usage,
    parse_usage,
    requirements,
)
from corral.cli.pipelines.screen import dollars

ARN = "arn:aws:ecs:us-east-1:123456789012:container-instance/gpus/1"


def job(gpus: int = 0, vcpus: int = 1, memory: int = 1024, **more: Any) -> dict[str, Any]:
    needs = (("VCPU", vcpus), ("MEMORY", memory), ("GPU", gpus))
    return {"container": {"resourceRequirements": [{"type": kind, "value": str(value)} for kind, value in needs if value]}, **more}


def prices() -> Prices:
    size = InstanceSize(vcpus=16, memory_mib=65_536, gpus=4)
    return Prices(Endpoint(), per_hour={"g5.12xlarge": 6.0}, sizes={"g5.12xlarge": size}, types={ARN: "g5.12xlarge"})


@pytest.mark.parametrize(
    "described, price",
    [
        (job(gpus=1), 6.0 / 4),  # one of four GPUs
        (job(gpus=1, vcpus=8), 6.0 / 2),  # the largest share counts: eight of sixteen vCPUs
        (job(memory=65_536), 6.0),
        (job(vcpus=64), 6.0),  # not more than the whole instance
    ],
)
def test_a_job_costs_its_largest_share_of_the_instance(described: dict[str, Any], price: float) -> None:
    assert prices().of_job(described, ARN) == pytest.approx(price)


def test_an_instance_without_a_price() -> None:
    assert prices().of_job(job(), "arn:of:another/instance") is None


def test_a_job_on_this_machine_costs_its_gpu_hours() -> None:
    own = Prices(Endpoint(), per_hour={}, per_gpu_hour=2.5, types={ARN: THIS_MACHINE})
    assert (own.of_job(job(gpus=2, vcpus=8), ARN), own.of_job(job(), ARN)) == (5.0, 0.0)
    assert Prices(Endpoint(), per_hour={}, types={ARN: THIS_MACHINE}).of_job(job(gpus=2), ARN) is None


def test_the_sum_of_a_run_leaves_out_steps_without_a_price() -> None:
    priced, unpriced = StepUsage(1, 5.0, 15.0, 10, 1.0, 0.5, 2.5), StepUsage(2, 10.0, 20.0, 20, 1.0, 0.0, None)
    run = ExecutionUsage("1a2b3c4d", 20.0, {"a": priced, "b": unpriced})
    assert (run.jobs, run.vcpu_hours, run.gpu_hours, run.cost) == (3, 2.0, 0.5, 2.5)
    assert ExecutionUsage("1a2b3c4d", 20.0, {"b": unpriced}).cost is None
    assert unpriced.times.mean_s == 10.0


def test_a_retry_adds_to_the_usage_of_a_step() -> None:
    first, cancelled = StepUsage(100, 10.0, 20.0, 500.0, 2.0, 1.0, 0.5), StepUsage(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    retried = StepUsage(20, 30.0, 35.0, 80.0, 0.5, 0.25, 0.25)
    assert add_usages([first, cancelled, retried]) == StepUsage(120, 10.0, 35.0, 580.0, 2.5, 1.25, 0.75)
    assert add_usages([first, retried]).wall_s == 25.0
    assert add_usages([cancelled]) == cancelled and ExecutionUsage("1a2b3c4d", 20.0, {"a": cancelled}).cost == 0.0


@pytest.mark.parametrize("cost", [None, 0.0, 1234.5])
def test_a_tag_keeps_the_usage_of_a_step(cost: float | None) -> None:
    usage = StepUsage(10_000, 1.8e9, 1.8e9 + 3600.125, 86_400.5, 24.0, 12.5, cost)
    text = format_usage(usage)
    assert parse_usage(text) == usage
    assert parse_usage("") is None and parse_usage("v2 " + text) is None
    assert len(text) <= 256 and set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789 =.")  # what AWS allows in a tag


def test_every_attempt_counts() -> None:
    container = {"containerInstanceArn": ARN}
    retried = job(attempts=[
        {"startedAt": 1_000, "stoppedAt": 3_000, "container": container},
        {"stoppedAt": 4_000, "container": {}},  # never started
        {"startedAt": 5_000, "stoppedAt": 6_500, "container": container},
    ])  # fmt: skip
    assert attempts(retried) == [(1.0, 3.0, ARN), (5.0, 6.5, ARN)]
    assert attempts({"startedAt": 1_000, "stoppedAt": 2_000, "container": container}) == [(1.0, 2.0, ARN)]
    assert attempts({"createdAt": 1_000}) == []


def test_the_older_form_of_requirements() -> None:
    assert requirements({"container": {"vcpus": 2, "memory": 512}}) == InstanceSize(2.0, 512.0, 0.0)


@pytest.mark.parametrize("value, text", [(None, "no price"), (1234.5, "$1,234.50"), (0.05, "$0.0500"), (0.000123, "$0.000123")])
def test_prices_as_text(value: float | None, text: str) -> None:
    assert dollars(value) == text
