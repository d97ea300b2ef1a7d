"""Compiles the patterns of botocore's models.

The models contain Java's regular expressions. AWS's services match them against the whole value, whether or not the pattern has
anchors: CloudWatch Logs refuses a group name with a space because of the pattern `[\\.\\-_/#A-Za-z0-9]+`, ECR refuses a registry
id of 13 digits because of `[0-9]{12}`. Corral matches the whole value, too.

RE2 takes time linear in the length of the value, but a call takes 8 µs. A pattern with at most one unbounded repetition and no
alternatives also takes linear time with Python's `re`, where a call takes 0.3 µs. Corral uses `re` for such patterns and ASCII
values, for which `\\p{L}`, `\\p{N}` and `\\p{Z}` are letters, digits and the space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct

PatternMatch = Callable[[str], Any]

# Replacements of the patterns that RE2 does not support: it has no lookaheads, no \p{Print} and no repetition above 1,000. The
# model limits the lengths separately. A pattern that is replaced by None is not checked.
REPLACEMENTS: dict[str, str | None] = {
    r"\p{Print}+": r"[\x20-\x7e]+",
    r"(?!((^[ ]+.*)|(.*([\u0000-\u001f]|[\u007f-\u009f]|[:/|])+.*)|(.*[ ]+$))).+": (
        r"[^ \x00-\x1f\x7f-\x9f:/|]([^\x00-\x1f\x7f-\x9f:/|]*[^ \x00-\x1f\x7f-\x9f:/|])?"
    ),
    r"^[a-z0-9]([a-z0-9]|-(?!-)){1,61}[a-z0-9]$": r"[a-z0-9]+(-[a-z0-9]+)*",
    r"^(?!\s*$).+": r".*\S.*",
    r"^.{1,100000}$": r".+",
    r"^arn:aws[a-z0-9-]*:iam::\d{12}:role\/[\w-\/.@+=,]{1,1017}$": r"arn:aws[a-z0-9-]*:iam::\d{12}:role\/[\w\-/.@+=,]+",
    r"^https:\/\/[-a-zA-Z0-9@:%._\+~#=]{1,253}\.s3(\.[a-z\d-]{9,16})?\.amazonaws\.com\/.{1,2000}": (
        r"https:\/\/[-a-zA-Z0-9@:%._\+~#=]{1,253}\.s3(\.[a-z\d-]{9,16})?\.amazonaws\.com\/.+"
    ),
    r"^(?=.{20,2048}$)arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[a-zA-Z0-9/_+=.@-]+": (
        r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[a-zA-Z0-9/_+=.@-]+"
    ),
    (
        r"^([\-]?\d{4}(?!\d{2}\b))((-?)((0[1-9]|1[0-2])(\3([12]\d|0[1-9]|3[01]))?|W([0-4]\d|5[0-2])(-?[1-7])?|(00[1-9]|0[1-9]\d|"
        r"[12]\d{2}|3([0-5]\d|6[1-6])))([T\s]((([01]\d|2[0-3])((:?)[0-5]\d)?|24\:?00)([\.,]\d(?!:))?)?(\17[0-5]\d([\.,]\d)?)?"
        r"([zZ]|([\-])([01]\d|2[0-3]):?([0-5]\d)?)?)?)?$"
    ): None,  # an ISO 8601 time with back-references
}

# Patterns of ECR with several repetitions. They take linear time with `re` too, because no repetition can match the character that
# follows it. RE2 would cost 2.5 MB of memory in a server that needs it for nothing else.
LINEAR = frozenset(
    {
        r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*",
        r"[a-zA-Z0-9-_+.]+:[a-fA-F0-9]+",
    }
)

# Java's \uXXXX has four digits. The models write the first and last supplementary character with more, or as surrogates.
_SURROGATES = (r"\uD800\uDC00-\uDBFF\uDFFF", r"\u10000-\u10FFFF")
_UNICODE_ESCAPE = re.compile(r"\\u(10FFFF|10000|[0-9A-Fa-f]{4})")
_ATOM = r"(?:\[\^?(?:\\.|[^\]\\])+\]|\\.|[^\\\[\](){}|*+?^$])"
_SIMPLE = re.compile(rf"(?:{_ATOM}(?:[*+?]|\{{\d+(?:,\d*)?\}})?)*")
_UNBOUNDED = re.compile(rf"{_ATOM}(?:[*+]|\{{\d+,\d*\}})")
_ASCII_CLASSES = {r"\p{L}": "A-Za-z", r"\p{N}": "0-9", r"\p{Z}": " "}


class Matcher(Struct, frozen=True):
    ascii: PatternMatch | None  # for ASCII values; if None, `any` matches them, too
    any: PatternMatch


@cache
def matcher(pattern: str) -> Matcher | None:
    """Return the functions that match a pattern against a whole value; None if the pattern is not checked."""
    supported = REPLACEMENTS.get(pattern, pattern)
    if supported is None:
        return None
    supported = supported.replace(*_SURROGATES)
    bare = _without_anchors(supported)
    if _is_linear(bare):
        try:
            return Matcher(re.compile(_for_ascii(bare), re.ASCII).fullmatch, _late_re2(supported))
        except re.error:
            pass  # a class such as [\w-_] is not valid in Python's syntax
    return Matcher(None, _re2(supported))


def matches(matcher: Matcher, value: str) -> bool:
    match = matcher.ascii if matcher.ascii is not None and value.isascii() else matcher.any
    return match(value) is not None


def _re2(pattern: str) -> PatternMatch:
    import re2  # imported here: that takes milliseconds, and few requests need it

    options = re2.Options()
    options.log_errors = False
    found: PatternMatch = re2.compile(_UNICODE_ESCAPE.sub(r"\\x{\1}", pattern), options).fullmatch
    return found


def _late_re2(pattern: str) -> PatternMatch:
    compiled: list[PatternMatch] = []

    def match(value: str) -> Any:
        if not compiled:
            compiled.append(_re2(pattern))
        return compiled[0](value)

    return match


def _without_anchors(pattern: str) -> str:
    """Remove anchors, and parentheses around the whole pattern."""
    bare = pattern.removeprefix("^")
    if bare.endswith("$") and not bare.endswith("\\$"):
        bare = bare[:-1]
    inner = bare[1:-1]
    return inner if bare.startswith("(") and bare.endswith(")") and _is_linear(inner) else bare


def _is_linear(pattern: str) -> bool:
    if pattern in LINEAR:
        return True
    unescaped = _UNICODE_ESCAPE.sub("u", pattern)
    for unicode_class in _ASCII_CLASSES:
        unescaped = unescaped.replace(unicode_class, "p")
    return bool(_SIMPLE.fullmatch(unescaped)) and len(_UNBOUNDED.findall(unescaped)) <= 1


def _for_ascii(pattern: str) -> str:
    for unicode_class, characters in _ASCII_CLASSES.items():
        pattern = pattern.replace(unicode_class, characters)
    return _UNICODE_ESCAPE.sub(lambda found: f"\\U{int(found[1], 16):08x}", pattern)
