"""The page `/metrics`: its format, its labels, who may read it, and that a stock Prometheus scrapes it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from command import Cli
from corral.model.histogram import Histogram
from corral.server.pages.metrics_page import Exposition
from eventually import eventually
from ports import free_port

Sample = tuple[str, dict[str, str], float]
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def get(url: str, token: str | None = None, *, method: str = "GET") -> HTTPResponse:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return urlopen(Request(url, headers=headers, method=method), timeout=30)  # type: ignore[no-any-return]


def status_of(url: str, token: str | None = None, *, method: str = "GET") -> int:
    try:
        return get(url, token, method=method).status
    except HTTPError as refusal:
        return refusal.code


def parse(text: str) -> list[Sample]:
    """Parse the text format strictly: every sample follows the HELP and TYPE of its metric."""
    found: list[Sample] = []
    family, kinds = "", dict[str, str]()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert len(line.split(" ", 3)) == 4 and family not in kinds, line
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == family
            kinds[family] = line.split(" ")[3]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            labels = LABEL.findall(match["labels"] or "")
            assert "".join(f'{name}="{value}",' for name, value in labels).rstrip(",") == (match["labels"] or "").rstrip(",")
            suffixes = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
            assert match["name"] in [family + suffix for suffix in suffixes], line
            found.append((match["name"], dict(labels), float(match["value"])))
    assert len({(name, tuple(sorted(labels.items()))) for name, labels, _ in found}) == len(found), "no series is listed twice"
    return found


def values(samples: list[Sample], name: str, **labels: str) -> list[float]:
    return [value for each, given, value in samples if each == name and labels.items() <= given.items()]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("prometheus"))
    made("up", "-d", "--port", "0", "--gpus", "sim:2")
    yield made
    made.clear()


@pytest.fixture(scope="module")
def task(cli: Cli) -> str:
    """A task that holds one of the two GPUs, and a task that waits."""
    ecs = cli.client("ecs")
    for family, gpus in (("holder", "1"), ("waiter", "2")):
        container = {
            "name": "main", "image": "corral/host", "memory": 64, "command": ["sleep", "600"],
            "resourceRequirements": [{"type": "GPU", "value": gpus}],
        }  # fmt: skip
        ecs.register_task_definition(family=family, containerDefinitions=[container])
    arn: str = ecs.run_task(taskDefinition="holder")["tasks"][0]["taskArn"]
    ecs.run_task(taskDefinition="waiter")
    sqs = cli.client("sqs")
    url = sqs.create_queue(QueueName="work")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "RUNNING")
    return arn.rpartition("/")[2]


def scraped(cli: Cli) -> list[Sample]:
    return parse(cli("metrics").stdout)


def test_gpus_have_the_names_and_labels_of_dcgm_exporter(cli: Cli, task: str) -> None:
    samples = eventually(lambda: (found := scraped(cli)) and values(found, "DCGM_FI_DEV_GPU_UTIL", gpu="0") and found)
    [labels] = [given for name, given, _ in samples if name == "DCGM_FI_DEV_FB_FREE" and given.get("task") == task]
    assert labels["UUID"].startswith("GPU-") and labels["device"] == f"nvidia{labels['gpu']}" and "H100" in labels["model_name"]
    assert (labels["container"], labels["family"], labels["cluster"], labels["simulated"]) == ("main", "holder", "default", "true")
    assert len(values(samples, "DCGM_FI_DEV_FB_USED")) == 2
    assert values(samples, "corral_gpus", state="used") == values(samples, "corral_gpus", state="free") == [1.0]


def test_corral_measures_itself(cli: Cli, task: str) -> None:
    samples = scraped(cli)
    assert values(samples, "corral_tasks", state="RUNNING") == values(samples, "corral_tasks", state="PROVISIONING") == [1.0]
    assert values(samples, "corral_claims_waiting", pool="hosts:default") == [1.0]
    assert values(samples, "corral_sqs_messages", queue="work", state="visible") == [1.0]
    assert values(samples, "corral_task_placement_seconds_count") == [1.0]
    assert values(samples, "corral_api_request_duration_seconds_count", service="ecs", operation="RunTask") == [2.0]
    buckets = values(samples, "corral_api_request_duration_seconds_bucket", service="ecs", operation="RunTask")
    assert buckets == sorted(buckets) and buckets[-1] == 2.0
    assert all(values(samples, "corral_lane_batch_commands_count", lane=lane)[0] > 0 for lane in ("state", "logs", "metrics"))
    with pytest.raises(cli.client("ecs").exceptions.ClientException):
        cli.client("ecs").run_task(taskDefinition="absent")
    assert values(scraped(cli), "corral_api_errors_total", operation="RunTask", code="400") == [1.0]


def test_the_page_needs_its_token_and_the_token_opens_nothing_else(cli: Cli) -> None:
    url, token = cli.json("env")["AWS_ENDPOINT_URL"], cli("metrics", "--token").stdout.strip()
    assert status_of(f"{url}/metrics", token) == 200
    assert get(f"{url}/metrics", token).headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert status_of(f"{url}/metrics") == status_of(f"{url}/metrics", "wrong") == status_of(f"{url}/metrics", token[:-1]) == 401
    assert status_of(f"{url}/metrics", token, method="POST") == 405
    for path in ("/_corral/status", "/metrics/other", "/"):
        assert status_of(url + path, token) in (400, 403, 404), path
    cli("revoke", "--all")
    assert status_of(f"{url}/metrics", token) == 401
    assert status_of(f"{url}/metrics", cli("metrics", "--token").stdout.strip()) == 200


def test_a_bucket_may_have_the_name_of_the_page(cli: Cli) -> None:
    s3 = cli.client("s3")
    s3.create_bucket(Bucket="metrics")
    s3.put_object(Bucket="metrics", Key="a", Body=b"x")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="metrics")["Contents"]] == ["a"]


def test_labels_and_help_are_escaped() -> None:
    page, times = Exposition(), Histogram((0.1, 2.5))
    for value in (0.1, 0.2, 7.0):
        times.add(value)
    page.gauge("a", "back\\slash\nand line", [({"x": 'quo"te\\ \n'}, 1.5), ({}, float(10**6))])
    page.gauge("empty", "left out", [])
    page.histogram("h_seconds", "times", [({"lane": "state"}, times)])
    assert page.text().splitlines() == [
        "# HELP a back\\\\slash\\nand line", "# TYPE a gauge", 'a{x="quo\\"te\\\\ \\n"} 1.5', "a 1000000",
        "# HELP h_seconds times", "# TYPE h_seconds histogram",
        'h_seconds_bucket{lane="state",le="0.1"} 1', 'h_seconds_bucket{lane="state",le="2.5"} 2',
        'h_seconds_bucket{lane="state",le="+Inf"} 3', 'h_seconds_sum{lane="state"} 7.3', 'h_seconds_count{lane="state"} 3',
    ]  # fmt: skip


needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus (make test-packages)")


@needs_prometheus
def test_promtool_accepts_the_page(cli: Cli, task: str) -> None:
    text = cli("metrics").stdout
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@needs_prometheus
def test_a_stock_prometheus_scrapes_the_page(cli: Cli, task: str, tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text(cli("metrics", "--config").stdout.replace("scrape_interval: 5s", "scrape_interval: 1s"))
    port = free_port()
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    log = open(tmp_path / "prometheus.log", "wb")  # noqa: SIM115
    with log, subprocess.Popen(command, stdout=log, stderr=log) as prometheus:
        try:
            used = eventually(lambda: query(port, f'DCGM_FI_DEV_FB_USED{{task="{task}"}}'))
            assert "H100" in used[0]["metric"]["modelName"], "the name of the label at dcgm-exporter"
            assert used[0]["metric"]["job"] == "corral" and used[0]["metric"]["instance"].startswith("127.0.0.1:")
            latency = 'histogram_quantile(0.5, corral_api_request_duration_seconds_bucket{operation="RunTask"})'
            assert 0 < float(query(port, latency)[0]["value"][1]) <= 30
            assert query(port, "up")[0]["value"][1] == "1"
        finally:
            prometheus.terminate()


def query(port: int, expression: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': expression})}", timeout=30) as reply:
            return json.load(reply)["data"]["result"]  # type: ignore[no-any-return]
    except URLError:  # it starts
        return []
