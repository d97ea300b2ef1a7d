"""The parameters of a template: their declarations, and the values of an operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct, field

from corral.decide.pattern import Pattern, PatternError
from corral.decide.templates.template import ParameterDeclaration, Template, TemplateError, is_text, text_of

PARAMETERS_MAX = 200
VALUE_MAX_BYTES = 4096
NAME_MAX = 255
AWS_TYPES = (
    "AWS::EC2::AvailabilityZone::Name", "AWS::EC2::Image::Id", "AWS::EC2::Instance::Id", "AWS::EC2::KeyPair::KeyName",
    "AWS::EC2::SecurityGroup::GroupName", "AWS::EC2::SecurityGroup::Id", "AWS::EC2::Subnet::Id", "AWS::EC2::Volume::Id",
    "AWS::EC2::VPC::Id", "AWS::Route53::HostedZone::Id",
)  # fmt: skip
VALUE_TYPES = frozenset(
    ("String", "Number", "CommaDelimitedList", *AWS_TYPES, *(f"List<{each}>" for each in ("String", "Number", *AWS_TYPES)))
)
TYPES = VALUE_TYPES | {"AWS::SSM::Parameter::Name"} | {f"AWS::SSM::Parameter::Value<{each}>" for each in VALUE_TYPES}
ATTRIBUTES = frozenset((
    "Type", "Default", "NoEcho", "AllowedValues", "AllowedPattern", "MinLength", "MaxLength", "MinValue", "MaxValue", "Description",
    "ConstraintDescription",
))  # fmt: skip
ALPHANUMERIC = re.compile(r"[A-Za-z0-9]+")
NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")


class UsePreviousValue:
    """The value of a parameter that keeps the value of the previous operation."""


USE_PREVIOUS: Final = UsePreviousValue()


class ParameterValues(Struct, frozen=True):
    values: dict[str, Any] = field(default_factory=dict)  # what Ref returns: a string, or a list of strings
    texts: dict[str, str] = field(default_factory=dict)  # as given: for an SSM type, the name of the SSM parameter
    resolved_ssm: dict[str, str] = field(default_factory=dict)  # for SSM types: the value of the SSM parameter
    no_echo: frozenset[str] = frozenset()


def parameter_declarations(tree: Mapping[str, Any]) -> dict[str, ParameterDeclaration]:
    """Compile the section Parameters. A transform needs the values of parameters before the other sections can be compiled."""
    section = tree.get("Parameters", {})
    if not isinstance(section, dict):
        raise TemplateError("Template format error: Parameters section must be an object.")
    if len(section) > PARAMETERS_MAX:
        raise TemplateError(
            f"Template format error: Number of parameters, {len(section)}, is greater than maximum allowed, {PARAMETERS_MAX}"
        )
    return {name: _declaration(name, members) for name, members in section.items()}


def _declaration(name: str, members: Any) -> ParameterDeclaration:
    if not isinstance(members, dict):
        raise TemplateError("Template format error: Any Parameters member must be an object.")
    if not ALPHANUMERIC.fullmatch(name):
        raise TemplateError(f"Template format error: Parameter name {name} is non alphanumeric.")
    if len(name) > NAME_MAX:
        raise TemplateError(f"Template format error: Parameter name {name} is longer than {NAME_MAX} characters.")
    for key in members:
        if key not in ATTRIBUTES:
            raise TemplateError(f"Invalid template parameter property '{key}'")
    texts: dict[str, str] = {}
    for key, value in members.items():
        if key == "AllowedValues":
            continue
        if not is_text(value):
            raise TemplateError(f"Template format error: Every {key} member must be a string.")
        texts[key] = text_of(value)
    if "Type" not in texts:
        raise TemplateError("Template format error: Every Parameters object must contain a Type member.")
    if texts["Type"] not in TYPES:
        raise TemplateError(f"Template format error: Unrecognized parameter type: {texts['Type']}")
    for key in ("MinLength", "MaxLength", "MinValue", "MaxValue"):
        if key in texts and not NUMBER.fullmatch(texts[key]):
            raise TemplateError(f"Template format error: Parameter '{name}' {key} must be a number.")
    allowed = members.get("AllowedValues")
    if allowed is not None and not isinstance(allowed, list):
        raise TemplateError("Template format error: Every AllowedValues member must be a list.")
    if allowed is not None and not all(map(is_text, allowed)):
        raise TemplateError("Template format error: Every AllowedValues value must be a string.")
    declaration = ParameterDeclaration(
        name=name,
        type=texts["Type"],
        default=texts.get("Default"),
        description=texts.get("Description"),
        no_echo=texts.get("NoEcho", "").lower() == "true",
        allowed_values=tuple(map(text_of, allowed)) if allowed is not None else None,
        allowed_pattern=texts.get("AllowedPattern"),
        min_length=texts.get("MinLength"),
        max_length=texts.get("MaxLength"),
        min_value=texts.get("MinValue"),
        max_value=texts.get("MaxValue"),
        constraint_description=texts.get("ConstraintDescription"),
    )
    for low, high in (("MinLength", "MaxLength"), ("MinValue", "MaxValue")):
        if low in texts and high in texts and Decimal(texts[low]) > Decimal(texts[high]):
            raise TemplateError(f"Template error: Parameter '{name}' {low} must be less than {high}.")
    if declaration.default is not None:
        _check_value(declaration, declaration.default)
    return declaration


def parameter_values(
    template: Template | Mapping[str, ParameterDeclaration],
    given: Mapping[str, Any],
    previous: Mapping[str, Any],
    ssm: Callable[[str], str],
) -> ParameterValues:
    """Check the parameters of an operation and return their values.

    `given` maps names to texts, or to USE_PREVIOUS for UsePreviousValue. `previous` has the texts of the stack's last operation
    (`ParameterValues.texts`). `ssm` returns the value of an SSM parameter.
    """
    declarations = template.parameters if isinstance(template, Template) else template
    unknown = [name for name in given if name not in declarations]
    if unknown:
        raise TemplateError(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    texts: dict[str, str] = {}
    missing = []
    for name, declaration in declarations.items():
        value = given.get(name)
        if value is USE_PREVIOUS:
            if name not in previous:
                raise TemplateError(
                    f"Invalid input for parameter key {name}. Cannot specify usePreviousValue as true for a parameter key not in "
                    "the previous template"
                )
            value = previous[name]
        elif value is None:
            value = declaration.default
        if value is None:
            missing.append(name)
        else:
            texts[name] = text_of(value)
    if missing:
        raise TemplateError(f"Parameters: [{', '.join(missing)}] must have values")
    values: dict[str, Any] = {}
    resolved = {}
    for name, text in texts.items():
        declaration = declarations[name]
        _check_value(declaration, text)
        if declaration.is_ssm:
            text = resolved[name] = ssm(text)
        values[name] = _items(text) if declaration.is_list else text
    no_echo = frozenset(name for name, declaration in declarations.items() if declaration.no_echo)
    return ParameterValues(values=values, texts=texts, resolved_ssm=resolved, no_echo=no_echo)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def _check_value(declaration: ParameterDeclaration, text: str) -> None:
    name = declaration.name
    if len(text.encode("utf-8", "replace")) > VALUE_MAX_BYTES:
        raise TemplateError(f"Parameter '{name}' must contain at most {VALUE_MAX_BYTES} bytes")
    # The constraints of an SSM type apply to the name of the SSM parameter.
    is_list = declaration.is_list and not declaration.is_ssm
    for item in _items(text) if is_list else [text]:
        problem = _problem(declaration, item)
        if problem is not None:
            if declaration.constraint_description is not None:
                raise TemplateError(f"Parameter {name} failed to satisfy constraint: {declaration.constraint_description}")
            raise TemplateError(f"Parameter '{name}' {problem}")


def _problem(declaration: ParameterDeclaration, item: str) -> str | None:
    if declaration.type in ("Number", "List<Number>"):
        if not NUMBER.fullmatch(item):
            return "must be a number"
        number = Decimal(item)
        if declaration.min_value is not None and number < Decimal(declaration.min_value):
            return f"must be a number not less than {declaration.min_value}"
        if declaration.max_value is not None and number > Decimal(declaration.max_value):
            return f"must be a number not greater than {declaration.max_value}"
    if declaration.min_length is not None and len(item) < Decimal(declaration.min_length):
        return f"must contain at least {declaration.min_length} characters"
    if declaration.max_length is not None and len(item) > Decimal(declaration.max_length):
        return f"must contain at most {declaration.max_length} characters"
    if declaration.allowed_values is not None and item not in declaration.allowed_values:
        return "must be one of AllowedValues"
    if declaration.allowed_pattern is not None and not _matches(declaration, item):
        return f"must match pattern {declaration.allowed_pattern}"
    return None


def _matches(declaration: ParameterDeclaration, item: str) -> bool:
    pattern = declaration.allowed_pattern or ""
    try:
        return Pattern(pattern).matches(item)
    except PatternError:
        pass
    ahead, rest = _lookaheads(pattern)
    try:
        for is_wanted, inner in ahead:
            if Pattern(f"(?s)(?:{inner}).*").matches(item) != is_wanted:
                return False
        return Pattern(rest).matches(item)
    except PatternError:
        raise TemplateError(
            f"Parameter '{declaration.name}' AllowedPattern must be a valid regular expression. It cannot have backreferences and "
            "lookbehinds, and can have lookaheads only at its beginning."
        ) from None


def _lookaheads(pattern: str) -> tuple[list[tuple[bool, str]], str]:
    """Split the lookaheads off the beginning of a pattern, because RE2 has none.

    Templates check passwords with such patterns: `^(?=.*[a-z])(?!.*[@/])[ -~]{8,}$`. Return for each lookahead whether it must
    match, and its pattern. Also return the rest of the pattern.
    """
    found, rest = [], pattern.removeprefix("^")
    while rest.startswith(("(?=", "(?!")):
        end = _closing_parenthesis(rest)
        if end is None:
            break
        found.append((rest[2] == "=", rest[3:end]))
        rest = rest[end + 1 :]
    return found, rest


def _closing_parenthesis(pattern: str) -> int | None:
    depth, in_class, index = 0, False, 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            if pattern[index + 1 : index + 2] == "]":
                index += 1
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if not depth:
                return index
        index += 1
    return None
