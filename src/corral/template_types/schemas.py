"""AWS's schemas of all resource types: which properties exist, which are required, and which force a replacement when they change.

`schemas.dat` has one compressed JSON document per type. `tools/cloudformation_facts.py` generates it from AWS's own schemas. Only
the documents of the types in use are read and decompressed.

A node of a schema is a text or a dict. A text is a type such as "string", "any" for every type, or "#NAME", which refers to a
definition. A dict has the key `type`: one type, or a list of types. An object has `properties` and `required`. Its `patterns` map a
regular expression to the node of the properties with matching names. It has `open` if other properties are permitted. `one` lists
sets of properties: the object must have all properties of exactly one set. `any` is the same for at least one set. An array has
`items`. A path such as `Destinations/*/Name` names a property inside others.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, convert, field

from corral.core.errors import api_error
from corral.model.numbers import INT64_MAX

ValidationError = api_error("ValidationError")
Properties = Mapping[str, Any]
Node = str | dict[str, Any]

FILE = Path(__file__).with_name("schemas.dat")
TYPES_CACHED_MAX = 128
INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d{1,18}\.?\d{0,18}|\.\d{1,18})([eE][+-]?\d{1,3})?", re.ASCII)
BOOLEANS = {"true": True, "false": False}
# The names of types in CloudFormation's error texts: for the Python type of a value, and for a type in the schema.
JSON_NAMES = {str: "String", bool: "Boolean", int: "Integer", float: "Double", list: "JSONArray", dict: "JSONObject"}
WANTED = {
    "string": "String",
    "integer": "Number",
    "number": "Number",
    "boolean": "Boolean",
    "array": "JSONArray",
    "object": "JSONObject",
}
WRONG = object()  # the result of a conversion that is not possible
# Type in the schema → Python type of the values that need no conversion.
UNCHANGED: dict[Any, type] = {"string": str, "integer": int, "boolean": bool}


class Facts(Struct, frozen=True):
    top: dict[str, Any]  # the node of all properties
    definitions: dict[str, Any] = field(default_factory=dict)
    create_only: tuple[str, ...] = ()  # paths of the properties that force a replacement
    conditional: tuple[str, ...] = ()  # paths of the conditionally create-only properties (see `TemplateType.replaces`)
    read_only: tuple[str, ...] = ()  # paths of the properties that AWS sets, and a template cannot set
    identifier: tuple[str, ...] = ()  # paths of the properties that identify a resource
    attributes: tuple[str, ...] = ()  # the names for GetAtt, such as `Endpoint.Address`
    tags: tuple[str, str] | None = None  # the property with tags, and its form: "list" or "map"
    forms: dict[str, str] = field(default_factory=dict)  # path → the form of its values, such as `fs-{17x}` (`reference_values.py`)
    max_length: dict[str, int] = field(default_factory=dict)  # property → the maximum number of its characters
    read: str = ""  # the operation that describes a resource on AWS, such as `iam:GetUser`

    def resolved(self, node: Node) -> dict[str, Any]:
        """Return a node as a dict. If the node refers to a definition, return the definition."""
        while isinstance(node, str) and node.startswith("#"):
            node = self.definitions[node[1:]]
        return {"type": node} if isinstance(node, str) else node

    def at(self, path: str) -> dict[str, Any]:
        """Return the node at a path. A property that the schema does not describe has the type "any"."""
        node = self.top
        for part in path.split("/"):
            inner = node.get("items") if part == "*" else node.get("properties", {}).get(part)
            node = self.resolved(inner if inner is not None else "any")
        return node

    @property
    def properties(self) -> dict[str, Node]:
        """The properties that a template can have."""
        return {name: node for name, node in self.top.get("properties", {}).items() if name not in self.read_only}

    @property
    def required(self) -> list[str]:
        found: list[str] = self.top.get("required", [])
        return [name for name in found if name not in self.read_only]


class _Index(Struct, frozen=True):
    dictionary: bytes
    places: dict[str, tuple[int, int]]  # type → position and size of its facts
    prefixes: dict[str, str]  # service → the prefix of its ARNs, if it is not the name of the service in lower case


@cache
def _index() -> _Index:
    with FILE.open("rb") as file:
        header = orjson.loads(file.readline())
        dictionary, position, places = file.read(header["dictionary"]), file.tell(), {}
    for name, size in header["types"].items():
        places[name] = (position, size)
        position += size
    return _Index(dictionary, places, header["prefixes"])


def has_schema(name: str) -> bool:
    return name in _index().places


def type_names() -> Iterator[str]:
    return iter(_index().places)


def arn_prefix(name: str) -> str:
    """Return the prefix of the type's service in ARNs: `states` for AWS::StepFunctions::StateMachine."""
    service = name.split("::")[1]
    return _index().prefixes.get(service, service.lower())


@lru_cache(maxsize=TYPES_CACHED_MAX)
def facts(name: str) -> Facts:
    index = _index()
    position, size = index.places[name]
    with FILE.open("rb") as file:
        file.seek(position)
        packed = file.read(size)
    return convert(orjson.loads(zlib.decompressobj(-15, zdict=index.dictionary).decompress(packed)), Facts)


def check_properties(name: str, logical_id: str, properties: Properties) -> dict[str, Any]:
    """Return the properties with the types of the schema. Raise a ValidationError that names all violations.

    A template may contain numbers and booleans as text, and numbers where the schema has text. Members that begin with "_" are
    Corral's own.
    """
    own = {member: value for member, value in properties.items() if member.startswith("_")}
    given = {member: value for member, value in properties.items() if not member.startswith("_")}
    check = _Check(facts(name))
    checked = check.value(check.facts.top, given, "#")
    if check.violations:
        listed = "\n".join(check.violations)
        raise ValidationError(f"Properties validation failed for resource {logical_id} with message:\n{listed}")
    return {**checked, **own}


class _Check:
    """Converts the properties of one resource, and collects violations in CloudFormation's words."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.violations: list[str] = []

    def value(self, node: Node, value: Any, path: str) -> Any:
        if node.__class__ is str and UNCHANGED.get(node) is value.__class__:
            return value
        resolved = self.facts.resolved(node)
        wanted = resolved["type"]
        if wanted == "any":
            return value
        kinds = wanted if isinstance(wanted, list) else [wanted]
        kind = next((kind for kind in kinds if _is_of(kind, value)), None)
        if kind == "object":
            return self._object(resolved, value, path)
        if kind == "array":
            return [self.value(resolved.get("items", "any"), each, f"{path}/{index}") for index, each in enumerate(value)]
        converted = (
            value
            if kind is not None
            else next((each for each in (_converted(k, value) for k in kinds) if each is not WRONG), WRONG)
        )
        if converted is WRONG:
            found = "Null" if value is None else JSON_NAMES.get(value.__class__, "String")
            self.violations.append(f"{path}: expected type: {WANTED[kinds[0]]}, found: {found}")
        elif "enum" in resolved and converted not in resolved["enum"]:
            self.violations.append(f"{path}: failed validation constraint for keyword [enum]")
        return converted

    def _object(self, node: dict[str, Any], value: Mapping[str, Any], path: str) -> dict[str, Any]:
        members, patterns = node.get("properties", {}), node.get("patterns", {})
        is_top = node is self.facts.top
        read_only = self.facts.read_only if is_top else ()
        self.violations += [
            f"{path}: required key [{name}] not found"
            for name in node.get("required", ())
            if name not in value and name not in read_only
        ]
        self._check_alternatives(node, value, path)
        found = {}
        for name, inner in value.items():
            known = members.get(name) if name not in read_only else None
            if known is None:
                known = next((each for pattern, each in patterns.items() if _matches(pattern, name)), None)
            if known is None and (node.get("open") or not (members or patterns)) and name not in read_only:
                known = "any"
            if known is None:
                self.violations.append(f"{path}: extraneous key [{name}] is not permitted")
            else:
                found[name] = self.value(known, inner, f"{path}/{name}")
        return found

    def _check_alternatives(self, node: dict[str, Any], value: Mapping[str, Any], path: str) -> None:
        if one := node.get("one"):
            matched = sum(all(name in value for name in names) for names in one)
            if matched != 1:
                self.violations.append(f"{path}: {matched} subschemas matched instead of one")
        if (several := node.get("any")) and not any(all(name in value for name in names) for names in several):
            self.violations.append(f"{path}: no subschema matched out of the total {len(several)} subschemas")


def _is_of(kind: str, value: Any) -> bool:
    if kind == "object":
        return isinstance(value, Mapping)
    if kind == "array":
        return isinstance(value, list)
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int):
        return kind in ("integer", "number")
    return kind == "string" if isinstance(value, str) else kind == "number" and isinstance(value, float)


def _converted(kind: str, value: Any) -> Any:
    """Return a scalar as another type, or WRONG if that is not possible."""
    if kind == "string":
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, int | float) else WRONG
    if kind == "boolean":
        return BOOLEANS.get(value.lower(), WRONG) if isinstance(value, str) else WRONG
    if kind == "integer" and isinstance(value, float):
        return _integer(value)
    if kind in ("integer", "number") and isinstance(value, str):
        if INTEGER.fullmatch(value):
            return int(value)
        if NUMBER.fullmatch(value) and isfinite(number := float(value)):
            return number if kind == "number" else _integer(number)
    return WRONG


def _integer(number: float) -> Any:
    """Return a number as an integer. Return WRONG if it is not whole, or if it has more than 64 bits, which orjson cannot write."""
    return int(number) if number.is_integer() and abs(number) <= INT64_MAX else WRONG


@cache
def _pattern(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:  # a few patterns are in Java's syntax
        return None


def _matches(pattern: str, name: str) -> bool:
    compiled = _pattern(pattern)
    return compiled is None or compiled.search(name) is not None


def changed_paths(paths: tuple[str, ...], old: Properties, new: Properties) -> list[str]:
    return sorted(path for path in paths if value_at(old, path) != value_at(new, path))


def value_at(properties: Any, path: str) -> Any:
    """Return the value at a path, or None. A path through a list returns the list of values."""
    return _at(properties, path.split("/"))


def _at(value: Any, parts: list[str]) -> Any:
    for index, part in enumerate(parts):
        if part == "*":
            return [_at(each, parts[index + 1 :]) for each in value] if isinstance(value, list) else None
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def tag_property(name: str) -> tuple[str, str] | None:
    """Return the property with the tags of a type, and its form: "list" of Key and Value, or "map"."""
    return facts(name).tags if has_schema(name) else None


def max_name_length(name: str, property_: str) -> int | None:
    """Return the maximum length of the property that names a resource, or None if the schema has no limit."""
    return facts(name).max_length.get(property_)
