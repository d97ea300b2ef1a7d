"""The lines about GPUs that do nothing, in `corral status` and `corral top`."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from corral.cli.screens.status import idle_lines
from corral.cli.screens.top_tables import IDLE_LINES, frame

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
NAME = "resnet50-with-a-rather-long-name-lr-0.001"


def idle(owner: str, hours: float, gpus: float = 1.0, name: str = "train", index: int | None = None) -> dict[str, Any]:
    row = {
        "owner": owner,
        "sinceS": NOW.timestamp() - hours * 3600,
        "gpus": gpus,
        "taskName": name,
        "arrayIndex": index,
        "task": "t",
    }
    return row if name else {**row, "task": None, "instance": "i-0123456789abcdef0"}


def page(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"version": "0.1.0", "tasks": {}, "hosts": [], "running": [], "waiting": [], "idle": list(rows)}


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([], []),
        ([idle("user/ann", 3.2, 2.0)], ["ann holds 2 GPUs at 0% for 3h: train"]),
        ([idle("root", 1.1, 1.0, NAME, 4)], [f"root holds 1 GPU at 0% for 66m: {NAME}:4"]),
        ([idle("root", 1.1, 0.25)], ["root holds 0.25 GPUs at 0% for 66m: train"]),
        ([idle("root", 50, 8.0, "")], ["root holds 8 GPUs at 0% for 2d: i-0123456789abcdef0"]),
        (
            [idle("user/ann", 9), idle("user/bob", 5), *[idle("user/ann", 2, name=each) for each in "abc"]],
            ["ann holds 4 GPUs at 0% for 2h: train, a, b and 1 more", "bob holds 1 GPU at 0% for 5h: train"],
        ),
    ],
)
def test_a_line_for_each_owner(rows: list[dict[str, Any]], lines: list[str]) -> None:
    assert idle_lines(page(*rows), NOW) == lines


def test_an_earlier_server_has_no_such_lines() -> None:
    assert idle_lines({"hosts": []}, NOW) == []


@pytest.mark.parametrize("width", [60, 80])
def test_top_has_a_few_lines_which_are_cut_only_in_a_window(width: int) -> None:
    def shown(height: int | None) -> list[str]:
        out = StringIO()
        rows = [idle(f"user/{at}", 2, name=NAME) for at in range(9)]
        Console(file=out, width=width).print(frame(page(*rows), format_datetime(NOW), width, height))
        return out.getvalue().splitlines()

    for height in (30, None):
        assert all(len(line) <= width for line in shown(height))
        assert sum(" at 0% for 2h:" in line for line in shown(height)) == IDLE_LINES
    assert "".join(shown(None)).replace(" ", "").count(NAME) == IDLE_LINES
