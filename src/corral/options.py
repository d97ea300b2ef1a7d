"""Parses the command-line options of the processes that `corral up` starts. A process declares its options as fields of a Struct.

`argparse` is not used: it would cost each process 0.4 MB of memory and 5 ms at its start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from getopt import GetoptError, getopt
from typing import TypeVar

import msgspec
from msgspec.structs import fields

T = TypeVar("T", bound=msgspec.Struct)


def parse_options(arguments: Sequence[str], kind: type[T]) -> T:
    """Read `--some-name VALUE` into the field `some_name` of a Struct with `rename="kebab"`. Exit if an option is not valid."""
    try:
        pairs, rest = getopt(list(arguments), "", [f"{field.encode_name}=" for field in fields(kind)])
        if rest:
            raise GetoptError(f"{rest[0]!r} is not an option")
        return msgspec.convert({name[2:]: value for name, value in pairs}, kind, strict=False)
    except (GetoptError, msgspec.ValidationError) as why:
        sys.exit(f"{sys.argv[0]}: {why}")
