"""Reads the text of a template, in JSON or in YAML 1.1 with the short forms of functions.

CloudFormation supports a part of YAML 1.1. It refuses aliases, so that a small text cannot become a large tree. It reads dates and
merge keys as plain text. If a key occurs twice, the last value counts.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from corral.decide.templates.template import TemplateError
from corral.model.json_documents import has_many_values
from corral.model.numbers import INT64_MAX

TEMPLATE_MAX_BYTES = 1_000_000
FLOAT_MAX = 1.7e308
NESTING_MAX = 128  # a function is two levels: an object and its list of arguments
UNSUPPORTED = "Template format error: unsupported structure."
SHORT_FORMS = {
    "!Ref": "Ref",
    "!Condition": "Condition",
    **{
        f"!{name}": f"Fn::{name}"
        for name in (
            "And", "Base64", "Cidr", "Contains", "EachMemberEquals", "EachMemberIn", "Equals", "FindInMap", "GetAtt", "GetAZs",
            "If", "ImportValue", "Join", "Length", "Not", "Or", "RefAll", "Select", "Split", "Sub", "ToJsonString", "Transform",
            "ValueOf", "ValueOfAll",
        )
    },
}  # fmt: skip
YAML_TAG = "tag:yaml.org,2002:"

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS = {
    text: value
    for word, value in {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}.items()
    for text in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+)", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*)",
    re.ASCII,
)
_DIGITS_MAX = 400


def read_template(text: str) -> dict[str, Any]:
    """Read a template. Short forms become long forms, for example `!GetAtt A.B` becomes `{"Fn::GetAtt": ["A", "B"]}`."""
    if len(text) > TEMPLATE_MAX_BYTES or len(text.encode("utf-8", "replace")) > TEMPLATE_MAX_BYTES:
        raise TemplateError(f"Template may not exceed {TEMPLATE_MAX_BYTES} bytes in size.")
    text = text.removeprefix("\ufeff")
    tree = _read_json(text) if text.lstrip().startswith("{") else _read_yaml(text)
    if not isinstance(tree, dict):
        raise TemplateError(UNSUPPORTED)
    return tree


def _too_deep() -> TemplateError:
    return TemplateError(f"Template format error: The template is nested more than {NESTING_MAX} levels deep.")


def _read_json(text: str) -> Any:
    if has_many_values(text) and has_many_values(_without_strings(text)):
        raise TemplateError("Template format error: The template has too many values.")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if "depth" in error.msg or "ecursion" in error.msg:  # the words depend on the version of orjson
            raise _too_deep() from None
        where = f" (line {error.lineno}, column {error.colno})"
        raise TemplateError(f"Template format error: JSON not well-formed.{where}") from None
    level, depth = [document], 0
    while level := [inner for value in level for inner in _inside(value)]:
        depth += 1
        if depth > NESTING_MAX:
            raise _too_deep()
    return document


def _without_strings(text: str) -> str:
    """Return a JSON text without the contents of its strings. Each step is fast, because it stops all other threads."""
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    return '"'.join(unescaped.split('"')[::2])


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _read_yaml(text: str) -> Any:
    import yaml  # imported only here, because commands other than template uploads do not need it

    try:
        return _YamlReader(yaml).read(text)
    except yaml.MarkedYAMLError as error:
        raise _malformed(error.problem_mark or error.context_mark) from None
    except (yaml.YAMLError, ValueError):
        raise _malformed(None) from None


def _malformed(mark: Any) -> TemplateError:
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return TemplateError(f"Template format error: YAML not well-formed.{where}")


class _YamlReader:
    """Builds the tree from the events of the parser, so that depth and aliases are checked before anything is built."""

    def __init__(self, yaml: Any) -> None:
        self.yaml = yaml

    def read(self, text: str) -> Any:
        yaml = self.yaml
        scalar, alias = yaml.ScalarEvent, yaml.AliasEvent
        mapping_start, sequence_start = yaml.MappingStartEvent, yaml.SequenceStartEvent
        ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
        roots: list[Any] = []
        # One entry for each open collection: the collection, and the function of its short form.
        stack: list[tuple[Any, str | None]] = [(roots, None)]
        keys: list[str | None] = [None]  # for each open collection, the key that waits for its value
        depth = 0
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            kind = type(event)
            if kind is scalar:
                collection = stack[-1][0]
                if type(collection) is dict and keys[-1] is None:
                    keys[-1] = event.value
                    continue
                value = self._scalar(event)
            elif kind is mapping_start or kind is sequence_start:
                self._refuse_key(stack[-1][0], keys[-1], event)
                function = self._function(event)
                depth += 1 if function is None else 2
                if depth > NESTING_MAX:
                    raise _too_deep()
                stack.append(({} if kind is mapping_start else [], function))
                keys.append(None)
                continue
            elif kind in ends:
                value, function = stack.pop()
                keys.pop()
                depth -= 1 if function is None else 2
                if function is not None:
                    value = {function: value}
            elif kind is alias:
                raise TemplateError("Template error: YAML aliases are not allowed in CloudFormation templates")
            else:
                continue
            collection = stack[-1][0]
            key = keys[-1]
            if type(collection) is dict:
                assert key is not None
                collection[key] = value
                keys[-1] = None
            else:
                collection.append(value)
        if len(roots) != 1:
            raise TemplateError(UNSUPPORTED)
        return roots[0]

    def _refuse_key(self, collection: Any, key: str | None, event: Any) -> None:
        if type(collection) is dict and key is None:  # a list or an object as a key
            raise _malformed(event.start_mark)

    def _function(self, event: Any) -> str | None:
        tag = event.tag
        if tag is None or tag in ("!", YAML_TAG + "map", YAML_TAG + "seq"):
            return None
        if tag not in SHORT_FORMS:
            raise _malformed(event.start_mark)
        return SHORT_FORMS[tag]

    def _scalar(self, event: Any) -> Any:
        tag, text = event.tag, event.value
        if tag is None:
            return _plain(text) if event.implicit[0] else text
        if tag in SHORT_FORMS:
            function = SHORT_FORMS[tag]
            return {function: text.split(".", 1) if function == "Fn::GetAtt" else text}
        if tag in ("!", YAML_TAG + "str"):
            return text
        if tag in (YAML_TAG + "int", YAML_TAG + "float", YAML_TAG + "bool", YAML_TAG + "null"):
            return _plain(text)
        raise _malformed(event.start_mark)


def _plain(text: str) -> Any:
    """Convert an unquoted scalar as YAML 1.1 does, except for dates."""
    first = text[:1]
    if first in "0123456789+-." and first:
        number: int | float | None = None
        if len(text) <= _DIGITS_MAX:
            if _INTEGER.fullmatch(text):
                number = _integer(text.replace("_", ""))
            elif _FLOAT.fullmatch(text):
                number = _float(text.replace("_", ""))
        # JSON cannot hold larger numbers, so they stay text.
        return text if number is None or abs(number) > (INT64_MAX if isinstance(number, int) else FLOAT_MAX) else number
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    return None if text in _NULL else text


def _integer(text: str) -> int:
    sign = -1 if text[0] == "-" else 1
    digits = text.lstrip("+-")
    if ":" in digits:
        number = 0
        for part in digits.split(":"):
            number = number * 60 + int(part)
        return sign * number
    if digits.startswith("0b"):
        return sign * int(digits[2:] or "0", 2)
    if digits.startswith("0x"):
        return sign * int(digits[2:] or "0", 16)
    return sign * (int(digits, 8) if digits.startswith("0") else int(digits))


def _float(text: str) -> float:
    if ":" not in text:
        return float(text)
    sign = -1.0 if text[0] == "-" else 1.0
    number = 0.0
    for part in text.lstrip("+-").split(":"):
        number = number * 60 + float(part)
    return sign * number
