"""Every constraint of every served operation, in real requests: its error comes before anything is looked up.

The parameters name resources that do not exist. So the response is the error of the constraint, or else a look-up came first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import pytest

from answers.recorder import RECORD
from corral.aws import ApiCall, Request, recognise
from corral.aws.constraints import table_of
from corral.aws.constraints.check import violations
from corral.aws.constraints.tables import ConstraintTable
from corral.aws.constraints.tree import ConstraintNode, constrained, input_node
from corral.aws.models import service_model
from corral.aws.shapes import Shape
from corral.aws.wire_errors import MISSING_BY_PROTOCOL, MISSING_BY_SERVICE, MISSING_DEFAULT, error_class
from corral.core.errors import ApiError
from corral.operations.services import SERVICES
from fuzz.composer import NotSerializable, serialized, served_operations
from harness import Corral
from raw_aws import Answer, Connection, RawRequest
from wire.constraint_values import Path, placed, valid, wrong
from wire.oracle import protocols_of

IN_FLIGHT = 8
DEEPEST = 6
OTHER_PROTOCOLS_EVERY = (
    5  # the checks of a service are the same in all its protocols: a sample of the second and third one is enough
)
EXACT = {"json", "smithy-rpc-v2-cbor"}  # protocols that can send every value; a form has no empty list, XML no control characters


class Case(NamedTuple):
    operation: str
    what: str  # "tags.[].key: max"
    params: dict[str, Any]
    codes: frozenset[str]  # of Corral's error classes


@pytest.mark.parametrize("service", list(SERVICES))
def test_every_violation_is_refused_before_a_look_up(corral: Corral, service: str) -> None:
    for number, protocol in enumerate(protocols_of(service)):
        names = [name for found, its, name in served_operations() if (found, its) == (service, protocol)]
        every = 1 if number == 0 else OTHER_PROTOCOLS_EVERY
        cases = [case for name in names for case in islice(cases_of(service, protocol, name), 0, None, every)]
        wrong, unsent = asyncio.run(_refused(corral, service, protocol, cases))
        print(f"{service} ({protocol}): {len(cases)} cases, {len(unsent)} of them cannot be sent")
        assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:20])
        assert protocol not in EXACT or not unsent, unsent[:20]
        assert len(unsent) < len(cases) / 3, f"{protocol}: {len(cases)} cases, of which these cannot be sent: {unsent[:20]}"


def cases_of(service: str, protocol: str, operation: str) -> Iterator[Case]:
    table = table_of(service, protocol)
    model = service_model(service, protocol).operation_model(operation)
    if model.input_shape is None:
        return
    node = input_node(model, table.limits)
    for path, inner in constrained(node) if node is not None else ():
        for limit in inner.limits:
            for term, value in wrong(inner, limit):
                if value == 2**31:
                    continue  # the maximum is that of the type, and the parser refuses larger numbers
                params = placed(model.input_shape, node, path, value)
                yield Case(operation, f"{'.'.join(path)}: {term}", params, _codes(table, operation, violations(node, params)))
    for path in _required(model.input_shape, ()):
        params = _without(model.input_shape, node, path)
        yield Case(operation, f"{'.'.join(path)}: required", params, _missing_codes(service, protocol, model.input_shape, path))


def _codes(table: ConstraintTable, operation: str, found: list[Any]) -> frozenset[str]:
    assert found
    return frozenset(each.limit.code or table.wording(operation, [each]).code for each in found)


# --- required members ---------------------------------------------------------------------------------------------------


def _required(shape: Shape, above: tuple[str, ...], path: Path = ()) -> Iterator[Path]:
    """Yield the path of every required member. Labels of a URL are left out: without them it is another request."""
    if shape.name in above or len(path) > DEEPEST:
        return
    if shape.type_name == "list":
        yield from _required(shape.member, (*above, shape.name), (*path, "[]"))
    elif shape.type_name == "map":
        yield from _required(shape.value, (*above, shape.name), (*path, "<value>"))
    elif shape.type_name == "structure" and not shape.is_document_type:
        for name, member in shape.members.items():
            if name in shape.required_members and member.serialization.get("location") not in ("uri", "querystring"):
                yield (*path, name)
            yield from _required(member, (*above, shape.name), (*path, name))


def _without(shape: Shape, node: ConstraintNode | None, path: Path) -> dict[str, Any]:
    """A valid value that lacks the member at the path."""
    inner_shape, inner_node = shape, node
    for part in path[:-1]:
        inner_shape, inner_node = _step(inner_shape, inner_node, part)
    owner = {name: value for name, value in valid(inner_shape, inner_node).items() if name != path[-1]}
    params: dict[str, Any] = placed(shape, node, path[:-1], owner)
    return params


def _step(shape: Shape, node: ConstraintNode | None, part: str) -> tuple[Shape, ConstraintNode | None]:
    if part == "[]":
        return shape.member, node.element if node is not None else None
    if part == "<value>":
        return shape.value, node.value if node is not None else None
    return shape.members[part], node.members.get(part) if node is not None else None


def _missing_codes(service: str, protocol: str, shape: Shape, path: Path) -> frozenset[str]:
    if protocol == "rest-xml" and (len(path) > 1 or shape.serialization.get("payload") == path[0]):
        return frozenset({"MalformedXML"})
    return frozenset({MISSING_BY_SERVICE.get(service) or MISSING_BY_PROTOCOL.get(protocol, MISSING_DEFAULT)})


# --- requests -----------------------------------------------------------------------------------------------------------


async def _refused(corral: Corral, service: str, protocol: str, cases: list[Case]) -> tuple[list[str], list[str]]:
    """Send all cases. Returns the wrong responses, and the cases that the protocol cannot send."""
    wrong_ones: list[str] = []
    unsent: list[str] = []
    todo = iter(cases)

    async def work() -> None:
        connection = Connection(corral)
        for case in todo:
            name = f"{service}:{case.operation} ({protocol}) {case.what}"
            try:
                request = serialized(service, protocol, case.operation, case.params)
                call = _recognised(request)
            except (NotSerializable, ApiError):  # without a key it is another operation
                unsent.append(name)
                continue
            if not _arrives(call, case):
                unsent.append(name)
                continue
            answer, expected = await connection(request), _sent(call, case.codes)
            if not _is_expected(request, answer, expected):
                wrong_ones.append(f"{name}: {answer.status} {answer.code}, not {sorted(expected)}: {answer.body[:200]!r}")
            elif request.method != "HEAD":
                RECORD.add_error(service, case.operation, answer.code.rpartition("#")[2])
        await connection.close()

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return wrong_ones, unsent


def _recognised(request: RawRequest) -> ApiCall:
    scope = f"AWS4-HMAC-SHA256 Credential=a/d/us-east-1/{request.signing_name}/aws4_request, SignedHeaders=host"
    headers = {**request.headers, "authorization": scope, "host": "127.0.0.1:4566"}
    return recognise(Request(request.method, request.path, request.query, headers, request.body))


def _arrives(call: ApiCall, case: Case) -> bool:
    """Whether the request still has the violation. A form cannot send an empty list, XML no control characters."""
    try:
        call.params()
    except ApiError as error:
        return error.code in case.codes
    return False


def _sent(call: ApiCall, codes: frozenset[str]) -> set[str]:
    """The codes as the protocol sends them."""
    responses = [call.serialize_error(error_class(code)("text"), "id") for code in codes]
    return {Answer(each.status, {name.lower(): value for name, value in each.headers}, each.body).code for each in responses}


def _is_expected(request: RawRequest, answer: Answer, codes: set[str]) -> bool:
    if not 400 <= answer.status < 500:
        return False
    return answer.status == 400 if request.method == "HEAD" else answer.code in codes
