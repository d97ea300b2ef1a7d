"""Values of the options of `corral run`: times, sizes, indexes, environment files, and where the options end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli.printing.errors import name_options
from corral.cli.printing.output import DURATION
from corral.cli.runs.environment import BUCKET, FILE_MAX_BYTES, JSON_VALUES, file_text, overrides_length, read_file, variables
from corral.cli.runs.options import dependency_tags, split_arguments
from corral.cli.runs.run import run
from corral.cli.runs.values import (
    ARRAY,
    CALL_TASKS,
    GPU_COUNT,
    MEMBERS_MAX,
    MEMORY_SIZE,
    PRIORITY_MAX,
    REQUEUE_MAX,
    START_TIME,
    ArraySpec,
    call_batches,
)
from corral.model import private_environment, queue_options
from corral.server.agents.environment_files import parse_file
from corral.services.ecs.run_spec import FILES_MAX_BYTES
from each import check_each


def parsed(kind: click.ParamType, text: str) -> Any:
    return kind.convert(text, None, None)


def is_refused(kind: click.ParamType, text: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        parsed(kind, text)
    assert text.removeprefix("+") in str(refused.value)


def test_durations() -> None:
    right = {
        "90": 90, "90s": 90, "90m": 5400, "1h30m": 5400, "1:30:00": 5400, "0:01:30": 90, "4h": 14_400, "1d": 86_400,
        "1d2h": 93_600, "2-00:00:01": 172_801, "100:00:00": 360_000,
    }  # fmt: skip
    check_each(right.items(), lambda case: (parsed(DURATION, case[0]) == case[1]) or pytest.fail(case[0]))
    wrong = ["", "0", "0s", "soon", "1:30", "1:60:00", "1:00:60", "-5m", "1.5h", "5 m", "99999999999d", "٣", "1h 30m", "m"]
    check_each(wrong, lambda text: is_refused(DURATION, text))
    with pytest.raises(click.BadParameter, match="'9999d' is too long: a duration is at most 3650 days"):
        parsed(DURATION, "9999d")


def test_sizes_and_gpus() -> None:
    right = {"128": 128, "16g": 16_384, "16G": 16_384, "16GiB": 16_384, "16gb": 16_384, "512m": 512, "1t": 2**20, "8192k": 8}
    check_each(right.items(), lambda case: (parsed(MEMORY_SIZE, case[0]) == case[1]) or pytest.fail(case[0]))
    check_each(["", "5", "1k", "g", "1.5g", "16 g", "99999999t", "-1", "16x"], lambda text: is_refused(MEMORY_SIZE, text))
    assert [parsed(GPU_COUNT, text) for text in ("0", "08", "64", "all", "ALL")] == ["0", "8", "64", "ALL", "ALL"]
    check_each(["65", "-1", "some", "1.5", "٣"], lambda text: is_refused(GPU_COUNT, text))


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_start_times(berlin: None) -> None:
    now = datetime(2026, 7, 14, 16, 0, 30, tzinfo=UTC)  # 18:00:30 in Berlin

    def resolved(text: str) -> str:
        return str(parsed(START_TIME, text).resolve(now).astimezone(UTC).strftime("%d %H:%M:%S"))

    right = {
        "+2h": "14 18:00:30", "+1:30:00": "14 17:30:30", "18:30": "14 16:30:00", "18:00": "15 16:00:00", "8:05:09": "15 06:05:09",
        "today 23:59": "14 21:59:00", "tomorrow 8:00": "15 06:00:00", "Tomorrow  08:00": "15 06:00:00",
        "2026-07-14T20:00": "14 18:00:00", "2026-07-14 20:00:00": "14 18:00:00", "2026-07-14T20:00:00Z": "14 20:00:00",
        "2026-07-15": "14 22:00:00",
    }  # fmt: skip
    check_each(right.items(), lambda case: (resolved(case[0]) == case[1]) or pytest.fail(f"{case[0]}: {resolved(case[0])}"))
    wrong = ["", "25:00", "18:60", "1830", "6pm", "tomorrow", "yesterday 8:00", "+", "+0s", "2026-13-01", "2026-02-30T08"]
    wrong += ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]  # not a date of this time zone
    check_each(wrong, lambda text: is_refused(START_TIME, text))
    for text in ("today 17:00", "2026-07-14T18:00", "2020-01-01"):
        with pytest.raises(click.BadParameter, match="has passed"):
            parsed(START_TIME, text).resolve(now)
    # The clocks go back in the night of 25 October, so this night has 25 hours.
    evening = datetime(2026, 10, 24, 18, 0, tzinfo=UTC)
    assert parsed(START_TIME, "tomorrow 8:00").resolve(evening) - evening == timedelta(hours=13)


def test_indexes_of_arrays() -> None:
    right = {
        "7": ArraySpec((7,)), "0-3": ArraySpec((0, 1, 2, 3)), "0-3%2": ArraySpec((0, 1, 2, 3), 2), "0-9:3": ArraySpec((0, 3, 6, 9)),
        "0,2,5-7%1": ArraySpec((0, 2, 5, 6, 7), 1), "5,1,1-2": ArraySpec((1, 2, 5)), "0 - 1": ArraySpec((0, 1)),
        "3%999999999": ArraySpec((3,), MEMBERS_MAX),
        "0-9999": ArraySpec(tuple(range(MEMBERS_MAX))),
    }  # fmt: skip
    check_each(right.items(), lambda case: (parsed(ARRAY, case[0]) == case[1]) or pytest.fail(case[0]))
    wrong = ["", "a", "3-1", "0-9:0", "1:2", "0-9%", "0-9%0", "0-9%x", "-1", "0-", "0,,1", "0-10000", "0-999999999", "0-9999,10000"]
    check_each(wrong, lambda text: is_refused(ARRAY, text))


@given(st.sets(st.integers(0, 300), min_size=1))
def test_calls_cover_each_index_once(indexes: set[int]) -> None:
    batches = list(call_batches(sorted(indexes)))
    assert [index for batch in batches for index in batch] == sorted(indexes)
    assert all(1 <= len(batch) <= CALL_TASKS for batch in batches)


def test_a_range_needs_few_calls() -> None:
    assert list(call_batches(range(0, 100, 2))) == [range(start, start + 20 - 1, 2) for start in range(0, 100, 20)]
    assert len(list(call_batches(range(MEMBERS_MAX)))) == MEMBERS_MAX / CALL_TASKS
    assert list(call_batches([5])) == [range(5, 6)]


def test_many_dependencies_need_several_tags() -> None:
    ids = [f"{number:032x}" for number in range(20)]
    tags = dependency_tags("corral:after", ids)
    assert list(tags) == ["corral:after", "corral:after:2", "corral:after:3"]
    assert " ".join(tags.values()).split() == ids and all(len(value) <= 256 for value in tags.values())
    assert dependency_tags("corral:after-any", ["array:0123456789ab", ids[0], ids[0]]) == {
        "corral:after-any": f"array:0123456789ab {ids[0]}"
    }
    assert dependency_tags("corral:after", []) == {}


@pytest.mark.parametrize(
    "words, options, rest",
    [
        ("--requeue python x.py --requeue", "--requeue=1", "python x.py --requeue"),
        ("--requeue=3 -d -- x", "--requeue=3 -d", "-- x"),
        ("-g 1 -n a --requeue -- x", "-g 1 -n a --requeue=1", "-- x"),
        ("-dg1 x -g 2", "-dg1", "x -g 2"),
        ("-dg 1 x", "-dg 1", "x"),
        ("-e A=1 --env=B=2 x", "-e A=1 --env=B=2", "x"),
        ("--name --requeue x", "--name --requeue", "x"),
        ("x.json -- --requeue", "", "x.json -- --requeue"),
        ("-i", "-i", ""),
    ],
)
def test_options_end_where_the_command_begins(words: str, options: str, rest: str) -> None:
    assert split_arguments(run.params, words.split()) == (options.split(), rest.split())


def test_a_number_after_requeue_is_not_the_command() -> None:
    with pytest.raises(click.UsageError, match="write --requeue=3"):
        split_arguments(run.params, ["--requeue", "3", "python", "x.py"])


# variables


def test_variables_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings"
    file.write_text('# a comment\nA=1\n\n  B = two words \nC="quoted"\r\nEMPTY=\nHERE\nNOT_HERE\nD=a=b#c\nA=2\n')
    monkeypatch.setenv("HERE", "from the shell")
    monkeypatch.delenv("NOT_HERE", raising=False)
    expected = {"A": "2", "B": " two words ", "C": '"quoted"', "EMPTY": "", "HERE": "from the shell", "D": "a=b#c"}
    assert read_file(file, {"HERE": "from the shell"}) == expected
    assert variables(["A=3", "HERE"], [file], inherits=False) == {**expected, "A": "3"}
    inherited = variables([], [], inherits=True)
    assert inherited["HERE"] == "from the shell" and not {"AWS_REGION", "CORRAL_DATA", "CUDA_VISIBLE_DEVICES"} & inherited.keys()
    file.write_text("\ufeffA=1\nB=\0\n", encoding="utf-8")
    assert read_file(file, {})["A"] == "1"
    with pytest.raises(click.BadParameter, match="the value of B is not UTF-8, or contains a NUL"):
        variables([], [file], inherits=False)
    with pytest.raises(click.BadParameter, match="cannot read"):
        read_file(tmp_path, {})


def test_errors_of_variables_do_not_contain_values(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text("KEY=-----BEGIN PRIVATE KEY-----\nsecret+/line==\n")
    with pytest.raises(click.BadParameter) as refused:
        read_file(file, {})
    assert f"line 2 of {file} is not NAME=VALUE" in str(refused.value) and "secret" not in str(refused.value)
    for wrong, problem in {
        "HF-TOKEN=secret": "'HF-TOKEN' is not the name of a variable",
        "=secret": "'' is not the name of a variable",
        "NOT_HERE": "'NOT_HERE' is not a variable of this shell",
    }.items():
        with pytest.raises(click.BadParameter) as refused:
            variables([wrong], [], inherits=False)
        assert problem in str(refused.value) and "secret" not in str(refused.value)


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), st.text(st.characters(codec="utf-8"))))
def test_the_server_reads_every_value_of_a_private_file(values: dict[str, str]) -> None:
    text = file_text(values)
    assert text.isascii() and parse_file(text) == values


def test_the_file_is_also_a_file_of_ecs() -> None:
    assert file_text({"A": "1\n2"}) == f'{JSON_VALUES}\nA="1\\n2"\n' and JSON_VALUES.startswith("#")
    assert parse_file('A="1"\n# a comment\nB=\n') == {"A": '"1"'}
    assert parse_file(f'{JSON_VALUES}\nA=1\nno value\nB="x"\n') == {"A": "1", "B": "x"}


def test_client_and_server_agree() -> None:
    assert (BUCKET, JSON_VALUES) == (private_environment.BUCKET, private_environment.JSON_VALUES)
    assert FILE_MAX_BYTES == FILES_MAX_BYTES
    assert (REQUEUE_MAX, PRIORITY_MAX) == (queue_options.REQUEUES_MAX, queue_options.PRIORITY_MAX)
    override = {"name": "main", "environment": [{"name": "A", "value": 'ä\n"€'}]}
    assert overrides_length(override) == len(orjson.dumps({"containerOverrides": [override]}).decode())  # as RunTask counts


def test_tags_in_texts_of_the_server_become_options() -> None:
    for text, shown in (
        ("The tag corral:priority has the value 'x'", "--priority has the value 'x'"),
        ("The tags corral:after and corral:after-any name 120 tasks", "--after and --after-any name 120 tasks"),
        ("The tag corral:after:2 has the element 'x'", "--after has the element 'x'"),
        ("first, with the tag corral:array.", "first, with --array."),
        ("The tags corral:hold, corral:not-before and corral:time-limit", "--hold, --at and --time"),
        ("the tag corral:requeued-as of a task", "the tag corral:requeued-as of a task"),
    ):
        assert name_options(text) == shown
