from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.templates import TEMPLATE_MAX_BYTES, TemplateError, read_template
from examples import examples


@pytest.mark.parametrize(
    "text, value",
    [
        # short forms
        ("!Ref A", {"Ref": "A"}),
        ("!Condition A", {"Condition": "A"}),
        ("!GetAtt A.B", {"Fn::GetAtt": ["A", "B"]}),
        ("!GetAtt A.Outputs.B", {"Fn::GetAtt": ["A", "Outputs.B"]}),
        ("!GetAtt [A, B]", {"Fn::GetAtt": ["A", "B"]}),
        ("!Sub 'a-${B}'", {"Fn::Sub": "a-${B}"}),
        ("!Sub ['${a}', {a: !Ref B}]", {"Fn::Sub": ["${a}", {"a": {"Ref": "B"}}]}),
        ("!GetAZs ''", {"Fn::GetAZs": ""}),
        ("!Select [0, !GetAZs {Ref: 'AWS::Region'}]", {"Fn::Select": [0, {"Fn::GetAZs": {"Ref": "AWS::Region"}}]}),
        ("!If [A, !Ref B, !If [C, 1, 2]]", {"Fn::If": ["A", {"Ref": "B"}, {"Fn::If": ["C", 1, 2]}]}),
        ("!Base64\n  'Fn::Sub': |\n    x\n", {"Fn::Base64": {"Fn::Sub": "x\n"}}),
        ("!Not [!Equals [!Ref A, b]]", {"Fn::Not": [{"Fn::Equals": [{"Ref": "A"}, "b"]}]}),
        ("!ToJsonString {a: 1}", {"Fn::ToJsonString": {"a": 1}}),
        ("!EachMemberIn [!ValueOf [A, b], !RefAll 'AWS::EC2::VPC::Id']",
         {"Fn::EachMemberIn": [{"Fn::ValueOf": ["A", "b"]}, {"Fn::RefAll": "AWS::EC2::VPC::Id"}]}),
        ("!Ref 12", {"Ref": "12"}),
        ("!Sub ${Env}:Cluster", {"Fn::Sub": "${Env}:Cluster"}),
        ("!Ref 'AWS::Region'  # a comment", {"Ref": "AWS::Region"}),
        # scalars of YAML 1.1
        ("2010-09-09", "2010-09-09"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("'0644'", "0644"),
        ('"012345678901"', "012345678901"),
        ("0644", 420),
        ("012345678901", "012345678901"),  # no octal number
        ("123456789012", 123456789012),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0b11", 3),
        ("-7", -7),
        ("22:22", 1342),
        ("80:80", "80:80"),
        ("10.0.0.0/16", "10.0.0.0/16"),
        ("1.50", 1.5),
        ("1e3", "1e3"),
        ("1.0e+3", 1000.0),
        ("1.0e+999", "1.0e+999"),
        ("99999999999999999999", "99999999999999999999"),
        ("yes", True),
        ("Off", False),
        ("TRUE", True),
        ("y", "y"),
        ("'true'", "true"),
        ("!!str 5", "5"),
        ("!!int 5", 5),
        ("=", "="),
        ("-", [None]),
        ("~", None),
        ("{<<: {a: 1}, b: 2}", {"<<": {"a": 1}, "b": 2}),  # no merge keys
        ("{a: 1, a: 2}", {"a": 2}),  # the last one wins
        ("{1: a, true: b, 012: c}", {"1": "a", "true": "b", "012": "c"}),
        ("&anchor x", "x"),
        ("'ünï \U0001f600'", "ünï \U0001f600"),
    ],
)  # fmt: skip
def test_yaml_values(text: str, value: Any) -> None:
    assert read_template("Key:\n  " + text.replace("\n", "\n  ")) == {"Key": value}


def test_json_keeps_the_last_of_two_equal_keys() -> None:
    assert read_template('\ufeff\n {"A": {"B": 1, "B": "2010-09-09"}, "C": null}') == {"A": {"B": "2010-09-09"}, "C": None}


def lines(*text: str) -> str:
    return "\n".join(text)


BOMB = lines("a: &a [x, x, x]", *(f"{new}: &{new} [{', '.join(['*' + old] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi")))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "Template format error: unsupported structure."),
        ("just text", "Template format error: unsupported structure."),
        ("- a\n- b", "Template format error: unsupported structure."),
        ("a: 1\n---\nb: 2", "Template format error: unsupported structure."),
        ("!Ref A", None),
        ("a: [1, 2\nb: 3", "Template format error: YAML not well-formed. (line 2, column 2)"),
        ("a:\n  b: 1\n c: 2", "Template format error: YAML not well-formed. (line 3, column 2)"),
        ("A:\n  B: !GetAttr C.D", "Template format error: YAML not well-formed. (line 2, column 6)"),
        ("A: !!python/object:os.system {}", "Template format error: YAML not well-formed. (line 1, column 4)"),
        ("A: !!binary aGk=", "Template format error: YAML not well-formed. (line 1, column 4)"),
        ("? [a]\n: b", "Template format error: YAML not well-formed. (line 1, column 3)"),
        ("A: \x00", "Template format error: YAML not well-formed."),
        ('{"A": {,\n}}', "Template format error: JSON not well-formed. (line 1, column 8)"),
        ('{"A": 1} {}', "Template format error: JSON not well-formed. (line 1, column 10)"),
        ('{"A": 012}', "Template format error: JSON not well-formed. (line 1, column 7)"),
        (BOMB, "Template error: YAML aliases are not allowed in CloudFormation templates"),
        ("a: &a {b: *a}", "Template error: YAML aliases are not allowed in CloudFormation templates"),
        ("A: " + "[" * 200, "Template format error: The template is nested more than 128 levels deep."),
        ("A: " + "!Not [" * 70, "Template format error: The template is nested more than 128 levels deep."),
        ('{"A": ' + "[" * 200 + "]" * 200 + "}", "Template format error: The template is nested more than 128 levels deep."),
        ('{"A": ' + "[" * 2000 + "]" * 2000 + "}", "Template format error: The template is nested more than 128 levels deep."),
        ("A: " + "x" * TEMPLATE_MAX_BYTES, "Template may not exceed 1000000 bytes in size."),
        ("A: " + "é" * (TEMPLATE_MAX_BYTES // 2), "Template may not exceed 1000000 bytes in size."),
    ],
    ids=range(23),
)  # fmt: skip
def test_refused_texts(text: str, message: str | None) -> None:
    if message is None:
        assert read_template(text) == {"Ref": "A"}  # refused later, because Ref is no section
        return
    with pytest.raises(TemplateError) as refused:
        read_template(text)
    assert refused.value.message == message


def test_a_text_of_the_maximum_size_is_read() -> None:
    assert len(read_template("A: " + "x" * (TEMPLATE_MAX_BYTES - 3))["A"]) == TEMPLATE_MAX_BYTES - 3


NAMES = ["Ref", "Fn::GetAtt", "Fn::Sub", "Fn::Join", "Fn::If", "Fn::Base64", "Fn::Select", "Fn::Cidr", "Fn::Equals", "Condition"]
words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8)
trees = st.recursive(
    words | st.integers(-(2**40), 2**40) | st.booleans() | st.floats(-1e6, 1e6, allow_nan=False).map(lambda each: round(each, 3)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(words, inner, max_size=4)
        | st.sampled_from(NAMES).flatmap(lambda name: inner.map(lambda value: {name: value}))
    ),
    max_leaves=20,
)


class ShortForms(yaml.SafeDumper):
    """Writes functions in their short form."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def short(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.Node:
    if len(value) == 1:
        ((name, argument),) = value.items()
        # A tag replaces the type of a scalar, so a short form of a number is a short form of its text.
        if name in NAMES and not isinstance(argument, int | float) and not (isinstance(argument, dict) and len(argument) == 1):
            node = dumper.represent_data(argument)
            is_attribute = name == "Fn::GetAtt" and isinstance(argument, str)
            if not is_attribute and node.tag.startswith("tag:yaml.org"):
                node.tag = "!" + name.removeprefix("Fn::")
                return node
    return dumper.represent_dict(value)


ShortForms.add_representer(dict, short)


@settings(max_examples=examples(200), deadline=None)
@given(trees)
def test_short_form_and_long_form_and_json_are_the_same(tree: Any) -> None:
    document = {"Key": tree}
    assert read_template(yaml.dump(document, Dumper=ShortForms, allow_unicode=True)) == document
    assert read_template(yaml.safe_dump(document, allow_unicode=True)) == document
    assert read_template(json.dumps(document)) == document


@settings(max_examples=examples(200), deadline=None)
@given(st.text(st.sampled_from("{}[]:,-!&*?|>%@`'\"# \nabRef.0\t~<"), max_size=60))
def test_every_text_is_read_or_refused(text: str) -> None:
    try:
        read_template(text)
    except TemplateError as refused:
        assert refused.message
