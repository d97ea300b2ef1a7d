"""Compiles the regular expressions (patterns) of botocore's models.

The patterns have Java's syntax. AWS matches a pattern against the whole value, even if the pattern has no anchors. For example, ECR
has the pattern `[0-9]{12}` for registry ids and refuses an id of 13 digits. Corral also matches the whole value.

Corral uses two libraries. RE2 always takes time linear in the length of the value, but each call takes 8 µs. A call of Python's
`re` takes only 0.3 µs, but some patterns take exponential time with `re`. A pattern takes linear time with `re` if it has at most
one unbounded repetition and no alternatives. So Corral uses `re` for such a pattern if the value is ASCII, and RE2 in all other
cases. `re` does not support `\\p{L}`, `\\p{N}` and `\\p{Z}`. For ASCII values, these are only letters, digits and the space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct

PatternMatch = Callable[[str], Any]

# Replacements for the patterns that RE2 does not support. RE2 has no lookaheads, no \p{Print} and no repetition above 1,000. A
# replacement may allow longer values, because the model also limits the length. If the replacement is None, the pattern is not
# checked.
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
    r"[0-9A-Za-z\.\-_]*(?<!\.)": r"[0-9A-Za-z.\-_]*[0-9A-Za-z\-_]",
    r"(?!^[0-9]+$)([a-zA-Z0-9-_]+)": r"[a-zA-Z0-9\-_]*[a-zA-Z\-_][a-zA-Z0-9\-_]*",
    # Lambda has these three for operations that Corral does not serve.
    r"((?!^\d+$)^[0-9a-zA-Z-_]+$)": None,
    r"(^(?!(system\x2e)))(^[_a-zA-Z0-9])([^$]*)": None,
    (
        r"(arn:(aws[a-zA-Z-]*)?:lambda:)?((eusc-)?[a-z]{2}((-gov)|(-iso([a-z]?)))?-[a-z]+-\d{1}:)?(\d{12}:)?(function:)?"
        r"([a-zA-Z0-9-_]{1,64})(:((?!\d+$)[0-9a-zA-Z-_]+))?"
    ): None,
    (
        r"^([\-]?\d{4}(?!\d{2}\b))((-?)((0[1-9]|1[0-2])(\3([12]\d|0[1-9]|3[01]))?|W([0-4]\d|5[0-2])(-?[1-7])?|(00[1-9]|0[1-9]\d|"
        r"[12]\d{2}|3([0-5]\d|6[1-6])))([T\s]((([01]\d|2[0-3])((:?)[0-5]\d)?|24\:?00)([\.,]\d(?!:))?)?(\17[0-5]\d([\.,]\d)?)?"
        r"([zZ]|([\-])([01]\d|2[0-3]):?([0-5]\d)?)?)?)?$"
    ): None,  # a pattern for ISO 8601 times, which has back-references
}

# Patterns of ECR with several repetitions. They take linear time with `re`, because the character after a repetition never matches
# the repetition itself. Most servers need RE2 for no other pattern. On such a server, these entries save the 2.5 MB of memory that
# RE2 takes.
LINEAR = frozenset(
    {
        r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*",
        r"[a-zA-Z0-9-_+.]+:[a-fA-F0-9]+",
    }
)

# Java's escape \uXXXX has four digits. For the characters U+10000 and U+10FFFF, the models use more digits or surrogate pairs.
_SURROGATES = (r"\uD800\uDC00-\uDBFF\uDFFF", r"\u10000-\u10FFFF")
_UNICODE_ESCAPE = re.compile(r"\\u(10FFFF|10000|[0-9A-Fa-f]{4})")
_ATOM = r"(?:\[\^?(?:\\.|[^\]\\])+\]|\\.|[^\\\[\](){}|*+?^$])"
_SIMPLE = re.compile(rf"(?:{_ATOM}(?:[*+?]|\{{\d+(?:,\d*)?\}})?)*")
_UNBOUNDED = re.compile(rf"{_ATOM}(?:[*+]|\{{\d+,\d*\}})")
_ASCII_CLASSES = {r"\p{L}": "A-Za-z", r"\p{N}": "0-9", r"\p{Z}": " "}


class Matcher(Struct, frozen=True):
    ascii: PatternMatch | None  # matches ASCII values; if it is None, `any` matches all values
    any: PatternMatch


@cache
def matcher(pattern: str) -> Matcher | None:
    """Return the functions that match a pattern against a whole value. Return None if the pattern is not checked.

    A release of botocore can be newer than `REPLACEMENTS`. A new pattern that RE2 does not support is not checked.
    """
    supported = REPLACEMENTS.get(pattern, pattern)
    if supported is None:
        return None
    supported = supported.replace(*_SURROGATES)
    bare = _without_anchors(supported)
    if _is_linear(bare):
        try:
            return Matcher(re.compile(_for_ascii(bare), re.ASCII).fullmatch, _late_re2(supported))
        except re.error:
            pass  # Python's syntax does not allow some classes, such as [\w-_]
    found = _re2(supported)
    return None if found is None else Matcher(None, found)


def matches(matcher: Matcher, value: str) -> bool:
    match = matcher.ascii if matcher.ascii is not None and value.isascii() else matcher.any
    return match(value) is not None


def _re2(pattern: str) -> PatternMatch | None:
    """Return the function that matches a pattern, or None if RE2 does not support the pattern."""
    import re2  # imported here, because the import takes milliseconds and few requests need it

    options = re2.Options()
    options.log_errors = False
    try:
        found: PatternMatch = re2.compile(_UNICODE_ESCAPE.sub(r"\\x{\1}", pattern), options).fullmatch
    except re2.error:
        return None
    return found


def _late_re2(pattern: str) -> PatternMatch:
    compiled: list[PatternMatch] = []

    def match(value: str) -> Any:
        if not compiled:
            compiled.append(_re2(pattern) or bool)  # `bool` matches every value
        return compiled[0](value)

    return match


def _without_anchors(pattern: str) -> str:
    """Remove the anchors of a pattern, and the parentheses that enclose the whole pattern."""
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
