from __future__ import annotations

from typing import Any

import pytest

from corral.decide.templates import USE_PREVIOUS, TemplateError, parameter_declarations, parameter_values, read_template
from corral.decide.templates.parameters import AWS_TYPES


def values(declaration: str, given: dict[str, Any], previous: dict[str, Any] | None = None) -> Any:
    declarations = parameter_declarations(read_template(f"Parameters: {{P: {declaration}}}"))
    stored = {"/ami": "ami-1", "/list": "a, b"}
    return parameter_values(declarations, given, previous or {}, stored.__getitem__)


@pytest.mark.parametrize(
    "declaration, text, value",
    [
        ("{Type: String}", "a", "a"),
        ("{Type: String}", "", ""),
        ("{Type: String, Default: 5}", None, "5"),
        ("{Type: String, Default: true}", None, "true"),
        ("{Type: String, Default: ''}", None, ""),
        ("{Type: String, AllowedValues: [prod, dev]}", "dev", "dev"),
        ("{Type: String, AllowedPattern: '[a-z]+'}", "abc", "abc"),
        (r"{Type: String, AllowedPattern: '^(?=.*[a-z])(?=.*\d)(?!.*[)\]])[ -~]{4,}$'}", "abc1", "abc1"),
        ("{Type: Number, MinValue: 1, MaxValue: 10}", "10", "10"),
        ("{Type: Number, Default: 1.5}", None, "1.5"),
        ("{Type: Number, AllowedValues: [1, 2]}", "2", "2"),
        ("{Type: CommaDelimitedList}", "a, b ,c", ["a", "b", "c"]),
        ("{Type: CommaDelimitedList}", "", [""]),
        ("{Type: CommaDelimitedList, AllowedValues: [a, b]}", "b,a", ["b", "a"]),
        ("{Type: List<Number>}", "80,443", ["80", "443"]),
        ("{Type: AWS::SSM::Parameter::Name}", "/ami", "/ami"),
        ("{Type: AWS::SSM::Parameter::Value<String>}", "/ami", "ami-1"),
        ("{Type: AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>, Default: /ami}", None, "ami-1"),
        ("{Type: AWS::SSM::Parameter::Value<List<String>>}", "/list", ["a", "b"]),
        ("{Type: AWS::SSM::Parameter::Value<CommaDelimitedList>}", "/list", ["a", "b"]),
        *((f"{{Type: {name}}}", "x-1", "x-1") for name in AWS_TYPES),
        *((f"{{Type: List<{name}>}}", "x-1,x-2", ["x-1", "x-2"]) for name in AWS_TYPES),
    ],
)
def test_values(declaration: str, text: str | None, value: Any) -> None:
    found = values(declaration, {} if text is None else {"P": text})
    assert found.values == {"P": value}
    if "SSM::Parameter::Value" in declaration:
        assert found.resolved_ssm.keys() == {"P"} and found.texts["P"].startswith("/")


@pytest.mark.parametrize(
    "declaration, text, message",
    [
        ("{Type: String}", None, "Parameters: [P] must have values"),
        ("{Type: String, AllowedValues: [prod, dev]}", "test", "Parameter 'P' must be one of AllowedValues"),
        ("{Type: String, AllowedPattern: '[a-z]+'}", "abc1", "Parameter 'P' must match pattern [a-z]+"),
        (r"{Type: String, AllowedPattern: '^(?=.*\d)[a-z0-9]+$'}", "abc", r"Parameter 'P' must match pattern ^(?=.*\d)[a-z0-9]+$"),
        ("{Type: String, AllowedPattern: '(?!aws)[a-z]+'}", "awsome", "Parameter 'P' must match pattern (?!aws)[a-z]+"),
        ("{Type: String, AllowedPattern: '(a'}", "a", "Parameter 'P' AllowedPattern must be a valid regular expression. It cannot "
         "have backreferences and lookbehinds, and can have lookaheads only at its beginning."),
        ("{Type: String, AllowedPattern: '[a-z]+', ConstraintDescription: must be lower case.}", "A",
         "Parameter P failed to satisfy constraint: must be lower case."),
        ("{Type: String, MinLength: 3}", "ab", "Parameter 'P' must contain at least 3 characters"),
        ("{Type: String, MaxLength: '4'}", "abcde", "Parameter 'P' must contain at most 4 characters"),
        ("{Type: String}", "é" * 2049, "Parameter 'P' must contain at most 4096 bytes"),
        ("{Type: Number}", "ten", "Parameter 'P' must be a number"),
        ("{Type: Number}", "", "Parameter 'P' must be a number"),
        ("{Type: Number}", "1_0", "Parameter 'P' must be a number"),
        ("{Type: Number, MinValue: 1}", "0", "Parameter 'P' must be a number not less than 1"),
        ("{Type: Number, MaxValue: 2.5}", "3", "Parameter 'P' must be a number not greater than 2.5"),
        ("{Type: Number, AllowedValues: [1, 2]}", "3", "Parameter 'P' must be one of AllowedValues"),
        ("{Type: CommaDelimitedList, AllowedValues: [a, b]}", "a,c", "Parameter 'P' must be one of AllowedValues"),
        ("{Type: List<Number>}", "1,x", "Parameter 'P' must be a number"),
        ("{Type: AWS::SSM::Parameter::Value<List<String>>, AllowedPattern: '/app/.*'}", "/list",
         "Parameter 'P' must match pattern /app/.*"),
    ],
)  # fmt: skip
def test_refused_values(declaration: str, text: str | None, message: str) -> None:
    with pytest.raises(TemplateError) as refused:
        values(declaration, {} if text is None else {"P": text})
    assert refused.value.message == message


@pytest.mark.parametrize(
    "declaration, message",
    [
        ("text", "Template format error: Any Parameters member must be an object."),
        ("{Default: a}", "Template format error: Every Parameters object must contain a Type member."),
        ("{Type: Strin}", "Template format error: Unrecognized parameter type: Strin"),
        ("{Type: AWS::SSM::Parameter::Value<Strin>}",
         "Template format error: Unrecognized parameter type: AWS::SSM::Parameter::Value<Strin>"),
        ("{Type: String, Value: a}", "Invalid template parameter property 'Value'"),
        ("{Type: String, Default: !Ref AWS::Region}", "Template format error: Every Default member must be a string."),
        ("{Type: String, AllowedValues: a}", "Template format error: Every AllowedValues member must be a list."),
        ("{Type: String, AllowedValues: [[a]]}", "Template format error: Every AllowedValues value must be a string."),
        ("{Type: String, MinLength: 5, MaxLength: 4}", "Template error: Parameter 'P' MinLength must be less than MaxLength."),
        ("{Type: Number, MinValue: a}", "Template format error: Parameter 'P' MinValue must be a number."),
        ("{Type: String, Default: test, AllowedValues: [prod]}", "Parameter 'P' must be one of AllowedValues"),
    ],
)  # fmt: skip
def test_refused_declarations(declaration: str, message: str) -> None:
    with pytest.raises(TemplateError) as refused:
        parameter_declarations(read_template(f"Parameters: {{P: {declaration}}}"))
    assert refused.value.message == message


def test_names_of_parameters() -> None:
    with pytest.raises(TemplateError, match=r"Template format error: Parameter name my-p is non alphanumeric\."):
        parameter_declarations({"Parameters": {"my-p": {"Type": "String"}}})
    with pytest.raises(TemplateError, match=r"Parameters: \[X, Y\] do not exist in the template"):
        values("{Type: String}", {"X": "1", "Y": "2", "P": "a"})


def test_previous_values() -> None:
    assert values("{Type: String, Default: new}", {"P": USE_PREVIOUS}, {"P": "old"}).values == {"P": "old"}
    assert values("{Type: String, Default: new}", {}, {"P": "old"}).values == {"P": "new"}
    ssm = values("{Type: AWS::SSM::Parameter::Value<String>, NoEcho: true}", {"P": USE_PREVIOUS}, {"P": "/ami"})
    assert (ssm.texts, ssm.resolved_ssm, ssm.no_echo) == ({"P": "/ami"}, {"P": "ami-1"}, {"P"})
    with pytest.raises(
        TemplateError, match="Cannot specify usePreviousValue as true for a parameter key not in the previous template"
    ):
        values("{Type: String, Default: new}", {"P": USE_PREVIOUS})
