"""Hosts join a server over TLS, in processes of their own on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.model.agent_protocol import CollectedSamples, Hello, Report
from corral.model.gpu import GpuDevice
from corral.model.gpu_metrics import GpuSample
from corral.node.server_access import AGENT, host_context
from harness import container, eventually
from hosts.joined import Server, running_server
from hosts.raw_agent import connect, receive, send


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server") / "data", "none") as running:
        yield running


def test_a_host_joins_and_runs_a_task(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "first", "first", "sim:2xH200").joined(rack="r1")
    host.start("--cluster", "other", "--labels", "zone=a")
    server.wait_until_up("first")
    shown = server.described("first")
    assert (shown["address"], shown["rack"], shown["cluster"], shown["joined"]) == ("127.0.0.1", "r1", "other", True)
    assert shown["id"] == host.host_id and {gpu["model"] for gpu in shown["gpus"]} == {"NVIDIA H200"}
    ecs = server.corral.client("ecs")
    definition = container(["sh", "-c", "echo $PWD"], gpus=2, log_prefix="p")
    ecs.register_task_definition(family="two", containerDefinitions=[definition])
    [task] = ecs.run_task(cluster="other", taskDefinition="two")["tasks"]
    of_task = {"cluster": "other", "tasks": [task["taskArn"]]}
    eventually(lambda: ecs.describe_tasks(**of_task)["tasks"][0]["lastStatus"] == "STOPPED", "it has stopped")
    [stopped] = ecs.describe_tasks(**of_task)["tasks"]
    assert stopped["containers"][0]["exitCode"] == 0
    [event] = server.corral.client("logs").filter_log_events(logGroupName="/tests")["events"]
    assert event["message"].startswith(str(host.folder))
    assert "connected to the server" in host.log() and "no gateway" not in host.log()  # the server listens on its port itself


def test_hosts_send_samples_at_once_while_somebody_needs_them(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "sampled", "sampled").joined()
    cloudwatch = server.corral.client("cloudwatch")
    gpu = GpuDevice("GPU-of-sampled", 0, "NVIDIA H100", 80_000, True)
    with connect(server, host_context(host.folder, AGENT)) as connection:
        send(connection, {"hello": Hello("", "boot", "", 1024, 1024, [gpu], [])})

        def until(at_once: bool) -> None:
            """Report as an agent until the server changes its mind."""
            while receive(connection).get("samples_at_once") is not at_once:
                send(connection, {"report": Report()})

        until(False)
        metric = {"Namespace": "Corral/GPU", "MetricName": "DCGM_FI_DEV_GPU_UTIL"}
        cloudwatch.put_metric_alarm(
            AlarmName="busy", **metric, Dimensions=[{"Name": "ClusterName", "Value": "default"}], Statistic="Average", Period=60,
            EvaluationPeriods=1, Threshold=200.0, ComparisonOperator="GreaterThanThreshold",
        )  # fmt: skip
        until(True)
        cloudwatch.delete_alarms(AlarmNames=["busy"])
        until(False)
        now_s = time.time()
        times = {"StartTime": now_s - 60, "EndTime": now_s, "Statistics": ["Average"]}
        cloudwatch.get_metric_statistics(**metric, Period=1, **times)
        until(True)
        samples = [
            CollectedSamples(float(age_s), [GpuSample("GPU-of-sampled", 10.0 * age_s, 100), GpuSample("GPU-of-another", 1.0, 1)])
            for age_s in (3, 2, 1)
        ]
        server.corral.client("ecs").create_cluster(clusterName="default")
        send(connection, {"report": Report(gpus=[GpuSample("GPU-of-sampled", 40.0, 100)], earlier=samples)})

        def average() -> float | None:
            # The oldest sample may belong to the minute before.
            uuid = [{"Name": "Hostname", "Value": "sampled"}, {"Name": "UUID", "Value": "GPU-of-sampled"}]
            times = {"StartTime": (now_s - 3) // 60 * 60, "EndTime": now_s + 120, "Statistics": ["Sum", "SampleCount"]}
            points = cloudwatch.get_metric_statistics(**metric, Dimensions=uuid, Period=60, **times)["Datapoints"]
            assert sum(point["SampleCount"] for point in points) in (0.0, 4.0)
            return sum(point["Sum"] for point in points) / 4

        assert eventually(average, "all collected samples have arrived") == 25.0
