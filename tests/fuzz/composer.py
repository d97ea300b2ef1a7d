"""Composes valid requests of every served operation that refer to resources which exist.

`Knowledge` holds values by the name of their member: those of the deep state (`deep_state.py`), and those that responses contained.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any
from urllib.parse import quote

from botocore.serialize import create_serializer

from corral.aws.cbor import EpochSeconds, cbor_from_value
from corral.aws.constraints import table_of
from corral.aws.constraints.tree import ConstraintNode, input_node
from corral.aws.models import service_model
from corral.aws.shapes import Shape
from corral.operations.services import SERVICES
from raw_aws import Answer, RawRequest, query_text
from wire.constraint_values import valid
from wire.generate import TEXTS
from wire.oracle import PROTOCOLS, as_datetimes, model_of, protocols_of

VALUES_MAX = 40  # of one member
NOT_MODELLED = {"PostObject"}
DEEPEST = 5
FRAMING = {"connection", "content-length", "expect", "host", "transfer-encoding"}  # headers that the client itself must set

Params = dict[str, Any]
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # as HTTP allows it
_XML_LEAF = re.compile(rb"<(\w+)(?: [^>]*)?>([^<]{1,3000})</\1>")


class NotSerializable(Exception):
    """The mutated parameters cannot be sent: a label of the path is missing, a date is out of range, or CBOR has no such value."""


def served_operations() -> list[tuple[str, str, str]]:
    """(service, protocol, operation) of everything that Corral serves and botocore can serialize."""
    return [
        (service, protocol, name)
        for service in SERVICES
        for protocol in PROTOCOLS.get(service) or protocols_of(service)
        for name in sorted(SERVICES[service].operations)
        if name not in NOT_MODELLED and name in model_of(service, protocol).operation_names
    ]


class Knowledge:
    """Values that were seen, by service and member name. A member of another name with the same stem is a second choice."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._lasting: dict[tuple[str, str], list[Any]] = {}  # of the deep state
        self._learnt: dict[tuple[str, str], list[Any]] = {}  # of responses

    def know(self, service: str, name: str, value: Any) -> None:
        for key in {(service, name.lower()), (service, _stem(name))}:
            self._lasting.setdefault(key, []).append(value)

    def _add(self, service: str, name: str, value: Any) -> None:
        for key in {(service, name.lower()), (service, _stem(name))}:
            values = self._learnt.setdefault(key, [])
            if value in values:
                continue
            if len(values) < VALUES_MAX:
                values.append(value)
            else:
                values[self._rng.randrange(VALUES_MAX)] = value

    def learn(self, service: str, answer: Answer) -> None:
        """Remember the values of a response."""
        if answer.body.startswith(b"{") and service != "s3":  # of S3 it would be an object
            for name, value in _leaves(json.loads(answer.body), ""):
                self._add(service, name, value)
        elif answer.body.startswith(b"<?xml"):
            for name, text in _XML_LEAF.findall(answer.body[:20_000]):
                self._add(service, name.decode(), _unescaped(text.decode("utf-8", "replace")))
        for header, name in (("x-amz-version-id", "VersionId"), ("etag", "ETag")):
            if header in answer.headers:
                self._add(service, name, answer.headers[header])

    def some(self, service: str, name: str, rng: Random) -> Any:
        """A value for a member; None if there is none."""
        keys = [(service, name.lower()), (service, _stem(name))]
        kinds = [values[key] for values in (self._lasting, self._learnt) for key in keys if key in values]
        return rng.choice(kinds[0] if rng.random() < 0.7 else rng.choice(kinds)) if kinds else None


def _stem(name: str) -> str:
    stem = name.lower().removesuffix("s")
    for suffix in ("arn", "name", "id", "url", "identifier"):
        stem = stem.removesuffix(suffix) or stem
    return f"~{stem}"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, key)
    elif isinstance(value, list):
        for inner in value[:5]:
            yield from _leaves(inner, name)
    elif isinstance(value, str) and name and len(value) < 3000:
        yield name, value


def _unescaped(text: str) -> str:
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#39;", "'"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return text


class Composer:
    def __init__(self, rng: Random, knowledge: Knowledge, examples: dict[tuple[str, str], list[Params]]) -> None:
        self._rng = rng
        self._knowledge = knowledge
        self._examples = examples

    def params(self, service: str, protocol: str, operation: str) -> Params:
        """Parameters that the operation could accept: an example, random members, or both."""
        rng = self._rng
        shape, node = input_of(service, protocol, operation)
        if shape is None:
            return {}
        examples = self._examples.get((service, operation))
        if not examples:
            return self._structure(service, shape, node, 0)
        params = json.loads(json.dumps(rng.choice(examples)))
        if rng.random() < 0.2:
            params = {**self._structure(service, shape, node, 0), **params}
        return params

    def value(self, service: str, name: str, shape: Shape, node: ConstraintNode | None, depth: int) -> Any:
        kind, rng = shape.type_name, self._rng
        if kind == "structure":
            return self._structure(service, shape, node, depth)
        if kind == "list":
            element = node.element if node is not None else None
            return [self.value(service, name, shape.member, element, depth + 1) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        if kind == "map":
            inner = node.value if node is not None else None
            keys = {str(self.value(service, "key", shape.key, node.key if node is not None else None, depth + 1)) for _ in range(2)}
            return {key: self.value(service, name, shape.value, inner, depth + 1) for key in keys}
        if kind == "string":
            enum = shape.constraints.get("enum")
            known = self._knowledge.some(service, name, rng)
            if known is not None and rng.random() < (0.2 if enum else 0.9):
                return str(known)
            if enum:
                return rng.choice(enum)
            return valid(shape, node) if rng.random() < 0.8 else rng.choice(TEXTS)
        if kind == "timestamp":
            return rng.choice((0.0, 1_790_000_000.0, 1_800_000_000.0, 4e9))
        if kind == "blob":
            return rng.choice((b"", b"abc", b"\xff\x00" * 20))
        if kind in ("float", "double"):
            return rng.choice((0.0, 1.0, -1.5, 1e300))
        if kind == "boolean":
            return rng.random() < 0.5
        return valid(shape, node) if rng.random() < 0.5 else rng.choice((0, 1, 2, 5, 10, 60, 100, 300, 3600))

    def _structure(self, service: str, shape: Shape, node: ConstraintNode | None, depth: int) -> Params:
        if shape.is_document_type:
            return {"any": [1, None]}
        likely = 0.0 if depth >= DEEPEST else 0.08 if service == "s3" and depth == 0 else 0.2
        members = node.members if node is not None else {}
        return {
            name: self.value(service, name, member, members.get(name), depth + 1)
            for name, member in shape.members.items()
            if name in shape.required_members or self._rng.random() < likely
        }


@cache
def input_of(service: str, protocol: str, operation: str) -> tuple[Shape | None, ConstraintNode | None]:
    model = service_model(service, protocol).operation_model(operation)
    return model.input_shape, input_node(model, table_of(service, protocol).limits)


# --- parameters to requests ---------------------------------------------------------------------------------------------


def serialized(service: str, protocol: str, operation: str, params: Any) -> RawRequest:
    """The request for these parameters. Formats that are not JSON or CBOR need parameters of the right types."""
    try:
        return _serialized(service, protocol, operation, params)
    except Exception as error:
        raise NotSerializable(operation) from error


def _serialized(service: str, protocol: str, operation: str, params: Any) -> RawRequest:
    model = model_of(service, protocol)
    if protocol == "json":
        headers = {
            "content-type": f"application/x-amz-json-{model.metadata['jsonVersion']}",
            "x-amz-target": f"{model.metadata['targetPrefix']}.{operation}",
        }
        text = json.dumps(params, default=_as_json, ensure_ascii=False)
        return RawRequest(model.signing_name, headers=headers, body=text.encode("utf-8", "surrogatepass"))
    if protocol == "smithy-rpc-v2-cbor":
        path = f"/service/{model.metadata['targetPrefix']}/operation/{operation}"
        shape, _ = input_of(service, protocol, operation)
        body = cbor_from_value(_as_cbor(shape, params)) if shape is not None else b""
        headers = {"smithy-protocol": "rpc-v2-cbor", "content-type": "application/cbor"}
        return RawRequest(model.signing_name, path=path, headers=headers, body=body)
    shape = model.operation_model(operation).input_shape
    typed = as_datetimes(shape, params) if shape is not None else {}
    made = _serializer(protocol).serialize_to_request(typed, model.operation_model(operation))
    body = made["body"]
    if isinstance(body, dict):
        body = query_text([(name, str(value)) for name, value in body.items()])
    pairs = [(name, str(value)) for name, values in _query(made["query_string"]) for value in values]
    path, _, fixed = made["url_path"].partition("?")
    query = "&".join(part for part in (fixed, query_text(pairs)) if part)
    headers = {
        name.lower(): value
        for name, value in made["headers"].items()
        if name.lower() not in FRAMING and _HEADER_NAME.fullmatch(name)
    }
    return RawRequest(
        model.signing_name,
        made["method"],
        quote(path, safe="/~%-_.!*'():@&=+$,"),
        query,
        {name: value.decode("latin-1") if isinstance(value, bytes) else str(value) for name, value in headers.items()},
        body=body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body or b""),
    )


@cache
def _serializer(protocol: str) -> Any:
    return create_serializer(protocol, include_validation=False)


def _query(query: Any) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(query, dict):
        for name, value in query.items():
            yield name, value if isinstance(value, list) else [value]


def _as_json(value: Any) -> Any:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _as_cbor(shape: Shape, value: Any) -> Any:
    """Mark the timestamps of parameters that have the right types."""
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        return {n: _as_cbor(shape.members[n], inner) if n in shape.members else inner for n, inner in value.items()}
    if kind == "list" and isinstance(value, list):
        return [_as_cbor(shape.member, inner) for inner in value]
    if kind == "map" and isinstance(value, dict):
        return {key: _as_cbor(shape.value, inner) for key, inner in value.items()}
    return EpochSeconds(value) if kind == "timestamp" and isinstance(value, float) else value
