"""Tables of `corral ps`: one line for each row, never wider than the screen."""

from __future__ import annotations

import pytest

from corral.cli.tasks import needs, spans
from corral.cli.text_table import cell_width, cut, table_lines

ROWS = [
    {"ID": "a1", "TASK": "train", "EXIT": "", "REASON": ""},
    {"ID": "b2", "TASK": "a name that is longer than others", "EXIT": "", "REASON": "needs 2 GPUs; 1 of 4 GPUs free on 1 host"},
    {"ID": "c3", "TASK": "größe 日本語", "EXIT": "", "REASON": "two\nlines"},
]


def test_columns_are_aligned_and_empty_ones_are_left_out() -> None:
    assert table_lines(ROWS, optional=("EXIT", "REASON")) == [
        "ID  TASK                               REASON",
        "a1  train",
        "b2  a name that is longer than others  needs 2 GPUs; 1 of 4 GPUs free on 1 host",
        "c3  größe 日本語                       two lines",
    ]
    assert table_lines(ROWS[:1], optional=("EXIT", "REASON")) == ["ID  TASK", "a1  train"]


@pytest.mark.parametrize("width", [1, 20, 30, 40, 80, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    lines = table_lines(ROWS, width=width, widths_max={"TASK": 10}, optional=("EXIT",))
    assert len(lines) == 4 and "\n" not in "".join(lines)
    assert all(cell_width(line) <= max(width, 17) for line in lines)  # the other columns have 16 columns


def test_a_cut_text_has_an_ellipsis() -> None:
    assert (cut("train", 5), cut("train", 4), cut("日本語", 5), cut("x", 0)) == ("train", "tra…", "日本…", "")


def test_numbers_and_needs_are_short() -> None:
    assert (spans([7, 0, 1, 2]), spans([]), spans([3])) == ("0-2,7", "", "3")
    assert needs({"gpus": 2, "cpuUnits": 0, "memoryMiB": 16_384}) == "2 GPUs 16 GiB"
    assert needs({"gpus": -1, "cpuUnits": 2_560, "memoryMiB": 128}) == "all GPUs 2.5 CPU 128 MiB"
    assert needs({"gpus": 1, "cpuUnits": 0, "memoryMiB": 0}) == "1 GPU"
