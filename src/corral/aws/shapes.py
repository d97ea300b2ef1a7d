"""What the descriptions of AWS's services say of their operations and of the shapes of their data.

botocore has classes for this too, but with them comes all of its HTTP client: a third of what a server would import at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

Description = Mapping[str, Any]  # as it is in the file: "metadata", "operations", "shapes"

_ON_THE_WIRE = (
    "queryName", "flattened", "location", "payload", "streaming", "timestampFormat", "xmlNamespace", "resultWrapper",
    "xmlAttribute", "eventstream", "jsonvalue",
)  # fmt: skip
_TERMS = ("min", "max", "enum", "pattern")


class Shape:
    """One shape, as whoever refers to it means it."""

    def __init__(self, name: str, said: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
        self.name = name
        self.type_name: str = said["type"]
        self._said = said
        self._shapes = shapes

    @cached_property
    def serialization(self) -> dict[str, Any]:
        """Where and how it stands in a message; `name` is what it is called there."""
        found = {word: self._said[word] for word in _ON_THE_WIRE if word in self._said}
        if "locationName" in self._said:
            found["name"] = self._said["locationName"]
        return found

    @cached_property
    def members(self) -> dict[str, Shape]:
        """A structure's."""
        return {name: referred(ref, self._shapes) for name, ref in self._said.get("members", {}).items()}

    @property
    def required_members(self) -> list[str]:
        """Of a structure, those that must be there."""
        names: list[str] = self._said.get("required", [])
        return names

    @cached_property
    def member(self) -> Shape:
        """What a list is of."""
        return referred(self._said["member"], self._shapes)

    @cached_property
    def key(self) -> Shape:
        """What a map's keys are."""
        return referred(self._said["key"], self._shapes)

    @cached_property
    def value(self) -> Shape:
        """What a map's values are."""
        return referred(self._said["value"], self._shapes)

    @property
    def terms(self) -> dict[str, Any]:
        """Its constraints: `min`, `max`, `enum` and `pattern`, those that it has."""
        return {word: self._said[word] for word in _TERMS if word in self._said}

    @property
    def is_sensitive(self) -> bool:
        """Whether its value must not be repeated in error texts."""
        return bool(self._said.get("sensitive", False))

    @property
    def is_document_type(self) -> bool:
        """Whether any JSON may stand here."""
        return bool(self._said.get("document", False))

    @property
    def is_event_stream(self) -> bool:
        """Whether one of its members is an open end of messages."""
        return self.type_name == "structure" and any(member.serialization.get("eventstream") for member in self.members.values())

    @property
    def error(self) -> Mapping[str, Any]:
        """What an error says of itself: its `code`, where that is not its name, and its `httpStatusCode`."""
        said: Mapping[str, Any] = self._said.get("error", {})
        return said

    @property
    def is_fault(self) -> bool:
        """Whether an error is the service's own."""
        return bool(self._said.get("fault", False))


class OperationModel:
    def __init__(self, name: str, said: Mapping[str, Any], service: ServiceModel) -> None:
        self.name = name
        self.service_model = service
        self.metadata = service.metadata
        self.http: Mapping[str, Any] = said.get("http", {})
        self.deprecated = bool(said.get("deprecated", False))
        self._said = said

    @cached_property
    def input_shape(self) -> Shape | None:
        return self._shape("input")

    @cached_property
    def output_shape(self) -> Shape | None:
        return self._shape("output")

    def _shape(self, part: str) -> Shape | None:
        return referred(self._said[part], self.service_model.shapes) if part in self._said else None


class ServiceModel:
    def __init__(self, description: Description, service_name: str) -> None:
        self.service_name = service_name
        self.metadata: Mapping[str, Any] = description["metadata"]
        self.operations: Mapping[str, Any] = description["operations"]
        self.shapes: Mapping[str, Any] = description["shapes"]
        self._operation_models: dict[str, OperationModel] = {}

    def operation_model(self, name: str) -> OperationModel:
        """One operation, always the same object."""
        found = self._operation_models.get(name)
        if found is None:
            found = self._operation_models[name] = OperationModel(name, self.operations[name], self)
        return found

    @property
    def error_shapes(self) -> list[Shape]:
        """All errors that any of its operations may answer with."""
        return [Shape(name, said, self.shapes) for name, said in self.shapes.items() if said.get("exception")]


def referred(reference: Mapping[str, Any], shapes: Mapping[str, Any]) -> Shape:
    """The shape that is meant: what the reference says of it goes before what it says of itself."""
    name = reference["shape"]
    return Shape(name, shapes[name] if len(reference) == 1 else {**shapes[name], **reference}, shapes)
