"""Search expressions and Metrics Insights queries, with the examples of AWS's documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.metrics.search import InvalidSearch, parse_search, tokens_of
from corral.decide.metrics.sql import DimensionCondition, InvalidQuery, Select, is_query, parse_query
from corral.model.metric import Metric


def metric(namespace: str, name: str, **dimensions: str) -> Metric:
    return Metric("us-east-1", namespace, name, tuple(sorted(dimensions.items())))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("CustomCount1", ["custom", "count", "1"]),
        ("SDBFailure", ["sdb", "failure"]),
        ("Project2-trial333", ["project", "2", "trial", "333"]),
        ("couNT", ["cou", "nt"]),
        ("Network-Errors_2", ["network", "errors", "2"]),
    ],
)
def test_tokens(text, tokens):
    assert tokens_of(text).lower().split() == tokens


CUSTOM = metric("MyNamespace", "CustomCount1")
NETWORK = metric("a", "Network-Errors-2")
NETWORK_2 = metric("a", "NetworkErrors2")
CPU = metric("AWS/EC2", "CPUUtilization", InstanceId="i-1234567890123456")
MICRO = metric("AWS/EC2", "CPUUtilization", InstanceType="t2.micro")
ALL_CPU = metric("AWS/EC2", "CPUUtilization")


@pytest.mark.parametrize(
    ("query", "found", "missed"),
    [
        ("count", [CUSTOM], [NETWORK]),
        ("COUNT", [CUSTOM], []),
        ("couNT", [], [CUSTOM]),
        ("CustomCount", [CUSTOM], []),
        ("Count1", [CUSTOM], []),
        ("customcount", [], [CUSTOM]),
        ("customcount1", [], [metric("a", "CustomCount12")]),
        ("count1", [], [CUSTOM]),
        ('{MyNamespace}, "CustomCount1"', [CUSTOM], []),
        ('{MyNamespace}, "customcount1"', [], [CUSTOM]),
        ('{MyNamespace}, "Custom"', [], [CUSTOM]),
        ("network/errors", [NETWORK, NETWORK_2], [CUSTOM]),
        ("network+errors", [NETWORK, NETWORK_2], []),
        ("Network_Errors", [NETWORK, NETWORK_2], []),
        ('"Network-Errors-2"', [NETWORK], [NETWORK_2]),
        ('"Network_Errors_2"', [], [NETWORK]),
        ('{AWS/EC2,InstanceId} MetricName="CPUUtilization"', [CPU], [MICRO, ALL_CPU]),
        ('{AWS/EC2} MetricName="CPUUtilization"', [ALL_CPU], [CPU, MICRO]),
        ("{AWS/EC2,InstanceType} InstanceType=micro", [MICRO], [CPU]),
        ('InstanceType="t2.micro" Namespace="AWS/EC2"', [MICRO], [CPU]),
        ('MetricName="CPUUtilization" NOT i-1234567890123456', [MICRO, ALL_CPU], [CPU]),
        ("NOT Namespace=AWS", [CUSTOM, NETWORK], [CPU, MICRO]),
        ("(EC2 OR EBS) AND MetricName=ReadOps", [metric("AWS/EBS", "VolumeReadOps"), metric("AWS/EC2", "DiskReadOps")], [CPU]),
        ("(EC2 OR EBS) MetricName=ReadOps", [metric("AWS/EBS", "VolumeReadOps")], [metric("AWS/S3", "ReadOps")]),
        (
            '{AWS/Lambda,FunctionName} MetricName="Errors" OR (MetricName="Invocations" AND (ProjectA OR ProjectB))',
            [metric("AWS/Lambda", "Errors", FunctionName="x"), metric("AWS/Lambda", "Invocations", FunctionName="ProjectB-f")],
            [metric("AWS/Lambda", "Invocations", FunctionName="x"), metric("AWS/Lambda", "Throttles", FunctionName="x")],
        ),
        (
            '{"My Namespace", "Dimension@Name"}, "Custom:Name[Special_Characters"',
            [Metric("us-east-1", "My Namespace", "Custom:Name[Special_Characters", (("Dimension@Name", "v"),))],
            [],
        ),
        (r'"Europe\\France Traffic\(Network\)"', [metric("n", "Europe\\France Traffic(Network)")], []),
    ],
)
def test_searches(query, found, missed):
    search = parse_search(query)
    for each in (*found, *missed):
        assert search.matches(each) is (each in found)
        if each in found:
            assert search.name in (None, each.name) and search.namespace in (None, each.namespace)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "{}",
        "{,}",
        "{a,}",
        '{a"b"}',
        '{"a}',
        "{" + " " * 1000 + '"}',
        "{a",
        "(a",
        "a OR",
        "NOT",
        "AND a",
        "MetricName=",
        "a)",
        '"open',
        "-",
        "(" * 100 + "a",
        "x" * 1025,
    ],
)
def test_invalid_searches_are_refused(query):
    with pytest.raises(InvalidSearch):
        parse_search(query)


@given(st.text(alphabet='aB1 "()=\\{},NOTANDR', max_size=40))
def test_any_search_is_parsed_or_refused(query):
    try:
        search = parse_search(query)
    except InvalidSearch:
        return
    if search.matches(CPU):
        assert search.name in (None, CPU.name)


def test_insights_queries():
    assert is_query("  select avg(x) from y") and not is_query("SELECTED + 1")
    whole = """SELECT SUM(RequestCount) FROM SCHEMA("AWS/ApplicationELB", LoadBalancer, AvailabilityZone)
        WHERE LoadBalancer = 'app/load-balancer-1' AND AvailabilityZone != 'a'
        GROUP BY AvailabilityZone ORDER BY MAX() DESC LIMIT 5"""
    assert parse_query(whole) == Select(
        "Sum",
        "RequestCount",
        "AWS/ApplicationELB",
        frozenset({"LoadBalancer", "AvailabilityZone"}),
        (DimensionCondition("LoadBalancer", True, "app/load-balancer-1"), DimensionCondition("AvailabilityZone", False, "a")),
        ("AvailabilityZone",),
        "Maximum",
        True,
        5,
    )
    assert parse_query('select avg("Bytes\\"Input\\"") from "AWS/EC2"') == Select("Average", 'Bytes"Input"', "AWS/EC2")
    only = parse_query('SELECT AVG(CPUUtilization) FROM SCHEMA("AWS/EC2", InstanceId)')
    assert only.matches(CPU) and not only.matches(MICRO) and not only.matches(ALL_CPU)
    assert parse_query('SELECT AVG(CPUUtilization) FROM SCHEMA("AWS/EC2")').matches(ALL_CPU)
    assert parse_query('SELECT AVG(x) FROM "AWS/EC2" GROUP BY InstanceId').group_of(MICRO) == ("Other",)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x FROM y",
        "SELECT MEDIAN(x) FROM y",
        "SELECT SUM(x)",
        "SELECT SUM(x) FROM y WHERE a = b",
        "SELECT SUM(x) FROM y GROUP x",
        "SELECT SUM(x) FROM y LIMIT 501",
        "SELECT SUM(x) FROM y ORDER BY x",
        "SELECT SUM(x) FROM y;",
    ],
)
def test_invalid_insights_queries_are_refused(query):
    with pytest.raises(InvalidQuery):
        parse_query(query)


def test_many_terms_are_compared_with_long_names():
    long = metric("a" * 250, "b", **{f"Dimension{number}": "Ab1" * 80 for number in range(30)})
    search = parse_search(" OR ".join(f"xY{number}" for number in range(110)))
    assert not any(search.matches(long) for _ in range(20))
