"""Parses the options of the processes that `corral up` starts. A process declares its options as fields of a Struct."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import fields

from corral.process.option_pairs import OptionError, option_pairs

T = TypeVar("T", bound=msgspec.Struct)


def parse_options(arguments: Sequence[str], kind: type[T]) -> T:
    """Read `--some-name VALUE` into the field `some_name` of a Struct with `rename="kebab"`. Exit if an option is not valid."""
    try:
        pairs = option_pairs(arguments, [field.encode_name for field in fields(kind)])
        return msgspec.convert(pairs, kind, strict=False)
    except (OptionError, msgspec.ValidationError) as why:
        sys.exit(f"{sys.argv[0]}: {why}")
