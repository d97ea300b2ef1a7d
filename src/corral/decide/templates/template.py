"""The parts of a compiled template. Raw values still contain functions; `Evaluation` resolves them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class TemplateError(Exception):
    """The template, or a value for it, is refused. The message has CloudFormation's words."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ParameterDeclaration(Struct, frozen=True):
    name: str
    type: str  # for example "AWS::SSM::Parameter::Value<List<String>>"
    default: str | None = None
    description: str | None = None
    no_echo: bool = False
    allowed_values: tuple[str, ...] | None = None
    allowed_pattern: str | None = None
    min_length: str | None = None  # limits keep the text of the template, because messages repeat it
    max_length: str | None = None
    min_value: str | None = None
    max_value: str | None = None
    constraint_description: str | None = None

    @property
    def is_ssm(self) -> bool:
        return self.type.startswith("AWS::SSM::Parameter::Value<")

    @property
    def value_type(self) -> str:
        """The type of the value. For a parameter that names an SSM parameter, the type of the SSM parameter's value."""
        return self.type.removeprefix("AWS::SSM::Parameter::Value<")[:-1] if self.is_ssm else self.type

    @property
    def is_list(self) -> bool:
        return self.value_type == "CommaDelimitedList" or self.value_type.startswith("List<")


class ResourceDeclaration(Struct, frozen=True):
    logical_id: str
    type: str
    properties: dict[str, Any] = field(default_factory=dict)  # raw
    depends_on: tuple[str, ...] = ()  # the attribute DependsOn
    references: frozenset[str] = frozenset()  # the logical ids in DependsOn, Ref, Fn::GetAtt and Fn::Sub
    required: frozenset[str] = frozenset()  # the part of `references` outside of Fn::If and DependsOn
    condition: str | None = None
    deletion_policy: Any = None  # raw; the resources of an `Evaluation` have a text or None
    update_replace_policy: Any = None
    creation_policy: dict[str, Any] = field(default_factory=dict)  # raw
    update_policy: dict[str, Any] = field(default_factory=dict)  # raw
    metadata: dict[str, Any] = field(default_factory=dict)  # raw


class OutputDeclaration(Struct, frozen=True):
    key: str
    value: Any  # raw
    description: str | None = None
    export_name: Any = None  # raw
    condition: str | None = None
    references: frozenset[str] = frozenset()


class Template(Struct, frozen=True):
    resources: dict[str, ResourceDeclaration]
    description: str | None = None
    parameters: dict[str, ParameterDeclaration] = field(default_factory=dict)
    mappings: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)  # raw; each condition stands after the conditions that it uses
    rules: dict[str, Any] = field(default_factory=dict)  # raw
    metadata: dict[str, Any] = field(default_factory=dict)
    transforms: tuple[str, ...] = ()
    outputs: dict[str, OutputDeclaration] = field(default_factory=dict)


class ResolvedOutput(Struct, frozen=True):
    key: str
    value: str
    description: str | None = None
    export_name: str | None = None


def is_text(value: Any) -> bool:
    """Whether CloudFormation reads this value as a string: numbers and booleans count as strings."""
    return isinstance(value, str | int | float)


def text_of(value: Any) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return str(value)


def function_of(value: Any) -> str | None:
    """Return the name of the function that this value calls, or None."""
    if type(value) is dict and len(value) == 1:
        (key,) = value
        if key == "Ref" or key.startswith("Fn::"):
            return str(key)
    return None


def get_att_parts(argument: Any) -> tuple[str, Any] | None:
    """Split the argument of Fn::GetAtt into logical id and attribute. Return None if it is malformed."""
    if isinstance(argument, str):
        argument = argument.split(".", 1)
    if not isinstance(argument, list) or len(argument) != 2:
        return None
    logical_id, attribute = argument
    if not is_text(logical_id) or logical_id == "":
        return None
    if function_of(attribute) is None and (not is_text(attribute) or attribute == ""):
        return None
    return text_of(logical_id), attribute
