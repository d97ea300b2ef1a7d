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
        "BucketName": {"Fn::Sub": "${Env}-b.eta-${AWS::AccountId}-beta"},
        "Tags": ["b.eta", "b.eta", {"Fn::Sub": ["${Name}", {"Name": "own"}]}],
    }
    assert tree["Resources"]["Topicalpha"]["Condition"] == "Isalpha"
    assert tree["Resources"]["Bucketbeta"]["DependsOn"] == "Topicbetax"
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


def test_loop_variables_are_replaced_in_every_text() -> None:
    tree = expanded("""
Parameters: {Names: {Type: CommaDelimitedList}, Env: {Type: String}}
Conditions:
  Fn::ForEach::Conditions:
    - Name
    - !Ref Names
    - 'Is&{Name}': !Equals [!Ref Env, '${Name}']
      'Not&{Name}': !Not [!Condition 'Is&{Name}']
Resources:
  Fn::ForEach::Buckets:
    - Name
    - !Ref Names
    - 'Bucket&{Name}':
        Type: AWS::S3::Bucket
        Condition: 'Not&{Name}'
        DependsOn: ['Topic&{Name}']
        DeletionPolicy: !If ['Is&{Name}', Delete, Retain]
        Properties:
          BucketName: 'plain-${Name}-${Other}-${!Name}'
          'Key&{Name}': {'Inner${Name}': 1}
          Topic: !Ref 'Topic&{Name}'
          Arn: !GetAtt 'Topic&{Name}.Arn'
          Parts: !GetAtt ['Topic&{Name}', Arn]
          Choice: !If ['Is&{Name}', '${Name}', !Join ['${Name}', [a, b]]]
      'Topic&{Name}': {Type: AWS::SNS::Topic}
""")
    assert tree["Conditions"]["Notbeta"] == {"Fn::Not": [{"Condition": "Isbeta"}]}
    assert tree["Conditions"]["Isbeta"] == {"Fn::Equals": [{"Ref": "Env"}, "b.eta"]}
    assert tree["Resources"]["Bucketbeta"] == {
        "Type": "AWS::S3::Bucket",
        "Condition": "Notbeta",
        "DependsOn": ["Topicbeta"],
        "DeletionPolicy": "Retain",
        "Properties": {
            "BucketName": "plain-b.eta-${Other}-${!Name}",
            "Keybeta": {"Innerb.eta": 1},
            "Topic": {"Ref": "Topicbeta"},
            "Arn": {"Fn::GetAtt": ["Topicbeta", "Arn"]},
            "Parts": {"Fn::GetAtt": ["Topicbeta", "Arn"]},
            "Choice": {"Fn::If": ["Isbeta", "b.eta", {"Fn::Join": ["b.eta", ["a", "b"]]}]},
        },
    }
    compile_template(tree)


def test_each_condition_is_evaluated_once() -> None:
    chain = "".join(f"  C{n}: !And [!Condition C{n - 1}, !Condition C{n - 1}]\n" for n in range(1, 45))
    tree = expanded(f"""
Conditions:
  C0: !Equals [a, a]
{chain}
Resources:
  A: {{Type: X, DeletionPolicy: !If [C44, Retain, Delete]}}
""")
    assert tree["Resources"]["A"]["DeletionPolicy"] == "Retain"
    compile_template(tree)


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
        (loops(5, 200, "{}"), "The template has more than 100000 values after Fn::ForEach was applied"),
        (loops(1, 9000, f"{{'A${{V0}}': {{P: !Sub '{'x' * 9000}'}}}}"),
         "The template has more than 100000 values after Fn::ForEach was applied"),
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
