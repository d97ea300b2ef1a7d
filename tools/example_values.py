"""The form of ids and ARNs, derived from the patterns of AWS's schemas.

A form is a text with placeholders: `fs-{17x}` is `fs-` and 17 hexadecimal digits. `{region}` and `{account}` are placeholders too.
"""

from __future__ import annotations

import re
import string
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

CHARSETS = {
    "x": string.digits + "abcdef",
    "d": string.digits,
    "a": string.digits + string.ascii_lowercase,
    "A": string.digits + string.ascii_uppercase,
    "l": string.ascii_lowercase,
    "U": string.ascii_uppercase,
}
PRINTABLE = set(string.digits + string.ascii_letters + "-_/:.@+=,|#% ")
CATEGORIES = {
    kinds.CATEGORY_DIGIT: set(string.digits),
    kinds.CATEGORY_WORD: set(string.digits + string.ascii_letters + "_"),
    kinds.CATEGORY_SPACE: {" "},
    kinds.CATEGORY_NOT_SPACE: PRINTABLE - {" "},
    kinds.CATEGORY_NOT_DIGIT: PRINTABLE - set(string.digits),
    kinds.CATEGORY_NOT_WORD: PRINTABLE - set(string.digits + string.ascii_letters + "_"),
}
PLACEHOLDER = re.compile(r"\{(\d+)([xdaAlU])\}")
ANY_TEXT = re.compile(r"(\{1\w\})*(\{17\w\})?(\{1\w\})?")  # forms of patterns that most texts match
TIME = "2026-01-02T03:04:05.678Z"
LENGTH = 17  # of a part whose length the pattern does not say


class Unsupported(Exception):
    pass


def arn_resource(type_name: str) -> str:
    """The usual start of a type's ARN resource: `job-queue` for `AWS::Batch::JobQueue`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", type_name.split("::")[2]).lower()


def example(form: str) -> str:
    """A value of a form, as Corral would fill it."""
    filled = form.replace("{region}", "us-east-1").replace("{account}", "123456789012").replace("{name}", "stack-resource-abc123")
    filled = filled.replace("{time}", TIME)
    return PLACEHOLDER.sub(lambda match: (CHARSETS[match[2]] * 20)[7 : 7 + int(match[1])], filled)


def value_form(pattern: str, path: str, resource: str, prefix: str) -> str | None:
    """The form of values that match a pattern. None: the pattern says nothing that Corral would not do anyway."""
    usual = f"arn:aws:{prefix}:{{region}}:{{account}}:{resource}/{{name}}"
    is_arn = path.lower().endswith("arn")
    if is_arn and _matches(pattern, usual):
        return None
    if _matches(pattern, TIME) and not _matches(pattern, "stack"):
        return "{time}"
    try:
        tree = parser.parse(pattern)
        forms = [_form(tree, 0), _form(tree, -1)]
    except (Unsupported, re.error, OverflowError):
        return None
    forms.sort(key=lambda form: form.startswith("arn") != is_arn)  # a pattern may accept an id and an ARN
    for form in forms:
        for candidate in _candidates(form, usual, resource, prefix):
            filled = example(candidate)
            if 4 <= len(filled) < 300 and not ANY_TEXT.fullmatch(candidate) and _matches(pattern, candidate):
                return candidate
    return None


def _candidates(form: str, usual: str, resource: str, prefix: str) -> list[str]:
    """Forms to try, the best first. An ARN has the region and the account of its resource if the pattern permits that."""
    if not form.startswith("arn"):
        return [form]
    parts = form.split(":", 5)
    if len(parts) < 6:
        return [f"arn:aws:{prefix}:{{region}}:{{account}}:{form.rpartition(':')[2]}", usual, form]
    service = parts[2] if parts[2].replace("-", "").isalnum() else prefix
    rests = [parts[5], f"{resource}/{parts[5].partition('/')[2]}", f"{resource}/{{name}}", f"{parts[4]}:{parts[5]}"]
    if not ((parts[5][:1].isalpha() and len(parts[5]) > 2) or parts[5].startswith("/")):
        rests = rests[1:]
    places = ("{region}:{account}", ":{account}", ":")
    return [f"arn:aws:{service}:{place}:{rest}" for rest in rests for place in places] + [form]


def _matches(pattern: str, form: str) -> bool:
    try:
        return re.search(pattern, example(form)) is not None
    except re.error:
        return False


def _form(tree: Any, chosen: int) -> str:
    """The form of a parsed pattern. `chosen` is the index of the alternative to use where the pattern has several."""
    return "".join(_part(kind, argument, chosen) for kind, argument in tree)


def _part(kind: Any, argument: Any, chosen: int) -> str:
    if kind is kinds.LITERAL:
        return chr(argument)
    if kind in (kinds.IN, kinds.ANY, kinds.NOT_LITERAL):
        return _characters(_allowed(kind, argument), 1)
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
        low, high, inner = argument
        high = 10_000 if high is kinds.MAXREPEAT else int(high)
        if len(inner) == 1 and inner[0][0] in (kinds.IN, kinds.ANY, kinds.NOT_LITERAL):
            count = low if low == high else max(low, min(high, LENGTH))
            return _characters(_allowed(*inner[0]), count)
        return _form(inner, chosen) * low
    if kind is kinds.SUBPATTERN:
        return _form(argument[3], chosen)
    if kind is kinds.BRANCH:
        forms = [form for form in (_form(each, chosen) for each in argument[1]) if form]
        return forms[chosen] if forms else ""
    if kind is kinds.AT:
        return ""
    raise Unsupported


def _allowed(kind: Any, argument: Any) -> set[str]:
    if kind is kinds.ANY:
        return PRINTABLE
    if kind is kinds.NOT_LITERAL:
        return PRINTABLE - {chr(argument)}
    found: set[str] = set()
    for inner, value in argument:
        if inner is kinds.LITERAL:
            found.add(chr(value))
        elif inner is kinds.RANGE:
            found |= {chr(code) for code in range(value[0], min(value[1], 0x7E) + 1)}
        elif inner is kinds.CATEGORY:
            found |= CATEGORIES.get(value, set())
    return PRINTABLE - found if argument[0][0] is kinds.NEGATE else found


def _characters(allowed: set[str], count: int) -> str:
    if count == 0:
        return ""
    for name, charset in CHARSETS.items():
        if set(charset) <= allowed:
            return f"{{{count}{name}}}"
    usable = sorted(character for character in allowed if character in PRINTABLE)
    if not usable:
        raise Unsupported
    return usable[0] * count
