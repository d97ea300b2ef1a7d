"""The binary format of samples. A row has the samples of one metric, with one set of dimensions, for sixty time steps. A row is a
list of records, and new records are only appended.

The first byte of a record contains its kind and its step, from 0 to 59. There are four kinds of records:

    value       one sample                                                   9 bytes
    counted     a value, and the number of samples with this value           17 bytes
    set         count, sum, minimum and maximum, but no single values        33 bytes
    bucketed    the same as a set, and the number of samples per bucket      35 bytes, and 6 for each bucket

A step with too many distinct values is stored in buckets. The upper bound of a bucket is 1.04 times its lower bound, so a
percentile that is computed from buckets is wrong by at most 2%. Zero has its own bucket. There are no buckets for negative values,
because CloudWatch computes no percentiles for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import floor, log
from struct import Struct

from corral.model.metric import Sample, StatisticSet, Summary

STEPS = 60  # time steps per row
VALUE, COUNTED, SET, BUCKETED = 0, 1 << 6, 2 << 6, 3 << 6
KIND = 3 << 6
RATIO_LOG = log(1.04)
ZERO_BUCKET = -32768

_value, _counted, _set = Struct("<Bd"), Struct("<Bdd"), Struct("<Bdddd")
_bucketed, _bucket = Struct("<BddddH"), Struct("<hf")
_VALUE_BYTES, _COUNTED_BYTES, _SET_BYTES, _BUCKETED_BYTES, _BUCKET_BYTES = (
    each.size for each in (_value, _counted, _set, _bucketed, _bucket)
)


def pack(step: int, sample: Sample) -> bytes:
    """Return the records for a new sample."""
    if isinstance(sample, float):
        return _value.pack(step, sample)
    if isinstance(sample, StatisticSet):
        count, total, minimum, maximum = sample
        if minimum == maximum and total == minimum * count:  # all samples of the set have the same value
            return _counted.pack(step | COUNTED, minimum, count)
        return _set.pack(step | SET, count, total, minimum, maximum)
    if len(sample) == 1:
        ((value, weight),) = sample
        return _value.pack(step, value) if weight == 1 else _counted.pack(step | COUNTED, value, weight)
    return _pairs(step, sample)


def pack_summary(step: int, summary: Summary, values_max: int) -> bytes:
    """Return the records for a whole period. If all values are known exactly, and at most `values_max` of them are distinct, the
    records contain all values.
    """
    head = summary.count, summary.sum, summary.minimum, summary.maximum
    weights = summary.weights
    if weights is None:
        return _set.pack(step | SET, *head)
    if summary.exact and len(weights) <= values_max:
        return _pairs(step, weights.items())
    if summary.minimum < 0:
        return _set.pack(step | SET, *head)
    buckets: dict[int, float] = {}
    for value, weight in weights.items():
        at = bucket_of(value)
        buckets[at] = buckets.get(at, 0.0) + weight
    return _bucketed.pack(step | BUCKETED, *head, len(buckets)) + b"".join(
        _bucket.pack(at, weight) for at, weight in sorted(buckets.items())
    )


def steps_of(data: bytes) -> dict[int, Summary]:
    """Return the summary of each step that has samples, by step."""
    weights, others = dict[int, dict[float, float]](), list[tuple[int, int, int]]()
    at, end = 0, len(data)
    while at < end:  # without a call for each value, because a row of a cluster has a value of each GPU for each second
        head = data[at]
        if head < COUNTED:
            step, value = _value.unpack_from(data, at)
            weight = 1.0
            at += _VALUE_BYTES
        elif head < SET:
            _, value, weight = _counted.unpack_from(data, at)
            step = head & ~KIND
            at += _COUNTED_BYTES
        else:
            others.append((head & ~KIND, head & KIND, at))
            at += _size(data, at)
            continue
        of_step = weights.get(step)
        if of_step is None:
            of_step = weights[step] = {}
        of_step[value] = of_step.get(value, 0.0) + weight
    found = {step: _exact(of_step) for step, of_step in weights.items()}
    for step, kind, at in others:
        summary = found.get(step)
        if summary is None:
            summary = found[step] = Summary()
        _read(data, kind, at, summary)
    return found


def summary_of(data: bytes, *, values: bool) -> Summary:
    """Return one summary of all samples of a row. Without `values`, the single values (`weights`) are left out."""
    if not values and _is_plain(data):
        return _plain(data)
    summary = Summary() if values else Summary(weights=None)
    for _, kind, at in _records(data):
        _read(data, kind, at, summary)
    return summary


def gather(
    data: bytes, at_s: int, step_s: int, start_s: int, end_s: int, period_s: int, found: dict[int, Summary], *, values: bool
) -> None:
    """Add the samples of a row to `found`, which maps the start of a period to its summary.

    The periods begin at `start_s`, `start_s + period_s`... before `end_s`. The row begins at `at_s`.
    """
    first, last = (at_s - start_s) // period_s, (at_s + (STEPS - 1) * step_s - start_s) // period_s
    if first == last and at_s >= start_s and at_s + STEPS * step_s <= end_s:
        period = start_s + first * period_s
        summary = summary_of(data, values=values)
        if period in found:
            found[period].merge(summary)
        else:
            found[period] = summary
        return
    for step, kind, at in _records(data):
        time_s = at_s + step * step_s
        if start_s <= time_s < end_s:
            period = time_s - (time_s - start_s) % period_s
            known = found.get(period)
            if known is None:
                known = found[period] = Summary() if values else Summary(weights=None)
            _read(data, kind, at, known)


def newest_step(data: bytes) -> tuple[int, Summary]:
    """Return the last step that has samples, and its summary."""
    last = max(step for step, _, _ in _records(data))
    summary = Summary()
    for step, kind, at in _records(data):
        if step == last:
            _read(data, kind, at, summary)
    return last, summary


def repack(data: bytes, values_max: int) -> bytes:
    """Return the same samples in fewer bytes."""
    return b"".join(pack_summary(step, summary, values_max) for step, summary in sorted(steps_of(data).items()))


def move(data: bytes, step: int, values_max: int) -> bytes:
    """Return all samples of a row, packed as one step of a row with longer steps."""
    if len(data) == _VALUE_BYTES:
        return bytes((step,)) + data[1:]
    return pack_summary(step, summary_of(data, values=True), values_max)


def bucket_of(value: float) -> int:
    return floor(log(value) / RATIO_LOG) if value > 0 else ZERO_BUCKET


def bucket_middle(bucket: int) -> float:
    return 0.0 if bucket == ZERO_BUCKET else 1.04 ** (bucket + 0.5)


def _pairs(step: int, pairs: Iterable[tuple[float, float]]) -> bytes:
    counted = step | COUNTED
    return b"".join([_value.pack(step, value) if weight == 1 else _counted.pack(counted, value, weight) for value, weight in pairs])


def _is_plain(data: bytes) -> bool:
    """Whether the row has only records of kind `value`. If so, every ninth byte begins a record."""
    return len(data) % _VALUE_BYTES == 0 and max(data[::_VALUE_BYTES]) < COUNTED


def _plain(data: bytes) -> Summary:
    numbers = Struct("<" + "Bd" * (len(data) // _VALUE_BYTES)).unpack(data)[1::2]
    return Summary(float(len(numbers)), sum(numbers), min(numbers), max(numbers), None)


def _exact(weights: dict[float, float]) -> Summary:
    total = sum([value * weight for value, weight in weights.items()])
    return Summary(sum(weights.values()), total, min(weights), max(weights), weights)


def _size(data: bytes, at: int) -> int:
    """Return the number of bytes of a record."""
    kind = data[at] & KIND
    if kind == VALUE:
        return _VALUE_BYTES
    if kind == COUNTED:
        return _COUNTED_BYTES
    return _SET_BYTES if kind == SET else _BUCKETED_BYTES + _BUCKET_BYTES * int(_bucketed.unpack_from(data, at)[5])


def _records(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (step, kind, offset) for each record."""
    at, end = 0, len(data)
    while at < end:
        head = data[at]
        kind = head & KIND
        yield head & ~KIND, kind, at
        at += _size(data, at)


def _read(data: bytes, kind: int, at: int, summary: Summary) -> None:
    if kind == VALUE:
        summary.add(_value.unpack_from(data, at)[1])
        return
    if kind == COUNTED:
        _, value, weight = _counted.unpack_from(data, at)
        summary.add(value, weight)
        return
    if kind == SET:
        _, count, total, minimum, maximum = _set.unpack_from(data, at)
        summary.merge(Summary(count, total, minimum, maximum, None))
        return
    _, count, total, minimum, maximum, buckets = _bucketed.unpack_from(data, at)
    begin = at + _BUCKETED_BYTES
    packed = _bucket.iter_unpack(data[begin : begin + buckets * _BUCKET_BYTES])
    weights = {bucket_middle(bucket): weight for bucket, weight in packed}
    summary.merge(Summary(count, total, minimum, maximum, weights, exact=False))
