"""Tables of commands such as `corral ps`: aligned columns, never wider than the screen."""

from __future__ import annotations

import pytest

from corral.cli.tasks import needs, spans, without_start
from corral.cli.text_table import cell_width, cut, fold, painted, table_lines

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


def test_a_folded_text_breaks_between_words_and_in_wide_words() -> None:
    assert fold("needs 2 GPUs", 7) == ["needs 2", "GPUs"] and fold("", 7) == [""]
    assert fold("of i-0123456789 waits", 6) == ["of", "i-0123", "456789", "waits"]
    assert fold("日本語", 5) == ["日本", "語"]


def test_folded_columns_share_the_screen() -> None:
    assert table_lines(ROWS, width=34, optional=("EXIT",), folded=("TASK", "REASON")) == [
        "ID  TASK            REASON",
        "a1  train",
        "b2  a name that is  needs 2 GPUs;",
        "    longer than     1 of 4 GPUs",
        "    others          free on 1 host",
        "c3  größe 日本語    two lines",
    ]
    assert table_lines(ROWS, optional=("EXIT",), folded=("REASON",)) == table_lines(ROWS, optional=("EXIT",))


def test_numbers_are_aligned_to_the_right() -> None:
    rows = [{"UTIL": "7%", "TASK": "free"}, {"UTIL": "100%", "TASK": "train"}, {"TASK": "and 2 more"}]
    assert table_lines(rows, right=("UTIL",)) == ["UTIL  TASK", "  7%  free", "100%  train", "      and 2 more"]


def test_styles_do_not_change_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [{"STATE": "FAILED", "STEPS": "1"}, {"STATE": "OK", "STEPS": "2"}]
    styles = {"STATE": lambda state: "bold red" if state == "FAILED" else ""}
    assert table_lines(rows, styles=styles) == ["STATE   STEPS", "\x1b[1;31mFAILED\x1b[0m  1", "OK      2"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("FAILED", "bold red") == "\x1b[1mFAILED\x1b[0m" and painted("FAILED", "red") == "FAILED"


def test_numbers_and_needs_are_short() -> None:
    assert (spans([7, 0, 1, 2]), spans([]), spans([3])) == ("0-2,7", "", "3")
    assert needs({"gpus": 2, "cpuUnits": 0, "memoryMiB": 16_384}) == "2 GPUs 16 GiB"
    assert needs({"gpus": -1, "cpuUnits": 2_560, "memoryMiB": 128}) == "all GPUs 2.5 CPU 128 MiB"
    assert needs({"gpus": 1, "cpuUnits": 0, "memoryMiB": 0}) == "1 GPU"


def test_a_reason_without_the_estimate() -> None:
    """The estimate has its own column."""
    reason = "needs 2 GPUs; 0 of 4 GPUs free on 1 host; first in line"
    assert without_start(f"{reason}; expected start in about 1h20m") == reason
    assert without_start(f"{reason}; expected start now") == reason and without_start(reason) == reason
