"""Changes of single lines of a TOML text: comments, order and all other values stay."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.configuration.toml_edit import UnchangeableToml, format_value, key_line, set_value, unset_value
from examples import examples

SET = {  # (before, value of up.port) → after
    ("", 1): "[up]\nport = 1\n",
    ("# mine", 1): "# mine\n\n[up]\nport = 1\n",
    ("[up]\nport = 4566  # lab\n", 1): "[up]\nport = 1  # lab\n",
    ("[up]\n  port=4566#lab", 1): "[up]\n  port=1#lab",
    ("[up]\r\nport = 2 # a\r\n# b\r\n", 1): "[up]\r\nport = 1 # a\r\n# b\r\n",
    ("[up]\r\n# b\r\n", 1): "[up]\r\nport = 1\r\n# b\r\n",
    ("['up']  # options\n\"port\" = 'a # b' # c\n", "#"): "['up']  # options\n\"port\" = \"#\" # c\n",
    ("up.port = 2\nup.gpus = 'none'\n", 1): "up.port = 1\nup.gpus = 'none'\n",
    ("[up]\nport = [\n 1, # one\n 2,\n]  # end\ngpus = 'x'\n", 1): "[up]\nport = 1\ngpus = 'x'\n",
    ("[up]\n\tgpus = 'x'\n\n# of scaling\n[scaling]\nport = 2\n", 1):
        "[up]\n\tgpus = 'x'\n\tport = 1\n\n# of scaling\n[scaling]\nport = 2\n",
    ("[scaling]\nport = 2\n[up]\nport = 3\n", 1): "[scaling]\nport = 2\n[up]\nport = 1\n",
    ("x = \"\"\"\n[up]\nport = 2\n\"\"\"\n[up]\nport = 3\n", 1): "x = \"\"\"\n[up]\nport = 2\n\"\"\"\n[up]\nport = 1\n",
    ("x = \"\"\"\n[up]\n\"\"\"\n", 1): "x = \"\"\"\n[up]\n\"\"\"\n\n[up]\nport = 1\n",
    ("[up]\nx = [\n[1],\n[2]]\n", 1): "[up]\nport = 1\nx = [\n[1],\n[2]]\n",
    ("[up.more]\nport = 2\n", 1): "[up.more]\nport = 2\n\n[up]\nport = 1\n",
    ("[up]\nport = 1\n", True): "[up]\nport = true\n",
    ("[up]\nport = 1.0 # same\n", 1.0): "[up]\nport = 1.0 # same\n",
}  # fmt: skip


@pytest.mark.parametrize("case", SET)
def test_a_value_is_set_on_its_line(case: tuple[str, Any]) -> None:
    before, value = case
    assert set_value(before, "up", "port", value) == SET[case]


@pytest.mark.parametrize(
    "before, after",
    [
        ("[up]\nport = 1 # lab\ngpus = 'x'\n", "[up]\ngpus = 'x'\n"),
        ("# a\n[up]\n# b\nport = [\n1,\n]\n", "# a\n[up]\n# b\n"),
        ("up.port = 1\n[scaling]\nport = 2\n", "[scaling]\nport = 2\n"),
        ("[scaling]\nport = 1\n", "[scaling]\nport = 1\n"),
        ("up = 3\n", "up = 3\n"),
        ("", ""),
    ],
)
def test_a_value_is_removed_with_its_line(before: str, after: str) -> None:
    assert unset_value(before, "up", "port") == after


def test_a_text_that_needs_more_than_a_line_is_refused() -> None:
    for text in ("up = {port = 1}\n", "up = {}\n", "up.gpus = 'x'\n"):
        with pytest.raises(UnchangeableToml, match=r"\[up\] on a line"):
            set_value(text, "up", "host", "x")
    with pytest.raises(UnchangeableToml, match="up is not a table"):
        set_value("up = 1\n", "up", "port", 1)
    with pytest.raises(UnchangeableToml, match="on a line of their own"):
        unset_value("up = {port = 1}\n", "up", "port")


def test_the_line_of_a_key_is_found() -> None:
    text = "up.host = 'x'\n[scaling]\nport = 1\n[ 'up' ] # x\n# port = 2\n'port' = 3\n"
    assert key_line(text, "up", "port") == 6
    assert key_line(text, "scaling", "port") == 3
    assert key_line(text, "up", "host") == 1
    assert key_line(text, "up", "gpus") is None


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
KEYS = st.sampled_from(["port", "gpus", "host"])
COMMENTS = st.sampled_from(["", "  # [up]", " # port = 1", "#"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Tables with values, comments, blank lines, multi-line texts that look like tables, and arrays over several lines."""
    lines = draw(
        st.lists(st.sampled_from(["", "# [up]", "# port = 5", 'text = """\n[up]\nport = 6\n"""']), max_size=3, unique=True)
    )
    for table in draw(st.permutations(["up", "scaling", "'other'"]))[: draw(st.integers(0, 3))]:
        lines.append(draw(st.sampled_from(["[{}]", "  [ {} ]  # table"])).format(table))
        for key in draw(st.lists(KEYS, unique=True, max_size=3)):
            value = format_value(draw(VALUES))
            lines += draw(st.lists(st.sampled_from(["", "# note", "\t# port = 7"]), max_size=2))
            lines.append(draw(st.sampled_from(["{} = {}", "  '{}'={}", '"{}"\t=  {}'])).format(key, value) + draw(COMMENTS))
        if draw(st.booleans()):
            lines += ["list = [  # [up]", "  [1],", "  '#',", "]"]
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))


@settings(max_examples=examples(40))
@given(documents(), KEYS, VALUES)
def test_only_the_value_changes(text: str, key: str, value: Any) -> None:
    before = tomllib.loads(text)
    after = set_value(text, "up", key, value)
    wanted = before | {"up": before.get("up", {}) | {key: value}}
    assert repr(sorted_document(tomllib.loads(after))) == repr(sorted_document(wanted))
    rest = iter(lines_of(after))
    assert all(line in rest for line in lines_of(text) if key not in line)  # in the same order
    assert set_value(after, "up", key, value) == after
    removed = unset_value(after, "up", key)
    assert key not in tomllib.loads(removed)["up"]
    if "up" in before and key not in before["up"]:
        newline = "\r\n" if "\r\n" in text else "\n"
        assert removed == (text if text.endswith("\n") else text + newline)


def sorted_document(document: Any) -> Any:
    return {key: sorted_document(document[key]) for key in sorted(document)} if isinstance(document, dict) else document


def lines_of(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
