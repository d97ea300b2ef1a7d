"""Finds the references in a part of a template, and checks the arguments of its functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from corral.decide.templates.template import TemplateError, function_of, get_att_parts, is_text, text_of

PSEUDO_PARAMETERS = frozenset(
    f"AWS::{name}"
    for name in ("AccountId", "NotificationARNs", "NoValue", "Partition", "Region", "StackId", "StackName", "URLSuffix")
)
LANGUAGE_EXTENSIONS = "AWS::LanguageExtensions"
SUPPORTED = (
    "Fn::Base64, Fn::GetAtt, Fn::GetAZs, Fn::ImportValue, Fn::Join, Fn::Split, Fn::FindInMap, Fn::Select, Ref, Fn::Equals, Fn::If, "
    "Fn::Not, Condition, Fn::And, Fn::Or, Fn::Contains, Fn::EachMemberEquals, Fn::EachMemberIn, Fn::ValueOf, Fn::ValueOfAll, "
    "Fn::RefAll, Fn::Sub, Fn::Cidr"
)
JOIN_ARGUMENTS = (
    "Template error: every Fn::Join object requires two parameters, (1) a string delimiter and (2) a list of strings to be joined "
    "or a function that returns a list of strings (such as Fn::GetAZs) to be joined."
)
SPLIT_ARGUMENTS = (
    "Template error: every Fn::Split object requires two parameters, (1) a string delimiter and (2) a string to be split or a "
    "function that returns a string to be split."
)
SELECT_ARGUMENTS = "Template error: Fn::Select requires a list argument with two elements: an integer index and a list"
SELECT_INDEX = "Template error: Fn::Select requires a list argument with a valid index value as its first element"
REF_ARGUMENT = "Template error: every Ref object must have a single String value."
GET_ATT_ARGUMENTS = (
    "Template error: every Fn::GetAtt object requires two non-empty parameters, the resource name and the resource attribute"
)
FIND_IN_MAP_ARGUMENTS = (
    "Template error: every Fn::FindInMap object requires three parameters, the map name, map key and the attribute for return value"
)
SUB_ARGUMENTS = (
    "Template error: One or more Fn::Sub intrinsic functions don't specify expected arguments. Specify a string as first argument, "
    "and an optional second argument to specify a mapping of values to replace in the string"
)
SUB_VALUES = (
    "Template error: every value of the context object of every Fn::Sub object must be a string or a function that returns a string"
)
SUB_NAMES = (
    "Template error: variable names in Fn::Sub syntax must contain only alphanumeric characters, underscores, periods, and colons"
)
CIDR_ARGUMENTS = (
    "Template error: every Fn::Cidr object requires three parameters, (1) an IP block, (2) a count between 1 and 256 and (3) the "
    "number of subnet bits"
)
IMPORT_ARGUMENTS = (
    "Template error: the attribute in Fn::ImportValue must not depend on any resources, imported values, or Fn::GetAZs"
)

_VARIABLE_NAME = re.compile(r"[A-Za-z0-9_.:]+")


def mapping_missing(name: str) -> TemplateError:
    return TemplateError(f"Template error: Mapping named '{name}' is not present in the 'Mappings' section of template.")


def no_transform(name: str) -> TemplateError:
    return TemplateError(f"No transform named {name} found. Corral supports {LANGUAGE_EXTENSIONS}.")


def sub_parts(text: str) -> list[str]:
    """Split the text of Fn::Sub: literals stand at even indexes, names of variables at odd ones."""
    parts: list[str] = []
    literal: list[str] = []
    position = 0
    while (start := text.find("${", position)) >= 0 and (end := text.find("}", start)) >= 0:
        literal.append(text[position:start])
        name = text[start + 2 : end]
        if name.startswith("!"):  # ${!Literal} stands for ${Literal}
            literal.append("${" + name[1:] + "}")
        elif _VARIABLE_NAME.fullmatch(name):
            parts += ["".join(literal), name]
            literal = []
        else:
            raise TemplateError(SUB_NAMES)
        position = end + 1
    return [*parts, "".join([*literal, text[position:]])]


def sub_arguments(argument: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of Fn::Sub and the values of its own variables."""
    if is_text(argument):
        return text_of(argument), {}
    if isinstance(argument, list) and len(argument) == 2 and is_text(argument[0]) and isinstance(argument[1], dict):
        return text_of(argument[0]), argument[1]
    raise TemplateError(SUB_ARGUMENTS)


def default_value(argument: Any) -> Any:
    """Return the value of the fourth argument of Fn::FindInMap."""
    if not isinstance(argument, dict) or list(argument) != ["DefaultValue"]:
        raise TemplateError(FIND_IN_MAP_ARGUMENTS)
    return argument["DefaultValue"]


class Scope:
    """The names that a template declares. Functions refer to them."""

    def __init__(
        self,
        parameters: Collection[str],
        resources: Collection[str],
        mappings: Mapping[str, Any],
        conditions: Collection[str],
        has_extensions: bool,
    ) -> None:
        self.values = frozenset(parameters) | PSEUDO_PARAMETERS
        self.resources = frozenset(resources)
        self.mappings = mappings
        self.conditions = frozenset(conditions)
        self.has_extensions = has_extensions


class References:
    """The references of one part of a template. `scan` collects them.

    `required` has the resources that the part always needs, and `optional` those inside of Fn::If. `unresolved` has names that no
    parameter and no resource has.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.required: set[str] = set()
        self.optional: set[str] = set()
        self.unresolved: dict[str, None] = {}  # in the order of the template
        self.functions: set[str] = set()
        self.branches = 0  # the number of calls of Fn::If around the value

    def scan(self, value: Any) -> None:
        kind = type(value)
        if kind is dict:
            name = function_of(value)
            if name is None:
                for inner in value.values():
                    self.scan(inner)
            else:
                self._function(name, value[name])
        elif kind is list:
            for inner in value:
                self.scan(inner)

    def _function(self, name: str, argument: Any) -> None:
        check = _CHECKS.get(name)
        if check is None:
            if name == "Fn::Transform":
                found = argument.get("Name") if isinstance(argument, dict) else argument
                raise no_transform(text_of(found) if is_text(found) else "")
            raise unsupported(name)
        if name in ("Fn::Length", "Fn::ToJsonString") and not self.scope.has_extensions:
            raise unsupported(name)
        self.functions.add(name)
        check(self, argument)

    def refer(self, name: str) -> None:
        if name in self.scope.resources:
            (self.optional if self.branches else self.required).add(name)
        elif name not in self.scope.values:
            self.unresolved[name] = None


def unsupported(name: str) -> TemplateError:
    return TemplateError(f"Template error: Encountered unsupported function: {name} Supported functions are: [{SUPPORTED}]")


def _check_ref(found: References, argument: Any) -> None:
    if not isinstance(argument, str):
        raise TemplateError(REF_ARGUMENT)
    found.refer(argument)


def _check_get_att(found: References, argument: Any) -> None:
    parts = get_att_parts(argument)
    if parts is None:
        raise TemplateError(GET_ATT_ARGUMENTS)
    if parts[0] not in found.scope.resources:
        raise TemplateError(f"Template error: instance of Fn::GetAtt references undefined resource {parts[0]}")
    found.refer(parts[0])
    found.scan(parts[1])


def _check_sub(found: References, argument: Any) -> None:
    text, own = sub_arguments(argument)
    for name in sub_parts(text)[1::2]:
        if name in own:
            continue
        logical_id, dot, _ = name.partition(".")
        if dot and logical_id not in found.scope.resources:
            raise TemplateError(f"Template error: instance of Fn::Sub references invalid resource attribute {name}")
        found.refer(logical_id)
    for value in own.values():
        found.scan(value)


def _check_list(message: str, length: int) -> Callable[[References, Any], None]:
    def check(found: References, argument: Any) -> None:
        if not isinstance(argument, list) or len(argument) != length:
            raise TemplateError(message)
        found.scan(argument)

    return check


def _check_join(found: References, argument: Any) -> None:
    if not isinstance(argument, list) or len(argument) != 2 or not is_text(argument[0]):
        raise TemplateError(JOIN_ARGUMENTS)
    if type(argument[1]) is not list and function_of(argument[1]) is None:
        raise TemplateError(JOIN_ARGUMENTS)
    found.scan(argument[1])


def _check_select(found: References, argument: Any) -> None:
    if not isinstance(argument, list) or not argument:
        raise TemplateError(SELECT_INDEX)
    if len(argument) != 2 or (type(argument[1]) is not list and function_of(argument[1]) is None):
        raise TemplateError(SELECT_ARGUMENTS)
    found.scan(argument)


def _check_find_in_map(found: References, argument: Any) -> None:
    if not isinstance(argument, list) or len(argument) not in (3, 4):
        raise TemplateError(FIND_IN_MAP_ARGUMENTS)
    if len(argument) == 4:
        default_value(argument[3])
    if len(argument) == 3 and isinstance(argument[0], str) and argument[0] not in found.scope.mappings:
        raise mapping_missing(argument[0])
    found.scan(argument)


def _check_if(found: References, argument: Any) -> None:
    if not isinstance(argument, list) or not argument or not isinstance(argument[0], str):
        raise TemplateError("Template error: Fn::If requires a list argument with the first element being a condition")
    if len(argument) != 3:
        raise TemplateError("Template error: Fn::If requires a list argument with three elements")
    if argument[0] not in found.scope.conditions:
        raise TemplateError(f"Template error: unresolved condition dependency {argument[0]} in Fn::If")
    found.branches += 1
    found.scan(argument[1:])
    found.branches -= 1


def _check_import(found: References, argument: Any) -> None:
    inside = References(found.scope)
    inside.scan(argument)
    if inside.required or inside.optional or inside.unresolved or inside.functions & {"Fn::ImportValue", "Fn::GetAZs"}:
        raise TemplateError(IMPORT_ARGUMENTS)


def _check_any(found: References, argument: Any) -> None:
    found.scan(argument)


def _check_boolean(name: str) -> Callable[[References, Any], None]:
    def check(found: References, argument: Any) -> None:  # boolean functions are only allowed in Conditions and Rules
        raise TemplateError(f"Template error: {name} cannot be partially collapsed")

    return check


_CHECKS: dict[str, Callable[[References, Any], None]] = {
    "Ref": _check_ref,
    "Fn::Base64": _check_any,
    "Fn::Cidr": _check_list(CIDR_ARGUMENTS, 3),
    "Fn::FindInMap": _check_find_in_map,
    "Fn::GetAtt": _check_get_att,
    "Fn::GetAZs": _check_any,
    "Fn::If": _check_if,
    "Fn::ImportValue": _check_import,
    "Fn::Join": _check_join,
    "Fn::Length": _check_any,
    "Fn::Select": _check_select,
    "Fn::Split": _check_list(SPLIT_ARGUMENTS, 2),
    "Fn::Sub": _check_sub,
    "Fn::ToJsonString": _check_any,
    **{name: _check_boolean(name) for name in ("Fn::And", "Fn::Or", "Fn::Not", "Fn::Equals")},
}


def check_condition(raw: Any, found: References) -> list[str]:
    """Check a condition, or an operand of one. Return the names of the conditions that it uses."""
    if type(raw) is not dict or len(raw) != 1:
        raise _not_boolean()
    ((name, argument),) = raw.items()
    if name == "Condition":
        if not isinstance(argument, str):
            raise TemplateError("Template error: every Condition object must have a single String value.")
        return [argument]
    if name == "Fn::Equals":
        if not isinstance(argument, list) or len(argument) != 2:
            raise TemplateError("Template error: every Fn::Equals object requires a list of 2 string parameters.")
        found.scan(argument)
        return []
    if name == "Fn::Not":
        if not isinstance(argument, list) or len(argument) != 1:
            raise TemplateError("Template error: every Fn::Not object requires a list with exactly 1 boolean parameter.")
        return check_condition(argument[0], found)
    if name in ("Fn::And", "Fn::Or"):
        if not isinstance(argument, list) or not 2 <= len(argument) <= 10:
            raise TemplateError(
                f"Template error: every {name} object requires a list of at least 2 and at most 10 boolean parameters."
            )
        return [used for operand in argument for used in check_condition(operand, found)]
    if name not in _CHECKS and name.startswith("Fn::"):
        raise unsupported(name)
    raise _not_boolean()


def _not_boolean() -> TemplateError:
    return TemplateError("Template format error: Conditions can only be boolean operations on parameters and other conditions")
