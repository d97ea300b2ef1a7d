"""Corral's classes for service models, compared with botocore's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from botocore.model import ServiceModel

from corral.aws import catalogue
from corral.aws.models import query_code, service_model
from corral.aws.shapes import Shape
from wire.oracle import LOADER

OF_CLIENTS = {"hostLabel", "event", "eventheader", "eventpayload"}  # used only by clients


@pytest.mark.parametrize("service", catalogue.SERVICES, ids=lambda service: service.name)
def test_models_are_the_same_as_in_botocore(service: catalogue.AwsService) -> None:
    ours = service_model(service.name, service.protocols[0])
    theirs = ServiceModel(LOADER.load_service_model(service.name, "service-2"), service.name)
    assert ours.operations.keys() >= set(theirs.operation_names)  # S3's has PostObject, too
    pairs: list[tuple[Any, Any]] = []
    for name in theirs.operation_names:
        here, there = ours.operation_model(name), theirs.operation_model(name)
        assert (here.http, here.deprecated) == (there.http, there.deprecated)
        pairs += [(here.input_shape, there.input_shape), (here.output_shape, there.output_shape)]
    seen: set[str] = set()
    while pairs:
        mine, its = pairs.pop()
        assert _told(mine) == _told(its)
        if mine is not None and mine.name not in seen:
            seen.add(mine.name)
            pairs += zip(_inner(mine), _inner(its))


@pytest.mark.parametrize("service", [s for s in catalogue.SERVICES if s.name != "sqs"], ids=lambda service: service.name)
def test_errors_have_the_same_codes(service: catalogue.AwsService) -> None:
    ours = service_model(service.name, service.protocols[0])
    theirs = ServiceModel(LOADER.load_service_model(service.name, "service-2"), service.name).error_shapes
    here = {shape.name: (query_code(ours, shape), shape.error.get("httpStatusCode")) for shape in ours.error_shapes}
    assert here == {shape.name: (shape.error_code, shape.metadata.get("error", {}).get("httpStatusCode")) for shape in theirs}


def test_a_model_has_no_documentation() -> None:
    said = service_model("ecs", "json").shapes
    assert not any("documentation" in shape for shape in said.values())
    assert not any("documentation" in member for shape in said.values() for member in shape.get("members", {}).values())


def test_models_are_loaded_without_importing_botocore() -> None:
    """Importing botocore would make a server's start a third longer."""
    code = "import sys, corral.aws.models as m; m.service_model('ecs', 'json'); sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _told(shape: Any) -> Any:
    """Return the description of a shape in the terms that both have."""
    if shape is None:
        return None
    is_structure = shape.type_name == "structure"
    streams = shape.is_event_stream if isinstance(shape, Shape) else shape.event_stream_name is not None
    return (
        shape.name,
        shape.type_name,
        {word: value for word, value in shape.serialization.items() if word not in OF_CLIENTS},
        list(shape.members) if is_structure else None,
        list(shape.required_members),
        bool(is_structure and shape.is_document_type),
        streams,
    )


def _inner(shape: Any) -> list[Any]:
    if shape.type_name == "structure":
        return list(shape.members.values())
    if shape.type_name == "map":
        return [shape.key, shape.value]
    return [shape.member] if shape.type_name == "list" else []
