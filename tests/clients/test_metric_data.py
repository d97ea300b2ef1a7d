"""GetMetricData: series, metric math, searches, Metrics Insights, labels and pages, through boto3."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

MINUTE = timedelta(minutes=1)
BASE = datetime.fromtimestamp(time.time() // 60 * 60 - 600, UTC)


@pytest.fixture(scope="module")
def cloudwatch(corral):
    return corral.client("cloudwatch")


@pytest.fixture(scope="module")
def filled(cloudwatch):
    """Errors and requests of two services for five minutes. The second service has no errors in the third minute."""
    data = []
    for minute in range(5):
        for service, errors, requests in (("api", minute, 10), ("web", 2 * minute, 20)):
            dimensions = [{"Name": "service", "Value": service}]
            at = {"Timestamp": BASE + minute * MINUTE, "Dimensions": dimensions}
            data.append({"MetricName": "requests", "Value": requests, **at})
            if (service, minute) != ("web", 2):
                data.append({"MetricName": "errors", "Value": errors, **at})
    cloudwatch.put_metric_data(Namespace="shop", MetricData=data)
    return cloudwatch


def stat(id, name, service, period=60, statistic="Sum", **more):
    metric = {"Namespace": "shop", "MetricName": name, "Dimensions": [{"Name": "service", "Value": service}]}
    return {"Id": id, "MetricStat": {"Metric": metric, "Period": period, "Stat": statistic}, **more}


def math(id, expression, **more):
    return {"Id": id, "Expression": expression, **more}


def ask(cloudwatch, *queries, minutes=5, **more):
    more = {"ScanBy": "TimestampAscending", **more}
    return cloudwatch.get_metric_data(MetricDataQueries=list(queries), StartTime=BASE, EndTime=BASE + minutes * MINUTE, **more)


def results(cloudwatch, *queries, **more):
    return {(each["Id"], each["Label"]): each["Values"] for each in ask(cloudwatch, *queries, **more)["MetricDataResults"]}


def test_series(filled):
    [found] = ask(filled, stat("m1", "errors", "api"))["MetricDataResults"]
    assert found["Values"] == [0, 1, 2, 3, 4] and found["Timestamps"] == [BASE + minute * MINUTE for minute in range(5)]
    assert (found["Label"], found["StatusCode"]) == ("errors", "Complete")
    [newest_first] = ask(filled, stat("m1", "errors", "api"), ScanBy="TimestampDescending")["MetricDataResults"]
    assert newest_first["Values"] == [4, 3, 2, 1, 0]
    assert results(filled, stat("m1", "nothing", "api")) == {("m1", "nothing"): []}
    assert results(filled, stat("m1", "errors", "api", period=300, statistic="p50", Label="half")) == {("m1", "half"): [2]}


def test_metric_math(filled):
    assert results(
        filled,
        math("rate", "100 * total / SUM(METRICS('req'))", Label="errors in %"),
        math("total", "SUM([errors_api, errors_web])", ReturnData=False),
        stat("errors_api", "errors", "api", ReturnData=False),
        stat("errors_web", "errors", "web", ReturnData=False),
        stat("req_api", "requests", "api", ReturnData=False),
        stat("req_web", "requests", "web", ReturnData=False),
    ) == {("rate", "errors in %"): [pytest.approx(value) for value in (0, 10, 100 * 2 / 30, 30, 40)]}
    web = stat("m1", "errors", "web", ReturnData=False)
    assert results(filled, web, math("e1", "FILL(m1, -1)")) == {("e1", "e1"): [0, 2, -1, 6, 8]}
    assert results(filled, web, math("e1", "TIME_SERIES(MAX(m1))")) == {("e1", "e1"): [8] * 5}
    assert results(filled, web, math("e1", "RATE(FILL(m1, LINEAR))")) == {("e1", "e1"): [2 / 60] * 4}


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([math("e1", "m1 + 1")], "Error in expression 'e1': There is no query with the id 'm1'"),
        ([math("e1", "e2"), math("e2", "e1")], "refers to itself"),
        ([math("e1", "1 +")], "Error in expression 'e1': The expression ends too early"),
        ([math("e1", "1 + 1")], "returns a scalar"),
        ([stat("m1", "errors", "api"), math("e1", "ANOMALY_DETECTION_BAND(m1)")], "does not support the function ANOMALY"),
        ([math("e1", "SERVICE_QUOTA(e2)"), math("e2", "TIME_SERIES(1)")], "does not support the function SERVICE_QUOTA"),
        ([stat("M1", "errors", "api")], "must begin with a lowercase letter"),
        ([stat("m1", "errors", "api"), stat("m1", "errors", "web")], "are not unique"),
        ([{"Id": "m1"}], "At least one of the parameters"),
        ([{**stat("m1", "errors", "api"), "Expression": "1"}], "mutually exclusive"),
        ([stat("m1", "errors", "api", statistic="Mode")], "Stat is not supported"),
        ([stat("m1", "errors", "api", period=61)], "must be 1, 5, 10, 20, 30 or a multiple of 60"),
        ([math("e1", "SELECT SUM(errors FROM shop", Period=60)], r"Unexpected 'FROM' in the query: expected \)"),
    ],
)  # fmt: skip
def test_invalid_queries_are_refused(filled, queries, words):
    with pytest.raises(ClientError, match=words) as refused:
        ask(filled, *queries)
    assert refused.value.response["Error"]["Code"] == "ValidationError"


def test_expressions_with_too_many_datapoints_are_refused(filled):
    """A short expression can use a large array many times."""
    series = math("s", "TIME_SERIES(1)", Period=1, ReturnData=False)
    array = math("a", f"[{', '.join(['s'] * 600)}]", ReturnData=False)
    assert results(filled, series, array, math("e1", "SUM(a)")) == {("e1", "e1"): [600] * 300}
    with pytest.raises(ClientError, match="expression 'e1': The parts of all expressions have more than 2,016,000 datapoints"):
        ask(filled, series, array, math("e1", " + ".join(["SUM(a)"] * 100)))
    with pytest.raises(ClientError, match="expression 'e1': The parts of all expressions have more than 2,016,000 datapoints"):
        ask(filled, series, array, math("e1", "a" + " + 1" * 100))


def test_invalid_times_are_refused(filled):
    with pytest.raises(ClientError, match="must not equal"):
        ask(filled, stat("m1", "errors", "api"), minutes=0)
    with pytest.raises(ClientError, match="greater than StartTime"):
        ask(filled, stat("m1", "errors", "api"), minutes=-1)


def test_search(filled):
    found = results(filled, math("e1", """SEARCH('{shop, service} MetricName="errors"', 'Sum', 60)"""))
    assert found == {("e1", "api"): [0, 1, 2, 3, 4], ("e1", "web"): [0, 2, 6, 8]}
    total = math("e1", """SUM(SEARCH('{shop, service} (errors OR requests) NOT web', 'Sum', 300))""")
    assert results(filled, total) == {("e1", "e1"): [10 + 50]}
    labelled = math("e1", """SEARCH('{shop, service} requests', 'Sum', 300)""", Label="${LABEL}: ${MAX} of ${PROP('MetricName')}")
    assert set(results(filled, labelled)) == {("e1", "api: 50 of requests"), ("e1", "web: 100 of requests")}
    assert results(filled, math("e1", "SEARCH('{elsewhere} x', 'Sum', 300)")) == {}


def test_searches_are_limited(filled):
    data = [
        {"MetricName": "many", "Value": 1, "Timestamp": BASE, "Dimensions": [{"Name": "n", "Value": str(n)}]} for n in range(300)
    ]
    filled.put_metric_data(Namespace="many", MetricData=data)
    search = "SEARCH('{many, n} many', 'Sum', 60)"
    found = ask(filled, math("e1", search), math("e2", search))
    assert len(found["MetricDataResults"]) == 500
    assert [message["Code"] for message in found["Messages"]] == ["MaxMetricsExceeded"]
    hundred = [math(f"e{n}", "SEARCH('{shop, service} requests', 'Sum', 300)") for n in range(100)]
    assert len(ask(filled, *hundred)["MetricDataResults"]) == 200
    with pytest.raises(ClientError, match="more than 100 SEARCH functions: it has 101"):
        ask(filled, *hundred, math("more", "SUM(SEARCH('{shop, service} errors', 'Sum', 300))"))
    filled_in = [math(f"f{n}", "FILL(e1, 0)") for n in range(8)]
    with pytest.raises(ClientError, match="more than 1,008,000 datapoints"):
        ask(filled, math("e1", "SEARCH('{many, n} many', 'Sum', 1)"), *filled_in, minutes=90)


def test_metrics_insights(filled):
    def select(query):
        return results(filled, math("q1", query, Period=300))

    assert select('SELECT SUM(requests) FROM "shop"') == {("q1", "q1"): [150]}
    assert select("SELECT MAX(errors) FROM SCHEMA(shop, service) GROUP BY service ORDER BY MAX() DESC") == {
        ("q1", "web"): [8],
        ("q1", "api"): [4],
    }
    assert select("SELECT COUNT(errors) FROM shop WHERE service != 'api' GROUP BY service LIMIT 1") == {("q1", "web"): [4]}
    assert select("SELECT AVG(errors) FROM SCHEMA(shop)") == {("q1", "q1"): []}
    doubled = results(filled, math("q1", "SELECT SUM(requests) FROM shop", Period=300, ReturnData=False), math("e1", "q1 * 2"))
    assert doubled == {("e1", "e1"): [300]}


def test_labels(filled):
    def label(text, **more):
        [(_, found)] = results(filled, stat("m1", "errors", "api", Label=text), **more)
        return found

    assert label("${LABEL} ${MIN}-${MAX}, ${AVG} ${SUM} ${LAST}") == "errors 0-4, 2 10 4"
    assert label("${PROP('Dim.service')} ${PROP('Stat')} ${PROP('Period')} ${UNKNOWN}") == "api Sum 60 ${UNKNOWN}"
    assert label("${FIRST_TIME}") == BASE.strftime("%Y-%m-%d %H:%M:%S")
    east = (BASE + timedelta(hours=1, minutes=30)).strftime("%Y-%m-%d %H:%M:%S")
    assert label("${FIRST_TIME}", LabelOptions={"Timezone": "+0130"}) == east
    assert re.fullmatch(r"4m \d+m(\d+s)?", label("${FIRST_LAST_TIME_RANGE} ${LAST_TIME_RELATIVE}"))


def test_default_labels(filled):
    """The name of the metric, and what differs between the queries of the request."""

    def labels(*queries):
        found = ask(filled, *(stat(f"m{at}", *args, **more) for at, (args, more) in enumerate(queries)))["MetricDataResults"]
        return [each["Label"] for each in found]

    api, web, requests = ("errors", "api"), ("errors", "web"), ("requests", "api")
    assert labels((api, {})) == ["errors"]
    assert labels((api, {}), (requests, {})) == ["errors", "requests"]
    assert labels((api, {}), (web, {})) == ["errors api", "errors web"]
    assert labels((api, {}), (api, {"statistic": "Maximum"})) == ["errors Sum", "errors Maximum"]
    assert labels((api, {}), (api, {"period": 300})) == ["errors 60", "errors 300"]
    assert labels((api, {}), (web, {"statistic": "p50", "period": 300})) == ["errors api Sum 60", "errors web p50 300"]
    assert labels((api, {"Label": "mine"}), (web, {"Label": "${LABEL}!"})) == ["mine", "errors web!"]


def test_datapoints_with_several_units(cloudwatch):
    data = [{"MetricName": "time", "Unit": unit, "Value": value, "Timestamp": BASE} for unit, value in
            (("Seconds", 60), ("Milliseconds", 60000), ("Milliseconds", 1000))]  # fmt: skip
    cloudwatch.put_metric_data(Namespace="units", MetricData=data)
    metric = {"Metric": {"Namespace": "units", "MetricName": "time"}, "Period": 60, "Stat": "Sum"}
    queries = [{"Id": "any", "MetricStat": metric}, {"Id": "seconds", "MetricStat": {**metric, "Unit": "Seconds"}}]
    found, seconds = ask(cloudwatch, *queries)["MetricDataResults"]
    assert found["Values"] == [61000] and seconds["Values"] == [60] and "Messages" not in seconds
    text = "Multiple units returned: '[Milliseconds, Seconds]'"
    assert found["Messages"] == [{"Code": "MultipleUnits", "Value": text}]


@pytest.mark.parametrize("scan", ["TimestampAscending", "TimestampDescending"])
def test_pages_of_datapoints(filled, scan):
    queries = [stat("m1", "errors", "api"), stat("m2", "requests", "web"), stat("m3", "nothing", "web")]
    whole = ask(filled, *queries, ScanBy=scan)["MetricDataResults"]
    together: dict[str, list[float]] = {}
    token, pages = {}, 0
    while True:
        answer = ask(filled, *queries, ScanBy=scan, MaxDatapoints=3, **token)
        assert sum(len(each["Values"]) for each in answer["MetricDataResults"]) <= 3
        for each in answer["MetricDataResults"]:
            together.setdefault(each["Id"], []).extend(zip(each["Timestamps"], each["Values"]))
            assert each["StatusCode"] == ("Complete" if len(together[each["Id"]]) in (0, 5) else "PartialData")
        pages += 1
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}
    assert pages == 4 and together == {each["Id"]: list(zip(each["Timestamps"], each["Values"])) for each in whole}
    with pytest.raises(filled.exceptions.InvalidNextToken):
        ask(filled, *queries, NextToken="bm9uc2Vuc2U=")
