"""The files of the audit: what was appended is read back, the newest first, whatever happened to a file."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from corral.audit.record import PARAMETERS_MAX_BYTES, AuditRecord, decode, encode
from corral.audit.trail import BLOCK_BYTES, KEPT_DAYS, AuditTrail, days, records_back

DAY_S = 86_400.0
NOW_S = 20_000 * DAY_S


def record(number: int, at_s: float = NOW_S, text: str = "") -> AuditRecord:
    return AuditRecord(str(number), at_s, "ecs", "RunTask", "us-east-1", "root", "arn:aws:iam::1:root", params={"text": text})


def ids(folder: Path, from_s: float = 0.0, until_s: float = 2 * NOW_S) -> list[str]:
    return [each.id for _, each in records_back(folder, from_s, until_s, None)]


@given(some.lists(some.integers(0, BLOCK_BYTES // 4), max_size=30), some.integers(0, 3))
def test_records_come_back_newest_first_from_every_place(tmp_path_factory, sizes, days_between) -> None:
    folder = tmp_path_factory.mktemp("audit")
    trail = AuditTrail(folder)
    made = [record(at, NOW_S + at * days_between * DAY_S / 5, "x" * size) for at, size in enumerate(sizes)]
    for each in made:
        trail.append(each)
    trail.close()
    found = list(records_back(folder, 0.0, 2 * NOW_S, None))
    assert [each for _, each in found] == made[::-1]
    for at, (position, _) in enumerate(found):
        assert [each for _, each in records_back(folder, 0.0, 2 * NOW_S, position)] == made[::-1][at + 1 :]
    assert ids(folder, NOW_S, NOW_S) == [each.id for each in made[::-1] if each.at_s == NOW_S]


def test_a_line_that_a_power_failure_cut_off_costs_only_itself(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path)
    trail.append(record(1))
    trail.close()
    [path] = tmp_path.iterdir()
    with open(path, "ab") as file:
        file.write(encode(record(2))[:50])
    trail.append(record(3))
    assert ids(tmp_path) == ["3", "1"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_older_than_90_days_are_deleted(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit")
    for day in (0, 1, KEPT_DAYS, KEPT_DAYS + 1):
        trail.append(record(day, NOW_S + day * DAY_S))
    assert ids(tmp_path / "audit") == [str(KEPT_DAYS + 1), str(KEPT_DAYS), "1"] and len(days(tmp_path / "audit")) == 3


def test_records_that_cannot_be_written_are_counted_and_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trail = AuditTrail(tmp_path / "file" / "audit")
    assert trail.problems() == []
    for number in range(2):
        trail.append(record(number))
    [problem] = trail.problems()
    assert problem["part"] == "audit" and "2 records are lost" in problem["problem"]
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    trail.append(record(3))
    assert trail.problems() == [] and ids(tmp_path / "file" / "audit") == ["3"]


def test_the_parameters_of_a_large_request_are_left_out() -> None:
    found = decode(encode(record(1, text="x" * PARAMETERS_MAX_BYTES)))
    assert found is not None and found.omitted and not found.params and found.id == "1"
    assert decode(b"not a record") is None
