"""The metric store compared with a plain list of samples: packing, buffer, roll-up, savepoints and statistics."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.metrics.statistics import parse_statistic, value_of
from corral.model.metric import RETENTION_S, Metric, Point, StatisticSet, Summary
from corral.telemetry import MetricStore
from corral.telemetry.buffer import FLUSH_S
from corral.telemetry.dashboards import Dashboard
from corral.telemetry.metrics import ROW_MAX_BYTES
from corral.telemetry.packing import bucket_middle, bucket_of
from corral.telemetry.rollup import SERIES_RETENTION_S, roll_up

EXAMPLES = int(os.environ.get("CORRAL_EXAMPLES", "15"))
START = 1_700_000_000
DAY = 86_400
METRICS = [Metric("us-east-1", "n", "m"), Metric("us-east-1", "n", "m", (("a", "1"),)), Metric("eu-west-1", "n", "m")]
BUCKET_ERROR = 0.021  # half a bucket, and a little for rounding


@dataclass
class Sample:
    metric: Metric
    unit: str
    at_s: int
    value: float
    weight: float


class World:
    """The store, and a list of every sample that was stored."""

    def __init__(self, path: Path | None = None) -> None:
        self.store = MetricStore(path)
        self.now_s = float(START)
        self.samples: list[Sample] = []

    def put(self, points: list[Point], *, own: bool = False, fail: bool = False) -> None:
        self.store.begin()
        self.store.savepoint()
        (self.store.append_buffered if own else self.store.append)(points, self.now_s)
        if fail:
            self.store.rollback_to_savepoint()
        else:
            self.store.release()
            for point in points:
                second = int(point.at_s)
                second -= second % 60 if point.resolution_s == 60 else 0
                pairs = [(point.sample, 1.0)] if isinstance(point.sample, float) else point.sample
                self.samples += [Sample(point.metric, point.unit, second, *pair) for pair in pairs]
        self.store.commit()

    def roll_up(self, limit: int = 7) -> None:
        """Roll up as the reconciler does: some rows in each transaction, until none is left."""
        while True:
            self.store.begin()
            self.store.flush()
            moved = roll_up(self.store, self.now_s, limit)
            self.store.commit()
            if moved < limit:
                return

    def expected(self, metric: Metric, start_s: int, end_s: int, period_s: int, unit: str | None) -> dict[int, list[Sample]]:
        found: dict[int, list[Sample]] = {}
        for sample in self.samples:
            if sample.metric == metric and unit in (None, sample.unit) and start_s <= sample.at_s < end_s:
                found.setdefault(sample.at_s - (sample.at_s - start_s) % period_s, []).append(sample)
        return found

    def check(
        self, metric: Metric, start_s: int, end_s: int, period_s: int, unit: str | None = None, store: MetricStore | None = None
    ) -> None:
        window = {"start_s": start_s, "end_s": end_s, "period_s": period_s, "now_s": self.now_s, "unit": unit}
        expected = self.expected(metric, start_s, end_s, period_s, unit)
        for values in (False, True):
            found = (store or self.store).read(metric, **window, values=values)
            assert found.keys() == expected.keys()
            for at_s, samples in expected.items():
                check_summary(found[at_s], samples, values=values)


def check_summary(found: Summary, samples: list[Sample], *, values: bool) -> None:
    assert found.count == pytest.approx(sum(sample.weight for sample in samples))
    assert found.sum == pytest.approx(sum(sample.weight * sample.value for sample in samples), abs=1e-6)
    assert found.minimum == min(sample.value for sample in samples)
    assert found.maximum == max(sample.value for sample in samples)
    if not values or found.minimum < 0:
        return
    truth = Summary()
    for sample in samples:
        truth.add(sample.value, sample.weight)
    for text in ("p1", "p50", "p90", "tm90", "PR(10:1000)"):
        statistic = parse_statistic(text)
        assert statistic is not None
        told, true = value_of(found, statistic), value_of(truth, statistic)
        assert told is not None and true is not None
        if found.exact:
            assert told == pytest.approx(true)
        elif text[0] != "P":  # a rank may jump where a bucket holds the boundary
            assert told == pytest.approx(true, rel=BUCKET_ERROR + 0.02 * (text == "tm90"), abs=1e-9)


VALUE = st.floats(0, 1e6).map(lambda value: round(value, 3))
SAMPLE = VALUE | st.lists(st.tuples(VALUE, st.integers(1, 50).map(float)), min_size=1, max_size=5, unique_by=lambda pair: pair[0])


@st.composite
def histories(draw):
    """Steps of a test: points of all kinds and ages, failures, time, and roll-ups."""
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["put", "put", "own", "pass", "roll", "burst"]))
        if kind == "pass":
            steps.append((kind, draw(st.sampled_from([1, 30, 61, 3600, 4 * 3600, 2 * DAY, 16 * DAY, 70 * DAY]))))
        elif kind == "burst":
            steps.append((kind, draw(st.integers(0, 2**32))))
        elif kind != "roll":
            points = draw(
                st.lists(
                    st.tuples(
                        st.sampled_from(METRICS),
                        st.sampled_from([-13 * DAY, -5 * 3600, -3 * 3600, -600, -61, -1, 0, 3600]) if kind == "put" else st.just(0),
                        st.integers(-59, 0),
                        SAMPLE,
                        st.sampled_from(["None", "Seconds"]),
                        st.sampled_from([1, 60]),
                    ),
                    min_size=1,
                    max_size=8,
                )
            )
            steps.append((kind, points, draw(st.booleans()) and draw(st.booleans())))
    return steps


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_the_store_agrees_with_a_list(history, random: Random):
    world = World()
    for kind, *rest in history:
        if kind == "pass":
            world.now_s += rest[0]
        elif kind == "roll":
            world.roll_up()
        elif kind == "burst":  # many values in one minute: the row is packed anew, and then bucketed
            values = Random(rest[0])
            world.put([Point(METRICS[0], world.now_s, [(values.expovariate(0.01), 2.0) for _ in range(500)])])
        else:
            points = [
                Point(metric, world.now_s + age + jitter, sample, unit, resolution_s)
                for metric, age, jitter, sample, unit, resolution_s in rest[0]
            ]
            world.put(points, own=kind == "own", fail=rest[1])
        now = int(world.now_s)
        for metric in METRICS:
            recent = now - random.choice([600, 3 * 3600])  # seconds are told apart for three hours
            world.check(
                metric, recent // 60 * 60 + 60, now + 3700, random.choice([1, 10, 60, 300]), random.choice([None, "Seconds"])
            )
            old = now - 400 * DAY
            world.check(metric, old - old % 3600, now + 3700, random.choice([3600, 7200, DAY]))
    world.now_s += 400 * DAY
    world.roll_up()
    for metric in METRICS:
        world.check(metric, int(world.now_s) // 3600 * 3600 - 450 * DAY, int(world.now_s), 3600)
    (fine,) = world.store.execute("SELECT count(*) FROM packed WHERE step_s < 3600").fetchone()
    assert fine == 0


def test_old_samples_and_series_are_deleted():
    world = World()
    for metric in METRICS:
        world.put([Point(metric, world.now_s - age, 1.0) for age in (0, DAY, 13 * DAY)])
    world.now_s += RETENTION_S[3600] - DAY
    world.roll_up()
    assert world.store.read(METRICS[0], start_s=0, end_s=int(world.now_s), period_s=3600, now_s=world.now_s)
    world.now_s += SERIES_RETENTION_S
    world.roll_up()
    for table in ("packed", "series", "series_dimension"):
        assert world.store.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    world.samples.clear()
    world.put([Point(METRICS[1], world.now_s, 2.0)])
    world.check(METRICS[1], int(world.now_s) // 60 * 60, int(world.now_s) + 60, 60)


def test_the_length_of_a_row_is_bounded():
    world = World()
    for batch in range(30):
        values = Random(batch)
        world.put([Point(METRICS[0], START + 30, values.lognormvariate(3, 2), "None", 1) for _ in range(1000)])
    ((length,),) = world.store.execute("SELECT length(data) FROM packed").fetchall()
    assert length < 2 * ROW_MAX_BYTES
    world.check(METRICS[0], START - START % 60, START + 60, 60)


def test_statistic_sets_hide_the_values():
    world = World()
    metric = METRICS[0]
    world.put([Point(metric, START, 5.0)])
    world.store.begin()
    world.store.append([Point(metric, START, StatisticSet(4, 8, 1, 3)), Point(METRICS[1], START, StatisticSet(4, 8, 2, 2))], START)
    world.store.commit()

    def read(metric):
        [found] = world.store.read(
            metric, start_s=START - 3600, end_s=START + 60, period_s=DAY, now_s=world.now_s, values=True
        ).values()
        return found.count, found.sum, found.minimum, found.maximum, found.weights

    for _ in range(2):
        assert read(metric) == (5, 13, 1, 5, None)
        assert read(METRICS[1]) == (4, 8, 2, 2, {2.0: 4.0})
        world.now_s += 5 * 3600
        world.roll_up()


def test_a_rollback_leaves_no_points(tmp_path):
    world = World(tmp_path / "metrics.db")
    store = world.store
    store.begin()
    store.append([Point(METRICS[0], START, 1.0)], START)
    store.append_buffered([Point(METRICS[1], START, 1.0)], START)
    assert store.read(METRICS[1], start_s=START - 60, end_s=START + 60, period_s=60, now_s=START)  # the writer sees its own
    store.rollback()
    for metric in METRICS:
        assert store.find(metric) is None
        world.check(metric, START - 600, START + 60, 60)
    world.put([Point(METRICS[1], START, 1.0)])
    world.check(METRICS[1], START - 600, START + 60, 60)


def test_readers_count_buffered_points_once(tmp_path):
    """A snapshot from before a flush finds the points in the buffer, a later snapshot in the file."""
    world = World(tmp_path / "metrics.db")
    metric, store = METRICS[0], world.store
    readers = []
    for second in range(3 * int(FLUSH_S)):
        world.now_s = START + second
        world.put([Point(metric, world.now_s, float(second), "Count", 1)], own=True)
        reader = store.reader()
        reader.begin_reading()
        reader.execute("SELECT count(*) FROM series").fetchone()  # the snapshot is taken with the first look
        readers.append(reader)
        for each in readers[-int(FLUSH_S) :]:
            world.check(metric, START - 60, START + 300, 60, store=each)
    (flushed,) = store.execute("SELECT number FROM flushed").fetchone()
    assert flushed == 2
    for reader in readers:
        reader.close()
    store.close()
    world.store = MetricStore(tmp_path / "metrics.db")  # closed in order: nothing is lost
    world.check(metric, START - 60, START + 300, 1)
    world.put([Point(metric, world.now_s, 7.0, "Count", 1)], own=True)
    world.check(metric, START - 60, START + 300, 1)


def test_the_newest_second():
    world = World()
    metric = METRICS[0]
    assert world.store.newest(metric, since_s=START - 60, now_s=START) is None
    world.put([Point(metric, START - 2, 1.0, "Count", 1), Point(metric, START - 1, 2.0, "Count", 1)])
    world.put([Point(metric, START - 1, 4.0, "Count", 1)], own=True)
    second, found = world.store.newest(metric, since_s=START - 60, now_s=START)
    assert (second, found.count, found.sum) == (START - 1, 2, 6)
    assert world.store.newest(metric, since_s=START, now_s=START) is None
    assert world.store.newest(metric, since_s=START - 60, now_s=START, unit="Bytes") is None


@given(st.floats(2.0**-360, 2.0**360))
def test_the_middle_of_a_bucket_is_near_its_values(value):
    middle = bucket_middle(bucket_of(value))
    assert middle == pytest.approx(value, rel=BUCKET_ERROR)
    assert bucket_of(middle) == bucket_of(value)
    assert bucket_middle(bucket_of(0.0)) == 0


def test_pages_of_series_continue_after_the_last():
    world = World()
    names = [(f"n{at % 3}", f"m{at % 4}", (("id", str(at % 5)), ("kind", "x"))) for at in range(60)]
    metrics = sorted({Metric("us-east-1", *name) for name in names})
    world.put([Point(metric, START, 1.0) for metric in Random(1).sample(metrics, len(metrics))])
    for filters, wanted in [
        ({}, lambda metric: True),
        ({"namespace": "n1"}, lambda metric: metric.namespace == "n1"),
        ({"name": "m2"}, lambda metric: metric.name == "m2"),
        ({"namespace": "n1", "name": "m2"}, lambda metric: metric[1:3] == ("n1", "m2")),
        ({"dimensions": [("id", "3"), ("kind", None)]}, lambda metric: metric.dimensions[0][1] == "3"),
        ({"dimensions": [("kind", None)], "name": "m0"}, lambda metric: metric.name == "m0"),
        ({"dimensions": [("id", "9")]}, lambda metric: False),
    ]:
        found: list[Metric] = []
        while page := world.store.listed("us-east-1", active_since_s=START, after=found[-1] if found else None, limit=7, **filters):
            found += page
        assert found == [metric for metric in metrics if wanted(metric)]
    assert world.store.listed("us-east-1", active_since_s=START + 1) == []
    assert world.store.listed("eu-west-1", active_since_s=0) == []
    for name in ("b", "a2", "a1", "c"):
        world.store.dashboards.put(Dashboard(name, "{}", START))
    assert [each.name for each in world.store.dashboards.page("a", "", 10)] == ["a1", "a2"]
    assert [each.name for each in world.store.dashboards.page("", "a2", 1)] == ["b"]
