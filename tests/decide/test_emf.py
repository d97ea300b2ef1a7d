"""Metrics embedded in log events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.logs.emf import BATCH_COST_MAX, BATCH_POINTS_MAX, EVENT_POINTS_MAX, _points, batch_points, embedded_points
from corral.model.metric import Metric, Point

EVENT_MS = 1_700_000_000_000


def points(root: Any) -> list[Point]:
    return list(embedded_points(root if isinstance(root, str) else json.dumps(root), "r", EVENT_MS))


def event(value: Any = 5, dimensions: Any = None, **metric: Any) -> dict[str, Any]:
    directive = {"Namespace": "Demo", "Dimensions": dimensions or [["Service"]], "Metrics": [{"Name": "Load", **metric}]}
    return {"_aws": {"Timestamp": EVENT_MS + 1500, "CloudWatchMetrics": [directive]}, "Service": "api", "Load": value, "Host": "h"}


def test_one_metric() -> None:
    metric = Metric("r", "Demo", "Load", (("Service", "api"),))
    assert points(event(Unit="Count", StorageResolution=1)) == [Point(metric, EVENT_MS / 1000 + 1.5, 5.0, "Count", 1)]
    assert points(event()) == [Point(metric, EVENT_MS / 1000 + 1.5, 5.0, "None", 60)]


def test_several_values_and_several_sets_of_dimensions() -> None:
    found = points(event([1, 2.5, 1], [["Service"], ["Host", "Service"], []]))
    assert [point.metric.dimensions for point in found] == [(("Service", "api"),), (("Host", "h"), ("Service", "api")), ()]
    assert found[0].sample == [(1.0, 1.0), (2.5, 1.0), (1.0, 1.0)]


def test_the_older_form_of_the_cloudwatch_agent() -> None:
    directive = {
        "Namespace": "ECS/ContainerInsights/Prometheus",
        "Dimensions": [["ClusterName", "ServiceName"]],
        "Metrics": [{"Name": "DCGM_FI_DEV_GPU_UTIL"}],
    }
    [point] = points({
        "CloudWatchMetrics": [directive], "ClusterName": "c", "ServiceName": "s", "Timestamp": str(EVENT_MS), "Version": "0",
        "DCGM_FI_DEV_GPU_UTIL": 93, "gpu": "0",
    })  # fmt: skip
    assert point.metric == Metric(
        "r", "ECS/ContainerInsights/Prometheus", "DCGM_FI_DEV_GPU_UTIL", (("ClusterName", "c"), ("ServiceName", "s"))
    )
    assert (point.at_s, point.sample) == (EVENT_MS / 1000, 93.0)


def wide(metrics: int, sets: int, values: Any = 1, letters: int = 0) -> str:
    names = [f"m{number}" for number in range(metrics)]
    keys = [f"d{number}" for number in range(sets)]
    directive = {"Namespace": "Demo", "Dimensions": [[key] for key in keys], "Metrics": [{"Name": name} for name in names]}
    members = dict.fromkeys(names, values) | {key: key + "x" * letters for key in keys}
    return json.dumps({"_aws": {"Timestamp": EVENT_MS, "CloudWatchMetrics": [directive]}, **members})


def test_the_points_of_an_event_and_of_a_batch_are_limited() -> None:
    assert len(batch_points([(EVENT_MS, wide(30, 20))], "r")) == 600
    assert len(batch_points([(EVENT_MS, wide(100, 2000))], "r")) == EVENT_POINTS_MAX
    assert len(list(embedded_points(wide(101, 1), "r", EVENT_MS))) == 100
    small = [(EVENT_MS, wide(1, 1))] * BATCH_POINTS_MAX
    assert len(batch_points(small, "r")) == BATCH_POINTS_MAX
    assert len(batch_points([(EVENT_MS, wide(30, 20))] * 100, "r")) == BATCH_POINTS_MAX
    assert len(batch_points([(EVENT_MS, wide(30, 20))] * 100, "r", 150)) == 150
    assert len(batch_points([(EVENT_MS, wide(30, 20, letters=1000))] * 100, "r")) < BATCH_COST_MAX / 1000
    assert len(batch_points([(EVENT_MS, wide(30, 20, values=[1] * 100))] * 100, "r")) <= BATCH_COST_MAX / 1000


def test_an_event_without_a_timestamp_has_the_time_of_the_log_event() -> None:
    root = event()
    del root["_aws"]["Timestamp"]
    assert points(root)[0].at_s == EVENT_MS / 1000


@pytest.mark.parametrize(
    "root",
    [
        "plain text about CloudWatchMetrics",
        '["CloudWatchMetrics"]',
        {},
        {"_aws": 5},
        {"_aws": {"CloudWatchMetrics": "no"}},
        {"_aws": {"CloudWatchMetrics": ["no", {"Namespace": 5}, {"Namespace": "Demo"}, {"Namespace": "Demo", "Metrics": [5, {}]}]}},
        event("text"),
        event(True),
        event([]),
        event([1, "x"]),
        event([1] * 101),
        event(None),
        event(5, [["Nowhere"]]),
        event(5, ["Service"]),
        event(5, [["Service"] * 31]),
        event(1e300),
    ],
)
def test_invalid_directives_make_no_metrics(root: Any) -> None:
    assert points(root) == []


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["Load", "Service", "Demo", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["_aws", "CloudWatchMetrics", "Namespace", "Dimensions", "Metrics", "Name", "Load", "Timestamp", "Unit"]
            ),
            inner,
        )
    ),
    max_leaves=30,
)


@given(NESTED)
def test_any_document_is_accepted(root: Any) -> None:
    points({"_aws": root, "Load": 1})
    points(json.dumps(root))


def test_the_work_of_an_event_is_bounded() -> None:
    """Each member is read once, however many directives name it, and a list of more than 100 values is not read."""

    class Counted(list):
        reads = 0

        def __iter__(self) -> Any:
            Counted.reads += 1
            return super().__iter__()

    directive = {"Namespace": "Demo", "Metrics": [{"Name": "Load"}] * 100}
    root = {"_aws": {"CloudWatchMetrics": [directive] * 150}, "Load": Counted([1.0] * 100)}
    values: dict[str, Any] = {}
    found = [point for each in [directive] * 150 for point in _points(root, each, values, "r", 0.0)]
    assert len(found) == 15_000 and Counted.reads == 1
    assert points(event([1.0] * 101)) == []
    many = event() | {"Unread": [[]] * 20_000}
    assert points(many) == [] and len(points(many | {"Unread": [[]] * 1_000})) == 1
