"""What all protocols agree on about scalars."""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from math import inf, nan

from corral.aws.faults import Misfit

INTEGER_BITS = {"integer": 32, "long": 64}
SPECIAL_FLOATS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def blob_from_base64(text: str) -> bytes:
    """Strict: bytes that a client never meant must not be stored as if it did."""
    try:
        return a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError):  # ValueError: not ASCII
        raise Misfit.type("not valid base64") from None
