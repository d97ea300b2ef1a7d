"""Splits the command line of a process into its options and their values.

`getopt` and `argparse` are not used, because they also load `gettext`: each process would need 0.1 MB (`getopt`) or 0.4 MB
(`argparse`) more memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class OptionError(Exception):
    """An argument is not valid. The message names it."""


def option_pairs(arguments: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Read `--name VALUE` and `--name=VALUE`. `names` are without the leading `--`. The last value of a repeated option is used."""
    found: dict[str, str] = {}
    left = iter(arguments)
    for argument in left:
        name, has_value, value = argument.removeprefix("--").partition("=")
        if name not in names or not argument.startswith("--"):
            raise OptionError(f"{argument!r} is not an option")
        if not has_value:
            following = next(left, None)
            if following is None:
                raise OptionError(f"the option --{name} has no value")
            value = following
        found[name] = value
    return found
