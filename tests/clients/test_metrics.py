"""CloudWatch's metrics, through boto3 and the aws command."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from corral.aws.cbor import EpochSeconds, cbor_from_value, value_from_cbor

MINUTE = timedelta(minutes=1)


@pytest.fixture
def cloudwatch(client):
    return client("cloudwatch")


@pytest.fixture
def namespace(request):
    return "tests/" + re.sub(r"\W", "-", request.node.name)


@pytest.fixture
def base():
    """The start of the minute ten minutes ago."""
    return datetime.fromtimestamp(time.time() // 60 * 60 - 600, UTC)


def put(cloudwatch, namespace, *data):
    cloudwatch.put_metric_data(Namespace=namespace, MetricData=list(data))


def statistics(cloudwatch, namespace, base, name="m", minutes=10, period=60, **more):
    answer = cloudwatch.get_metric_statistics(
        Namespace=namespace, MetricName=name, StartTime=base, EndTime=base + minutes * MINUTE, Period=period, **more
    )
    assert answer["Label"] == name
    return answer["Datapoints"]


def refusal(call, code):
    with pytest.raises(Exception) as caught:
        call()
    assert caught.value.response["Error"]["Code"] == code
    return caught.value.response["Error"]["Message"]


def test_every_kind_of_datum_counts(cloudwatch, namespace, base):
    put(
        cloudwatch,
        namespace,
        {"MetricName": "m", "Timestamp": base, "Value": 4, "Unit": "Seconds"},
        {"MetricName": "m", "Timestamp": base + timedelta(seconds=50), "Values": [1, 2.5], "Counts": [2, 4], "Unit": "Seconds"},
        {
            "MetricName": "m", "Timestamp": base + MINUTE, "Unit": "Seconds",
            "StatisticValues": {"SampleCount": 3, "Sum": 12, "Minimum": 1, "Maximum": 9},
        },
    )  # fmt: skip
    first, second = statistics(cloudwatch, namespace, base, Statistics=["SampleCount", "Sum", "Average", "Minimum", "Maximum"])
    assert first == {
        "Timestamp": base, "SampleCount": 7, "Sum": 16, "Average": 16 / 7, "Minimum": 1, "Maximum": 4, "Unit": "Seconds",
    }  # fmt: skip
    assert second["Timestamp"] == base + MINUTE and second["Average"] == 4 and second["Maximum"] == 9
    [both] = statistics(cloudwatch, namespace, base, period=300, Statistics=["Sum"])
    assert both["Sum"] == 28


def test_extended_statistics(cloudwatch, namespace, base):
    values = [float(value) for value in range(1, 101)]
    put(cloudwatch, namespace, {"MetricName": "m", "Timestamp": base, "Values": values})
    wanted = ["p50", "p99", "tm90", "TM(10%:90%)", "wm98", "TC(0.5:10)", "TS(:4)", "PR(:25)", "IQM", "p0.5"]
    [point] = statistics(cloudwatch, namespace, base, ExtendedStatistics=wanted)
    found = point["ExtendedStatistics"]
    assert found["p50"] == 50 and found["p99"] == 99 and found["p0.5"] == 1
    assert found["tm90"] == pytest.approx(45.5) and found["TM(10%:90%)"] == pytest.approx(50.5)
    assert found["wm98"] == pytest.approx((sum(range(1, 99)) + 2 * 98) / 100)
    assert found["TC(0.5:10)"] == 10 and found["TS(:4)"] == 10 and found["PR(:25)"] == 25 and found["IQM"] == pytest.approx(50.5)


def test_percentiles_need_values(cloudwatch, namespace, base):
    same = {"SampleCount": 3, "Sum": 6, "Minimum": 2, "Maximum": 2}
    other = {"SampleCount": 3, "Sum": 6, "Minimum": 1, "Maximum": 3}
    put(
        cloudwatch,
        namespace,
        {"MetricName": "same", "Timestamp": base, "StatisticValues": same},
        {"MetricName": "other", "Timestamp": base, "StatisticValues": other},
        {"MetricName": "negative", "Timestamp": base, "Values": [-1, 3]},
    )
    [point] = statistics(cloudwatch, namespace, base, "same", ExtendedStatistics=["p90"])
    assert point["ExtendedStatistics"] == {"p90": 2}
    assert statistics(cloudwatch, namespace, base, "other", ExtendedStatistics=["p90"]) == []
    assert statistics(cloudwatch, namespace, base, "negative", ExtendedStatistics=["p90"]) == []
    [point] = statistics(cloudwatch, namespace, base, "negative", Statistics=["Minimum"])
    assert point["Minimum"] == -1


def test_units_are_separate(cloudwatch, namespace, base):
    put(
        cloudwatch,
        namespace,
        {"MetricName": "m", "Timestamp": base, "Value": 1, "Unit": "Seconds"},
        {"MetricName": "m", "Timestamp": base, "Value": 1000, "Unit": "Milliseconds"},
    )
    assert [(point["Unit"], point["Sum"]) for point in statistics(cloudwatch, namespace, base, Statistics=["Sum"])] == [
        ("Milliseconds", 1000),
        ("Seconds", 1),
    ]
    [only] = statistics(cloudwatch, namespace, base, Statistics=["Sum"], Unit="Seconds")
    assert only["Sum"] == 1
    assert statistics(cloudwatch, namespace, base, Statistics=["Sum"], Unit="Bytes") == []


def test_dimensions_identify_a_series_in_any_order(cloudwatch, namespace, base):
    a, b = {"Name": "a", "Value": "1"}, {"Name": "b", "Value": "2"}
    put(
        cloudwatch,
        namespace,
        {"MetricName": "m", "Timestamp": base, "Value": 1, "Dimensions": [a, b]},
        {"MetricName": "m", "Timestamp": base, "Value": 2, "Dimensions": [b, a]},
        {"MetricName": "m", "Timestamp": base, "Value": 4, "Dimensions": [a]},
    )
    for dimensions, total in (([b, a], 3), ([a], 4)):
        [point] = statistics(cloudwatch, namespace, base, Statistics=["Sum"], Dimensions=dimensions)
        assert point["Sum"] == total
    assert statistics(cloudwatch, namespace, base, Statistics=["Sum"]) == []


def test_high_resolution(cloudwatch, namespace, base):
    for second in range(0, 60, 5):
        put(
            cloudwatch,
            namespace,
            {"MetricName": "fine", "Timestamp": base + timedelta(seconds=second), "Value": second, "StorageResolution": 1},
            {"MetricName": "coarse", "Timestamp": base + timedelta(seconds=second), "Value": second},
        )
    fine = statistics(cloudwatch, namespace, base, "fine", minutes=1, period=10, Statistics=["Maximum"])
    assert [point["Maximum"] for point in fine] == [5, 15, 25, 35, 45, 55]
    assert fine[1]["Timestamp"] == base + timedelta(seconds=10)
    [coarse] = statistics(cloudwatch, namespace, base, "coarse", minutes=1, period=10, Statistics=["SampleCount"])
    assert coarse["SampleCount"] == 12 and coarse["Timestamp"] == base


def test_periods_begin_with_the_start_time(cloudwatch, namespace, base):
    for minute in range(10):
        put(cloudwatch, namespace, {"MetricName": "m", "Timestamp": base + minute * MINUTE, "Value": 1})
    start = base + MINUTE + timedelta(seconds=59)  # rounded down to its minute
    points = statistics(cloudwatch, namespace, start, minutes=9, period=180, Statistics=["Sum"])
    assert [(point["Timestamp"] - base).seconds // 60 for point in points] == [1, 4, 7]
    assert [point["Sum"] for point in points] == [3, 3, 3]


@pytest.mark.parametrize(
    ("datum", "code", "words"),
    [
        ({"Value": 1, "Unit": "Parsecs"}, "InvalidParameterValue", "member.1.Unit must be a value in the set [ Seconds, "),
        ({"Value": 1, "StorageResolution": 5}, "InvalidParameterValue", "StorageResolution must be a value in the set [ 1, 60 ]"),
        ({"Value": 1, "Timestamp": 100_000}, "InvalidParameterValue", "Timestamp must specify a time within the past two weeks"),
        ({"Value": 1, "Timestamp": 4e9}, "InvalidParameterValue", "no more than two hours in the future"),
        ({"Value": 2.0**361}, "InvalidParameterValue", "MetricData.member.1.Value"),
        ({"Value": float("nan")}, "InvalidParameterValue", "MetricData.member.1.Value"),
        ({}, "MissingParameter", "MetricData.member.1.Value"),
        ({"Values": list(range(151))}, "InvalidParameterValue", "must not have a size greater than 150"),
        ({"Values": [1, 2], "Counts": [1]}, "InvalidParameterValue", "of the same size"),
        ({"Value": 1, "Dimensions": [{"Name": "a", "Value": "1"}] * 2}, "InvalidParameterValue", "same dimension name twice"),
        (
            {"Value": 1, "Dimensions": [{"Name": f"n{at}", "Value": "v"} for at in range(31)]},
            "InvalidParameterValue",
            "must not have a size greater than 30",
        ),
        (
            {"Value": 1, "StatisticValues": {"SampleCount": 1, "Sum": 1, "Minimum": 1, "Maximum": 1}},
            "InvalidParameterCombination",
            "The parameters MetricData.member.1.Value and MetricData.member.1.StatisticValues are mutually exclusive",
        ),
    ],
)  # fmt: skip
def test_a_request_with_one_fault_stores_nothing(client, namespace, base, datum, code, words):
    loose = client("cloudwatch", parameter_validation=False)
    data = [{"MetricName": "m", **datum}, {"MetricName": "good", "Timestamp": base, "Value": 1}]
    assert words in refusal(lambda: loose.put_metric_data(Namespace=namespace, MetricData=data), code)
    assert statistics(loose, namespace, base, "good", Statistics=["Sum"]) == []


def test_all_faults_are_in_one_error(cloudwatch, namespace):
    data = [{"MetricName": "m", "Value": 1, "StorageResolution": 7}] * 2
    message = refusal(lambda: cloudwatch.put_metric_data(Namespace=namespace, MetricData=data), "InvalidParameterValue")
    assert [line.split(" must")[0] for line in message.splitlines()] == [
        f"The parameter MetricData.member.{number}.StorageResolution" for number in (1, 2)
    ]
    many = [{"MetricName": "m", "Value": 1}] * 1001
    assert "1000" in refusal(lambda: cloudwatch.put_metric_data(Namespace=namespace, MetricData=many), "InvalidParameterValue")
    assert "MetricData" in refusal(lambda: cloudwatch.put_metric_data(Namespace=namespace), "MissingParameter")
    for wrong in (":x", "AWS/SQS"):
        assert "Namespace" in refusal(
            lambda wrong=wrong: cloudwatch.put_metric_data(Namespace=wrong, MetricData=[{"MetricName": "m", "Value": 1}]),
            "InvalidParameterValue",
        )


def test_entities(cloudwatch, namespace, base):
    entity = {"KeyAttributes": {"Type": "Service", "Name": "train"}, "Attributes": {"team": "vision"}}
    data = {"MetricData": [{"MetricName": "m", "Timestamp": base, "Value": 1}]}
    cloudwatch.put_metric_data(Namespace=namespace, EntityMetricData=[{"Entity": entity, **data}])
    wrong = {"KeyAttributes": {"Type": "Service", "Colour": "red"}}
    cloudwatch.put_metric_data(Namespace=namespace, EntityMetricData=[{"Entity": wrong, **data}])
    assert "KeyAttributes" in refusal(
        lambda: cloudwatch.put_metric_data(
            Namespace=namespace, EntityMetricData=[{"Entity": wrong, **data}], StrictEntityValidation=True
        ),
        "InvalidParameterValue",
    )
    [point] = statistics(cloudwatch, namespace, base, Statistics=["Sum"])
    assert point["Sum"] == 2


def test_invalid_get_metric_statistics_is_refused(cloudwatch, namespace, base):
    def ask(**changed):
        params = {"Namespace": namespace, "MetricName": "m", "StartTime": base, "EndTime": base + MINUTE, "Period": 60}
        return lambda: cloudwatch.get_metric_statistics(**{**params, "Statistics": ["Sum"], **changed})

    assert "requested up to 1,441 datapoints, which exceeds the limit of 1,440" in refusal(
        ask(StartTime=base - 1440 * MINUTE), "InvalidParameterCombination"
    )
    assert "StartTime must be less than" in refusal(ask(EndTime=base), "InvalidParameterValue")
    assert "Period" in refusal(ask(Period=7), "InvalidParameterValue")
    assert "ExtendedStatistics" in refusal(ask(ExtendedStatistics=["p101"]), "InvalidParameterValue")
    window = {"StartTime": base, "EndTime": base + MINUTE, "Period": 60}
    neither = lambda: cloudwatch.get_metric_statistics(Namespace=namespace, MetricName="m", **window)  # noqa: E731
    assert "ExtendedStatistics must be specified" in refusal(neither, "MissingParameter")


def test_short_periods_of_old_samples_are_empty(cloudwatch, namespace, base):
    old = base - timedelta(hours=5)
    put(cloudwatch, namespace, {"MetricName": "m", "Timestamp": old, "Value": 1, "StorageResolution": 1})
    [point] = statistics(cloudwatch, namespace, old, Statistics=["Sum"])
    assert point["Timestamp"] == old
    assert statistics(cloudwatch, namespace, old, period=10, Statistics=["Sum"]) == []


def test_list_metrics(cloudwatch, client, namespace):
    for number in range(3):
        dimensions = [{"Name": "task", "Value": str(number)}, {"Name": "kind", "Value": "x"}]
        put(cloudwatch, namespace, {"MetricName": "loss", "Value": 1, "Dimensions": dimensions})
    put(cloudwatch, namespace, {"MetricName": "plain", "Value": 1})

    def found(**filters):
        return [
            (metric["MetricName"], {each["Name"]: each["Value"] for each in metric["Dimensions"]}.get("task"))
            for metric in cloudwatch.list_metrics(Namespace=namespace, **filters)["Metrics"]
        ]

    assert found() == [("loss", "0"), ("loss", "1"), ("loss", "2"), ("plain", None)]
    assert found(MetricName="plain", RecentlyActive="PT3H") == [("plain", None)]
    assert found(Dimensions=[{"Name": "task"}, {"Name": "kind", "Value": "x"}]) == [("loss", "0"), ("loss", "1"), ("loss", "2")]
    assert found(Dimensions=[{"Name": "task", "Value": "1"}]) == [("loss", "1")]
    assert found(Dimensions=[{"Name": "task", "Value": "7"}]) == []
    assert client("cloudwatch", region="eu-west-1").list_metrics(Namespace=namespace)["Metrics"] == []
    named = cloudwatch.list_metrics(MetricName="plain", IncludeLinkedAccounts=True)
    assert set(named["OwningAccounts"]) == {"123456789012"} and len(named["OwningAccounts"]) == len(named["Metrics"])
    assert "NextToken" in refusal(lambda: cloudwatch.list_metrics(NextToken="bm9uc2Vuc2U="), "InvalidParameterValue")


def test_list_metrics_returns_500_per_page(cloudwatch, namespace):
    data = [{"MetricName": f"m{number:04d}", "Value": 1} for number in range(1000)]
    put(cloudwatch, namespace, *data)
    put(cloudwatch, namespace, {"MetricName": "last", "Value": 1})
    pages = list(cloudwatch.get_paginator("list_metrics").paginate(Namespace=namespace))
    assert [len(page["Metrics"]) for page in pages] == [500, 500, 1]
    assert len({metric["MetricName"] for page in pages for metric in page["Metrics"]}) == 1001


def test_metrics_survive_a_kill(own_corral, base):
    corral = own_corral().start()
    put(corral.client("cloudwatch"), "kept", {"MetricName": "m", "Timestamp": base, "Value": 3})
    corral.kill("corral.server")
    corral.start()
    [point] = statistics(corral.client("cloudwatch"), "kept", base, Statistics=["Sum"])
    assert point["Sum"] == 3


def test_the_aws_command(aws, namespace):
    aws(
        "cloudwatch", "put-metric-data", "--namespace", namespace, "--metric-name", "m", "--value", "5",
        "--unit", "Count", "--dimensions", "task=1",
    )  # fmt: skip
    [metric] = aws("cloudwatch", "list-metrics", "--namespace", namespace)["Metrics"]
    assert metric == {"Namespace": namespace, "MetricName": "m", "Dimensions": [{"Name": "task", "Value": "1"}]}
    query = json.dumps([{"Id": "m1", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}])
    start, end = datetime.now(UTC) - 5 * MINUTE, datetime.now(UTC) + MINUTE
    [found] = aws(
        "cloudwatch", "get-metric-data", "--metric-data-queries", query,
        "--start-time", start.isoformat(), "--end-time", end.isoformat(),
    )["MetricDataResults"]  # fmt: skip
    assert found["Values"] == [5.0] and found["Label"] == "m" and found["StatusCode"] == "Complete"


def test_the_other_two_protocols(corral, namespace):
    """boto3 uses JSON, older clients use the query protocol, newer clients CBOR."""
    form = {
        "Action": "PutMetricData", "Version": "2010-08-01", "Namespace": namespace, "MetricData.member.1.MetricName": "m",
        "MetricData.member.1.Values.member.1": "2.5", "MetricData.member.1.Values.member.2": "5",
        "MetricData.member.1.Counts.member.1": "1", "MetricData.member.1.Counts.member.2": "3",
        "MetricData.member.1.Dimensions.member.1.Name": "a", "MetricData.member.1.Dimensions.member.1.Value": "b c",
        "MetricData.member.1.Timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }  # fmt: skip
    status, answer = posted(corral, "/", urlencode(form).encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 200 and b"<PutMetricDataResponse" in answer
    ask = {
        "Namespace": namespace, "MetricName": "m", "Dimensions": [{"Name": "a", "Value": "b c"}], "Period": 300,
        "StartTime": EpochSeconds(time.time() - 600), "EndTime": EpochSeconds(time.time() + 60),
        "Statistics": ["SampleCount", "Sum"],
    }  # fmt: skip
    path = "/service/GraniteServiceVersion20100801/operation/"
    cbor = {"smithy-protocol": "rpc-v2-cbor", "Content-Type": "application/cbor", "Accept": "application/cbor"}
    status, answer = posted(corral, f"{path}GetMetricStatistics", cbor_from_value(ask), cbor)
    [point] = value_from_cbor(answer)["Datapoints"]
    assert status == 200 and (point["SampleCount"], point["Sum"], point["Unit"]) == (4, 17.5, "None")
    form |= {"MetricData.member.1.StorageResolution": "2"}
    status, answer = posted(corral, "/", urlencode(form).encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 400 and b"<Code>InvalidParameterValue</Code>" in answer
    status, answer = posted(corral, f"{path}GetMetricStatistics", cbor_from_value({**ask, "Period": 7}), cbor)
    assert status == 400 and value_from_cbor(answer)["__type"].endswith("InvalidParameterValueException")


def posted(corral, path, body, headers):
    request = AWSRequest("POST", corral.url + path, headers=headers, data=body)
    keys = corral.keys
    SigV4Auth(Credentials(keys["access_key"], keys["secret_key"]), "monitoring", "us-east-1").add_auth(request)
    sent = Request(corral.url + path, data=body, headers=dict(request.headers.items()), method="POST")
    try:
        with urlopen(sent) as answer:
            return answer.status, answer.read()
    except HTTPError as refused:
        return refused.code, refused.read()
