"""Tables of commands such as `corral ps`: aligned columns, never wider than the screen."""

from __future__ import annotations

import pytest

from corral.cli.printing.output import message_lines
from corral.cli.printing.text_table import cell_width, fold, painted, table_lines
from corral.cli.runs.tasks import RESERVED_MIB, needs, short_reason, spans

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


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80, 200])
@pytest.mark.parametrize("folded", [(), ("TASK",)])
def test_no_line_is_wider_than_the_screen_and_nothing_is_cut(width: int, folded: tuple[str, ...]) -> None:
    lines = table_lines(ROWS, width=width, widths_max={"TASK": 20}, optional=("EXIT",), folded=folded)
    assert "\n" not in "".join(lines) and all(cell_width(line) <= width and line == line.rstrip() for line in lines)
    assert sorted("".join(lines).replace(" ", "")) == sorted("".join(table_lines(ROWS, optional=("EXIT",))).replace(" ", ""))


def test_a_folded_text_breaks_between_words_and_in_wide_words() -> None:
    assert fold("needs 2 GPUs", 7) == ["needs 2", "GPUs"] and fold("", 7) == [""]
    assert fold("of i-0123456789 waits", 6) == ["of", "i-0123", "456789", "waits"]
    assert fold("日本語", 5) == ["日本", "語"]


def test_a_wide_word_breaks_after_a_sign_in_its_second_half() -> None:
    assert fold("resnet50-lr-0.001", 14) == ["resnet50-lr-0.", "001"] and fold("resnet50-lr-0.001", 13) == ["resnet50-lr-", "0.001"]
    assert fold("a-resnet50", 8) == ["a-resnet", "50"]


def test_the_last_line_of_a_long_cell_has_an_ellipsis() -> None:
    assert fold("sh -c one two three", 8, 2) == ["sh -c", "one two…"] and fold("sh -c one two three", 7, 2) == ["sh -c", "one tw…"]
    assert fold("one two", 7, 1) == ["one two"]


def test_folded_columns_share_the_screen() -> None:
    assert table_lines(ROWS, width=44, optional=("EXIT",), folded=("TASK",)) == [
        "ID  TASK            REASON",
        "a1  train",
        "b2  a name that is  needs 2 GPUs; 1 of 4",
        "    longer than     GPUs free on 1 host",
        "    others",
        "c3  größe 日本語    two lines",
    ]


def test_a_last_column_without_room_follows_on_lines_of_its_own() -> None:
    assert table_lines(ROWS, width=40, optional=("EXIT",)) == [
        "ID  TASK",
        "    REASON",
        "a1  train",
        "b2  a name that is longer than others",
        "    needs 2 GPUs; 1 of 4 GPUs free on 1",
        "    host",
        "c3  größe 日本語",
        "    two lines",
    ]


def test_numbers_are_aligned_to_the_right() -> None:
    rows = [{"UTIL": "7%", "TASK": "free"}, {"UTIL": "100%", "TASK": "train"}, {"TASK": "and 2 more"}]
    assert table_lines(rows, right=("UTIL",)) == ["UTIL  TASK", "  7%  free", "100%  train", "      and 2 more"]


def test_styles_do_not_change_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [{"STATE": "FAILED", "STEPS": "1"}, {"STATE": "OK", "STEPS": "2"}]
    styles = {"STATE": lambda state: "bold red" if state == "FAILED" else ""}
    assert table_lines(rows, styles=styles) == ["STATE   STEPS", "\x1b[1;31mFAILED\x1b[0m  1", "OK      2"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("FAILED", "bold red") == "FAILED"


def test_numbers_and_needs_are_short() -> None:
    assert (spans([7, 0, 1, 2]), spans([]), spans([3])) == ("0-2,7", "", "3")
    assert needs({"gpus": 2, "cpuUnits": 0, "memoryMiB": 16_384}) == "2 GPUs 16 GiB"
    assert needs({"gpus": -1, "cpuUnits": 2_560, "memoryMiB": 64}) == "all GPUs 2.5 CPU 64 MiB"
    assert needs({"gpus": 1, "cpuUnits": 0, "memoryMiB": 0}) == "1 GPU"
    assert needs({"gpus": 1, "cpuUnits": 0, "memoryMiB": RESERVED_MIB}) == "1 GPU"


def test_a_table_shows_the_answer_of_a_reason() -> None:
    """The details have their own columns, or are in `corral show`."""
    details = "needs 2 GPUs; place 2 in line behind task 61de9d24; held by tasks d9e2ad4a, 61de9d24; expected start in about 1h20m"
    assert short_reason(f"train holds 3 of 4 GPUs; {details}") == "train holds 3 of 4 GPUs"
    assert short_reason("held: `corral release 61de9d24` releases it") == "held: `corral release 61de9d24` releases it"
    assert short_reason("needs 3 nodes at the same time") == "needs 3 nodes at the same time"


def test_a_message_is_broken_between_words_and_not_in_commands() -> None:
    text = "corral: 1 task in cluster images-Cluster-8ABPTOCZMICC: `corral ps --cluster images-Cluster-8ABPTOCZMICC`"
    assert message_lines(text, 200) == [text]
    assert message_lines(text, 80) == [
        "corral: 1 task in cluster images-Cluster-8ABPTOCZMICC:",
        "  `corral ps --cluster images-Cluster-8ABPTOCZMICC`",
    ]
    assert all(len(line) <= 30 for line in message_lines(text, 30))
