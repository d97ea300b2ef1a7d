"""The command lines of Corral's processes."""

from __future__ import annotations

import pytest

from corral.process.option_pairs import OptionError, option_pairs

NAMES = ("data", "ready-fd")


def test_values_follow_their_option_or_its_equals_sign() -> None:
    assert option_pairs(["--data", "--a b=c", "--ready-fd=7", "--ready-fd=="], NAMES) == {"data": "--a b=c", "ready-fd": "="}
    assert option_pairs(["--data=", "--data", ""], NAMES) == {"data": ""}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dat", "a"], "'--dat' is not an option"),
        (["data", "a"], "'data' is not an option"),
        (["--data", "a", "b"], "'b' is not an option"),
        (["-data=a"], "'-data=a' is not an option"),
        (["--"], "'--' is not an option"),
        (["--data"], "the option --data has no value"),
    ],
)
def test_other_arguments_are_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}$"):
        option_pairs(arguments, NAMES)
