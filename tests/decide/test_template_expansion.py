from __future__ import annotations

from typing import Any

import pytest

from corral.decide.templates import TemplateError, compile_template, expand, read_template

HEAD = "Transform: AWS::LanguageExtensions\nMappings: {M: {us-east-1: {Names: [a, b]}}}\n"
VALUES = {"Names": ["alpha", "b.eta"], "Env": "prod", "AWS::Region": "us-east-1"}


def expanded(text: str) -> dict[str, Any]:
    return expand(read_template(HEAD + text), VALUES)


def test_resources_outputs_and_conditions_are_repeated() -> None:
    tree = expanded("""
Parameters: {Names: {Type: CommaDelimitedList}, Env: {Type: String}}
Conditions:
  Fn::ForEach::Conditions: [Name, [A, B], {'Is${Name}': !Equals [!Ref Env, !Ref Name]}]
Resources:
  Fn::ForEach::Buckets:
    - Name
    - !Ref Names
    - 'Bucket&{Name}':
        Type: AWS::S3::Bucket
        DependsOn: !Sub 'Topic&{Name}x'
        Properties:
          BucketName: !Sub '${Env}-${Name}-${AWS::AccountId}-&{Name}'
          Tags: [!Ref Name, '${Name}', !Sub ['${Name}', {Name: own}]]
      'Topic&{Name}':
        Type: AWS::SNS::Topic
        Condition: !Sub 'Is${Name}'
Outputs:
  Fn::ForEach::Outer:
    - Region
    - !FindInMap [M, !Ref 'AWS::Region', Names]
    - Fn::ForEach::Inner:
        - Name
        - [X, !Ref Region]
        - 'Out${Region}${Name}': {Value: !Ref {'Fn::Sub': 'Bucket${Name}'}}
""")
    assert list(tree["Resources"]) == ["Bucketalpha", "Topicalpha", "Bucketbeta", "Topicbeta"]
    assert tree["Resources"]["Bucketbeta"]["Properties"] == {
        "BucketName": {"Fn::Sub": "${Env}-b.eta-${AWS::AccountId}-&{Name}"},
        "Tags": ["b.eta", "${Name}", {"Fn::Sub": ["${Name}", {"Name": "own"}]}],
    }
    assert tree["Resources"]["Topicalpha"]["Condition"] == "Isalpha"
    assert tree["Resources"]["Bucketbeta"]["DependsOn"] == "Topic&{Name}x"
    assert list(tree["Conditions"]) == ["IsA", "IsB"]
    assert list(tree["Outputs"]) == ["OutaX", "Outaa", "OutbX", "Outbb"]
    assert tree["Outputs"]["Outbb"] == {"Value": {"Ref": "Bucketb"}}


def test_properties_are_repeated_and_literals_are_evaluated() -> None:
    tree = expanded("""
Parameters: {Names: {Type: CommaDelimitedList}, Env: {Type: String}}
Conditions: {IsProd: !Equals [!Ref Env, prod], IsDev: !Not [!Condition IsProd]}
Resources:
  A:
    Type: X
    DeletionPolicy: !If [IsDev, Delete, Retain]
    UpdateReplacePolicy: !FindInMap [M, x, y, {DefaultValue: Snapshot}]
    Properties:
      Fixed: 1
      Fn::ForEach::Properties: [Key, [One, Two], {'${Key}': !GetAtt [!Sub 'Res${Key}', !Ref Key]}]
  ResOne: {Type: X}
  ResTwo: {Type: X}
""")
    template = compile_template(tree)
    resource = template.resources["A"]
    assert (resource.deletion_policy, resource.update_replace_policy) == ("Retain", "Snapshot")
    assert resource.properties == {"Fixed": 1, "One": {"Fn::GetAtt": ["ResOne", "One"]}, "Two": {"Fn::GetAtt": ["ResTwo", "Two"]}}
    assert resource.references == {"ResOne", "ResTwo"}
    assert expand(tree, VALUES) == tree  # nothing is left to expand


def loops(depth: int, items: int = 2, fragment: str = "{'K${V0}': {Type: X}}") -> str:
    collection = ", ".join(f"x{number}" for number in range(items))
    for level in range(depth):
        fragment = f"{{'Fn::ForEach::L{level}': [V{level}, [{collection}], {fragment}]}}"
    return "Resources: " + fragment


@pytest.mark.parametrize(
    "text, message",
    [
        ("Resources: {'Fn::ForEach::X': [Name, [a]]}", "Fn::ForEach layout is incorrect"),
        ("Resources: {'Fn::ForEach::X': [Name, [a], text]}", "Fn::ForEach layout is incorrect"),
        ("Resources: {'Fn::ForEach::X': [Name, !Ref Unknown, {'A${Name}': {Type: X}}]}",
         "Could not find a collection or could not be resolved for Fn::ForEach"),
        ("Resources: {'Fn::ForEach::X': [Name, !GetAtt A.B, {'A${Name}': {Type: X}}]}",
         "Could not find a collection or could not be resolved for Fn::ForEach"),
        ("Resources: {'Fn::ForEach::X': [Name, [a, a], {'A${Name}': {Type: X}}]}",
         "Duplicate key 'Aa' when merging keys to parent object in Fn::ForEach"),
        ("Resources: {Aa: {Type: X}, 'Fn::ForEach::X': [Name, [a], {'A${Name}': {Type: X}}]}",
         "Duplicate key 'Aa' when merging keys to parent object in Fn::ForEach"),
        (loops(6), "Fn::ForEach is nested more than 5 levels deep"),
        (loops(5, 200), "Duplicate key 'Kx0' when merging keys to parent object in Fn::ForEach"),
        (loops(5, 200, "{}"), "The template has more than 500000 values after Fn::ForEach was applied"),
        (loops(1, 9000, f"{{'A${{V0}}': {{P: !Sub '{'x' * 9000}'}}}}"),
         "The template has more than 500000 values after Fn::ForEach was applied"),
    ],
    ids=range(10),
)  # fmt: skip
def test_refused_loops(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as refused:
        expanded(text)
    assert refused.value.message == f"Transform AWS::LanguageExtensions failed with: {message}"


def test_a_template_without_transforms_stays_as_it_is() -> None:
    tree = {"Resources": {"A": {"Type": "X"}}}
    assert expand(tree, {}) is tree
    with pytest.raises(TemplateError, match=r"No transform named Macro found\."):
        expand({"Transform": ["AWS::LanguageExtensions", "Macro"]}, {})
