"""Evaluates the intrinsic functions of a template."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from corral.decide.templates import references
from corral.decide.templates.template import TemplateError, function_of, get_att_parts, is_text, text_of
from corral.model.numbers import whole_number

Ref = Callable[[str], Any]
GetAtt = Callable[[str, str], Any]

CIDR_COUNT_MAX = 256
SIZE_MAX = 8_000_000
RESOLVE = "{{resolve:"
_DYNAMIC = re.compile(r"\{\{resolve:([^{}]*)\}\}")


class _NoValue:
    """The value of AWS::NoValue. Lists and objects drop it."""


NO_VALUE = _NoValue()


class Functions:
    """Evaluates functions with the values of one operation.

    `condition` returns whether a condition holds. `ref` and `get_att` are called for resources only. Functions can multiply a text,
    so one `Functions` object computes at most SIZE_MAX characters and items.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        mappings: Mapping[str, Any],
        *,
        condition: Callable[[str], bool],
        zones: Callable[[str], list[str]],
        imported: Callable[[str], str],
        dynamic: Callable[[str], str],
        ref: Ref,
        get_att: GetAtt,
    ) -> None:
        self.values = values
        self.mappings = mappings
        self.condition = condition
        self.zones = zones
        self.imported = imported
        self.dynamic = dynamic
        self.ref = ref
        self.get_att = get_att
        self.size = 0

    def value(self, raw: Any) -> Any:
        """Evaluate the functions in a raw value. Dynamic references stay in the texts."""
        kind = type(raw)
        if kind is str:
            return raw
        if kind is dict:
            name = function_of(raw)
            if name is not None:
                return self.call(name, raw[name])
            members = {}
            for key, inner in raw.items():
                value = self._member(inner)
                if value is not NO_VALUE:
                    members[key] = value
            return members
        if kind is list:
            return [value for value in map(self._member, raw) if value is not NO_VALUE]
        return raw

    def _member(self, raw: Any) -> Any:
        """Evaluate a member of an object or a list. A parameter whose value is the text `AWS::NoValue` removes the member."""
        value = self.value(raw)
        is_removed = type(value) is str and value == "AWS::NoValue" and type(raw) is dict and "Ref" in raw
        return NO_VALUE if is_removed else value

    def call(self, name: str, argument: Any) -> Any:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise references.unsupported(name)
        return function(self, argument)

    def with_dynamic(self, value: Any) -> Any:
        """Replace the dynamic references in the texts of an evaluated value."""
        kind = type(value)
        if kind is str:
            if RESOLVE not in value:
                return value
            value = _DYNAMIC.sub(lambda match: text_of(self.dynamic(match[1])), value)
            self._grow(len(value))
            return value
        if kind is dict:
            return {key: self.with_dynamic(inner) for key, inner in value.items()}
        if kind is list:
            self._grow(len(value))
            return [self.with_dynamic(inner) for inner in value]
        return value

    def _grow(self, size: int) -> None:
        self.size += size
        if self.size > SIZE_MAX:
            raise TemplateError(f"Template error: the functions of one value return more than {SIZE_MAX} characters")

    def _counted(self, value: Any) -> Any:
        """Return the value, and add its size to `size`. Each use counts, because responses and rows contain a copy for each use."""
        texts = value if isinstance(value, list | tuple) else [value]
        self._grow(len(texts) + sum(len(each) for each in texts if isinstance(each, str)))
        return value

    def _joined(self, delimiter: str, texts: list[str]) -> str:
        self._grow(sum(map(len, texts)) + len(delimiter) * len(texts))
        return delimiter.join(texts)

    def named(self, name: Any) -> Any:
        """The value of a parameter, a pseudo parameter or a resource."""
        if not isinstance(name, str):
            raise TemplateError(references.REF_ARGUMENT)
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self.values:
            return self._counted(self.values[name])
        return self._counted(self.ref(name))

    def text(self, raw: Any, message: str) -> str:
        value = self.value(raw)
        if not is_text(value):
            raise TemplateError(message)
        return text_of(value)

    def get_attribute(self, argument: Any) -> Any:
        parts = get_att_parts(argument)
        if parts is None:
            raise TemplateError(references.GET_ATT_ARGUMENTS)
        logical_id, attribute = parts
        return self._counted(self.get_att(logical_id, self.text(attribute, references.GET_ATT_ARGUMENTS)))

    def sub(self, argument: Any) -> str:
        text, own = references.sub_arguments(argument)
        parts = references.sub_parts(text)
        variables = {name: self._variable(name, own) for name in dict.fromkeys(parts[1::2])}
        parts[1::2] = [variables[name] for name in parts[1::2]]
        return self._joined("", parts)

    def _variable(self, name: str, own: dict[str, Any]) -> str:
        if name in own:
            value = self.value(own[name])
            if not is_text(value):
                raise TemplateError(references.SUB_VALUES)
        elif "." in name:
            value = self.get_att(*name.split(".", 1))
        else:
            value = self.named(name)
        if value is NO_VALUE:
            return ""
        if not is_text(value):
            raise TemplateError(f"Template error: variable {name} in Fn::Sub expression does not resolve to a string")
        return text_of(value)

    def join(self, argument: Any) -> str:
        if not isinstance(argument, list) or len(argument) != 2:
            raise TemplateError(references.JOIN_ARGUMENTS)
        items = self.value(argument[1])
        if not isinstance(items, list) or not all(map(is_text, items)):
            raise TemplateError(references.JOIN_ARGUMENTS)
        return self._joined(self.text(argument[0], references.JOIN_ARGUMENTS), list(map(text_of, items)))

    def split(self, argument: Any) -> list[str]:
        if not isinstance(argument, list) or len(argument) != 2:
            raise TemplateError(references.SPLIT_ARGUMENTS)
        delimiter, text = (self.text(each, references.SPLIT_ARGUMENTS) for each in argument)
        items = text.split(delimiter) if delimiter else [text]
        self._grow(len(text) + len(items))
        return items

    def select(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 2:
            raise TemplateError(references.SELECT_ARGUMENTS)
        index = whole_number(self.text(argument[0], references.SELECT_INDEX))
        if index is None:
            raise TemplateError(references.SELECT_INDEX)
        items = self.value(argument[1])
        if not isinstance(items, list):
            raise TemplateError(references.SELECT_ARGUMENTS)
        if index >= len(items):
            raise TemplateError(f"Template error: Fn::Select  cannot select nonexistent value at index {index}")
        return items[index]

    def find_in_map(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) not in (3, 4):
            raise TemplateError(references.FIND_IN_MAP_ARGUMENTS)
        name, key, attribute = (self.text(each, references.FIND_IN_MAP_ARGUMENTS) for each in argument[:3])
        mapping = self.mappings.get(name)
        found = mapping.get(key, {}).get(attribute) if mapping is not None else None
        if found is not None:
            return self._counted(found)
        if len(argument) == 4:
            return self.value(references.default_value(argument[3]))
        if mapping is None:
            raise references.mapping_missing(name)
        raise TemplateError(f"Template error: Unable to get mapping for {name}::{key}::{attribute}")

    def get_zones(self, argument: Any) -> list[str]:
        region = self.text(argument, "Template error: every Fn::GetAZs object must have a String-typed value.")
        return list(self.zones(region or text_of(self.values.get("AWS::Region", ""))))

    def base64(self, argument: Any) -> str:
        text = self.text(argument, "Template error: every Fn::Base64 object must have a String-typed value.")
        encoded = b64encode(self.with_dynamic(text).encode("utf-8", "replace")).decode()
        self._grow(len(encoded))
        return encoded

    def cidr(self, argument: Any) -> list[str]:
        if not isinstance(argument, list) or len(argument) != 3:
            raise TemplateError(references.CIDR_ARGUMENTS)
        block, *numbers = (self.text(each, references.CIDR_ARGUMENTS) for each in argument)
        count, bits = (whole_number(number, 1024) for number in numbers)
        if count is None or bits is None or not 1 <= count <= CIDR_COUNT_MAX:
            raise TemplateError(references.CIDR_ARGUMENTS)
        return list(self._counted(_blocks(block, count, bits)))

    def import_value(self, argument: Any) -> Any:
        name = self.text(argument, "Template error: every Fn::ImportValue object must have a String-typed value.")
        return self._counted(self.imported(name))

    def choose(self, argument: Any) -> Any:
        if not isinstance(argument, list) or len(argument) != 3 or not isinstance(argument[0], str):
            raise TemplateError("Template error: Fn::If requires a list argument with three elements")
        return self.value(argument[1 if self.condition(argument[0]) else 2])

    def length(self, argument: Any) -> int:
        items = self.value(argument)
        if not isinstance(items, list):
            raise TemplateError("Template error: every Fn::Length object requires a list or a function that returns a list.")
        return len(items)

    def to_json(self, argument: Any) -> str:
        value = self.value(argument)
        if not isinstance(value, dict | list):
            raise TemplateError("Template error: every Fn::ToJsonString object requires an object or a list.")
        text = orjson.dumps(value, default=text_of).decode()
        self._grow(len(text))
        return text

    def holds(self, raw: Any) -> bool:
        ((name, argument),) = raw.items()
        if name == "Condition":
            return self.condition(argument)
        if name == "Fn::Not":
            return not self.holds(argument[0])
        if name == "Fn::And":
            return all(self.holds(operand) for operand in argument)
        if name == "Fn::Or":
            return any(self.holds(operand) for operand in argument)
        return self.equal(self.value(argument[0]), self.value(argument[1]))

    @staticmethod
    def equal(first: Any, second: Any) -> bool:
        if is_text(first) and is_text(second):
            return text_of(first) == text_of(second)
        return bool(first == second)


@lru_cache(maxsize=64)  # templates compute the same blocks for each of their subnets
def _blocks(block: str, count: int, bits: int) -> tuple[str, ...]:
    try:
        network = ipaddress.ip_network(block, strict=False)
    except ValueError:
        raise TemplateError(f"Template error: invalid CIDR block {block}") from None
    prefix = network.max_prefixlen - bits
    if not network.prefixlen <= prefix <= network.max_prefixlen or bits < 1:
        raise TemplateError(f"Template error: invalid CIDR block size {bits}")
    if count > 1 << (prefix - network.prefixlen):
        raise TemplateError(f"Template error: {count} CIDR blocks of size {bits} do not fit into {block}")
    first = int(network.network_address)
    address = type(network.network_address)
    return tuple(f"{address(first + (number << bits))}/{prefix}" for number in range(count))


_FUNCTIONS: dict[str, Callable[[Functions, Any], Any]] = {
    "Ref": Functions.named,
    "Fn::Base64": Functions.base64,
    "Fn::Cidr": Functions.cidr,
    "Fn::FindInMap": Functions.find_in_map,
    "Fn::GetAtt": Functions.get_attribute,
    "Fn::GetAZs": Functions.get_zones,
    "Fn::If": Functions.choose,
    "Fn::ImportValue": Functions.import_value,
    "Fn::Join": Functions.join,
    "Fn::Length": Functions.length,
    "Fn::Select": Functions.select,
    "Fn::Split": Functions.split,
    "Fn::Sub": Functions.sub,
    "Fn::ToJsonString": Functions.to_json,
}
