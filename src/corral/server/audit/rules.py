"""Which calls are recorded, and what of their parameters and results.

CloudTrail calls an operation read-only if it changes nothing, and a data event if it is about data, such as an object or a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.models import service_model
from corral.aws.shapes import ServiceModel, Shape

HIDDEN = "HIDDEN_DUE_TO_SECURITY_REASONS"  # what CloudTrail shows in the place of a secret
DEPTH_MAX = 12  # the depth to which parameters are searched for secrets; the deepest ones have a depth of 9

READS = re.compile(
    "BatchCheck|BatchGet|Check|Count|Describe|Discover|Filter|Generate|Get|Head|List|Lookup|Search|Simulate|Test|Validate"
)
# Operations about data. Those that do not read are recorded only if corral.toml names their service in [audit] data.
DATA = {
    "cloudwatch": re.compile("PutMetricData"),
    "corral": re.compile("PeekMessages"),
    "ecs": re.compile("Submit.*"),  # the reports of agents
    "lambda": re.compile("Invoke.*"),
    "logs": re.compile("PutLogEvents"),
    "s3": re.compile("(?!.*ObjectLockConfiguration).*(Object|Multipart|Part).*"),
    "sns": re.compile("Publish.*"),
    "sqs": re.compile("(ChangeMessageVisibility|DeleteMessage|ReceiveMessage|SendMessage).*"),
}
# Operations of Corral's own about the data of another service.
DATA_OF = {("corral", "PeekMessages"): "sqs"}
# Members that may contain secrets although the model does not mark them: the value of a variable, a parameter of a template, the
# text of a template, user data, code, and the content of a message or an object.
SECRETS = frozenset({"Body", "Message", "MessageBody", "ParameterValue", "TemplateBody", "UserData", "ZipFile"})
VARIABLES = frozenset({"environment", "Environment"})
IDENTIFIER = re.compile(r"\w*(Arn|ARN|Id|Name|Url)s?|id|name")


def _model(service: str) -> ServiceModel:
    return service_model(service, SERVICE_BY_NAME[service].protocols[0])


class CallKind(Enum):
    READ = "read"
    MANAGEMENT = "management"
    DATA = "data"


class RecordRules(NamedTuple):
    """How the calls of one operation are recorded."""

    kind: CallKind
    without_secrets: Callable[[Mapping[str, Any]], Mapping[str, Any]]  # copies the parameters
    identifiers: Callable[[Mapping[str, Any]], Mapping[str, Any]]  # finds the names and ids in the result


@cache  # the number of operations is limited
def kind_of(service: str, operation: str) -> CallKind:
    data = DATA.get(service)
    if data is not None and data.fullmatch(operation):
        return CallKind.DATA
    return CallKind.READ if READS.match(operation) else CallKind.MANAGEMENT


@cache
def without_secrets(service: str, operation: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that copies the parameters of an operation, and hides secrets."""
    shape = _model(service).operation_model(operation).input_shape
    hidden = _hidden(shape, in_variables=False, depth=0) if shape is not None else None
    if not hidden:
        return lambda params: params
    return lambda params: {
        name: _copied(value, hidden[name]) if name in hidden else value for name, value in params.items() if name[:1] != "_"
    }


def _hidden(shape: Shape, *, in_variables: bool, depth: int) -> Any:
    """Return where a value of this shape has secrets: True if it is one, None if it has none, else by the name of the member."""
    if shape.is_sensitive:
        return True
    if depth >= DEPTH_MAX:
        return None
    if shape.type_name == "structure":
        found = {
            name: True
            if name in SECRETS or (in_variables and name.lower() == "value")
            else _hidden(member, in_variables=name in VARIABLES or in_variables, depth=depth + 1)
            for name, member in shape.members.items()
        }
        return {name: value for name, value in found.items() if value is not None} or None
    if shape.type_name == "list":
        return _hidden(shape.member, in_variables=in_variables, depth=depth + 1)
    if shape.type_name == "map":
        inner = True if in_variables else _hidden(shape.value, in_variables=in_variables, depth=depth + 1)
        return None if inner is None else {"*": inner}
    return None


def _copied(value: Any, hidden: Any) -> Any:
    if hidden is None:
        return value
    if hidden is True:
        return HIDDEN
    if isinstance(value, list):
        return [_copied(each, hidden) for each in value]
    every = hidden.get("*")
    return {name: _copied(inner, hidden.get(name, every)) for name, inner in value.items()} if isinstance(value, Mapping) else value


@cache
def rules_of(call: tuple[str, str]) -> RecordRules:
    """Return the rules of a call: its service and its operation. Each call has the same ones, so they are made once."""
    return RecordRules(kind_of(*call), without_secrets(*call), identifiers(*call))


def names_in(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters that are names or ids."""
    return {name: value for name, value in params.items() if isinstance(value, str) and IDENTIFIER.fullmatch(name)}


@cache
def identifiers(service: str, operation: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that finds the names and ids in the result of an operation: its own, and those one level below."""
    shape = _model(service).operation_model(operation).output_shape
    members = shape.members if shape is not None else {}
    own = tuple(name for name, each in members.items() if _is_identifier(name, each))
    inner: dict[str, tuple[str, ...]] = {}
    for name, each in members.items():
        of = each.member if each.type_name == "list" else each
        if of.type_name == "structure":
            names = tuple(inside for inside, member in of.members.items() if _is_identifier(inside, member))
            if names and not each.is_sensitive:
                inner[name] = names

    def found(result: Mapping[str, Any]) -> Mapping[str, Any]:
        shown: dict[str, Any] = {name: result[name] for name in own if result.get(name)}
        for name, names in inner.items():
            value = result.get(name)
            if isinstance(value, list):
                some = [{inside: each[inside] for inside in names if inside in each} for each in value if isinstance(each, Mapping)]
                if some:
                    shown[name] = some
            elif isinstance(value, Mapping):
                shown[name] = {inside: value[inside] for inside in names if inside in value}
        return shown

    return found


def _is_identifier(name: str, shape: Shape) -> bool:
    return shape.type_name == "string" and not shape.is_sensitive and IDENTIFIER.fullmatch(name) is not None
