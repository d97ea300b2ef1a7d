"""Read access to the service models: operations, and the shapes (types) of their inputs, outputs and errors.

botocore has such classes, too. But importing them also imports botocore's HTTP client. With this import, the server would take a
third longer to start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar, cast

K = TypeVar("K")
F = TypeVar("F", bound=Callable[..., Any])
ServiceDescription = Mapping[str, Any]  # the content of the model file: "metadata", "operations", "shapes"

_SERIALIZATION_KEYS = (
    "queryName", "flattened", "location", "payload", "streaming", "timestampFormat", "xmlNamespace", "resultWrapper",
    "xmlAttribute", "eventstream", "jsonvalue",
)  # fmt: skip
WIRE_KEYS = frozenset({"locationName", *_SERIALIZATION_KEYS})
_CONSTRAINT_KEYS = ("min", "max", "enum", "pattern")


class Shape:
    """A shape at one place of the model, for example as a member.

    The member's own keys override those of the shape's description.
    """

    def __init__(self, name: str, description: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
        self.name = name
        self.type_name: str = description["type"]
        self._description = description
        self._shapes = shapes

    @cached_property
    def serialization(self) -> dict[str, Any]:
        """The shape's location and encoding in a request or response. The key `name` is its name there."""
        found = {key: self._description[key] for key in _SERIALIZATION_KEYS if key in self._description}
        if "locationName" in self._description:
            found["name"] = self._description["locationName"]
        return found

    @cached_property
    def members(self) -> dict[str, Shape]:
        """The members of a structure."""
        return {name: resolved(ref, self._shapes) for name, ref in self._description.get("members", {}).items()}

    @property
    def required_members(self) -> list[str]:
        """The names of a structure's required members."""
        names: list[str] = self._description.get("required", [])
        return names

    @cached_property
    def member(self) -> Shape:
        """The element shape of a list."""
        return resolved(self._description["member"], self._shapes)

    @cached_property
    def key(self) -> Shape:
        """The key shape of a map."""
        return resolved(self._description["key"], self._shapes)

    @cached_property
    def value(self) -> Shape:
        """The value shape of a map."""
        return resolved(self._description["value"], self._shapes)

    @property
    def constraints(self) -> dict[str, Any]:
        """The shape's constraints. The possible keys are `min`, `max`, `enum` and `pattern`."""
        return {key: self._description[key] for key in _CONSTRAINT_KEYS if key in self._description}

    @property
    def is_sensitive(self) -> bool:
        """True if the value is secret, so that error messages must not contain it."""
        return bool(self._description.get("sensitive", False))

    @property
    def is_document_type(self) -> bool:
        """True if the value may be any JSON value."""
        return bool(self._description.get("document", False))

    @property
    def writes_nulls(self) -> bool:
        """True if members whose value is None are written as null. Only structures of Corral's own service have this key."""
        return bool(self._description.get("nulls", False))

    @property
    def is_event_stream(self) -> bool:
        """True if one of the members is an event stream."""
        return self.type_name == "structure" and any(member.serialization.get("eventstream") for member in self.members.values())

    @property
    def error(self) -> Mapping[str, Any]:
        """For an error shape: the keys `code` (if it differs from the name of the shape) and `httpStatusCode`."""
        error: Mapping[str, Any] = self._description.get("error", {})
        return error

    @property
    def is_fault(self) -> bool:
        """For an error shape: True if the service caused the error, not the client."""
        return bool(self._description.get("fault", False))


class OperationModel:
    def __init__(self, name: str, description: Mapping[str, Any], service: ServiceModel) -> None:
        self.name = name
        self.service_model = service
        self.metadata = service.metadata
        self.http: Mapping[str, Any] = description.get("http", {})
        self.deprecated = bool(description.get("deprecated", False))
        self._description = description

    @cached_property
    def input_shape(self) -> Shape | None:
        return self._shape("input")

    @cached_property
    def output_shape(self) -> Shape | None:
        return self._shape("output")

    def _shape(self, part: str) -> Shape | None:
        return resolved(self._description[part], self.service_model.shapes) if part in self._description else None


class ServiceModel:
    def __init__(self, description: ServiceDescription, service_name: str) -> None:
        self.service_name = service_name
        self.metadata: Mapping[str, Any] = description["metadata"]
        self.operations: Mapping[str, Any] = description["operations"]
        self.shapes: Mapping[str, Any] = description["shapes"]
        self._operation_models: dict[str, OperationModel] = {}

    def operation_model(self, name: str) -> OperationModel:
        """Return the model of an operation. Repeated calls return the same object."""
        found = self._operation_models.get(name)
        if found is None:
            found = self._operation_models[name] = OperationModel(name, self.operations[name], self)
        return found

    @property
    def error_shapes(self) -> list[Shape]:
        """All errors that the service's operations may return."""
        return [Shape(name, shape, self.shapes) for name, shape in self.shapes.items() if shape.get("exception")]


def resolved(reference: Mapping[str, Any], shapes: Mapping[str, Any]) -> Shape:
    """Return the shape that a reference points to. Keys of the reference override keys of the shape's description."""
    name = reference["shape"]
    return Shape(name, shapes[name] if len(reference) == 1 else {**shapes[name], **reference}, shapes)


def compiled_once(compiled: dict[K, F], key: K, compile_: Callable[[], F]) -> F:
    """Return the reader or writer of a shape. Compile and store it, if the shape has none yet.

    A shape that contains itself needs its own reader while the reader is still being compiled. So first store a function that
    finds the reader later.
    """
    known = compiled.get(key)
    if known is None:
        compiled[key] = cast("F", lambda *values: compiled[key](*values))
        compiled[key] = known = compile_()
    return known
