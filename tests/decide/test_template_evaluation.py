from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.templates import (
    Evaluation,
    TemplateError,
    compile_template,
    expand,
    parameter_declarations,
    parameter_values,
    read_template,
)

PSEUDO = {
    "AWS::Region": "us-east-2",
    "AWS::AccountId": "000000000001",
    "AWS::StackName": "fleet",
    "AWS::StackId": "arn:aws:cloudformation:us-east-2:000000000001:stack/fleet/1",
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::NotificationARNs": ["arn:1", "arn:2"],
}
MALFORMED_EXPORT = (
    "Template format error: Output O is malformed. The Name field of every Export member must be specified and consist only of "
    "alphanumeric characters, colons, or hyphens."
)
SUB_VALUES = (
    "Template error: every value of the context object of every Fn::Sub object must be a string or a function that returns a string"
)
LONG = "x" * 4000
EXPORTS = {"net-Vpc": "vpc-9", "Long": LONG}
HEAD = """
Transform: AWS::LanguageExtensions
Parameters:
  Env: {Type: String, Default: dev}
  Count: {Type: Number, Default: 3}
  Subnets: {Type: CommaDelimitedList, Default: "s-1, s-2,s-3"}
  Secret: {Type: String, Default: "{{resolve:ssm:/key:2}}"}
  Long: {Type: String, Default: @}
Mappings:
  Texts: {a: {Long: @}}
  Regions:
    us-east-2: {Ami: ami-2, Size: 2, Ports: [80, 443]}
    "012345678901": {Ami: ami-0}
Conditions:
  IsProd: !Equals [!Ref Env, prod]
  IsDev: !Not [!Condition IsProd]
  HasThree: !Equals [!Ref Count, 3]
  East: !And [!Condition IsDev, !Equals [!FindInMap [Regions, !Ref "AWS::Region", Ami], ami-2]]
  Either: !Or [!Condition IsProd, !Condition East]
  Long: !Equals [!Join ["", !Ref Subnets], "s-1s-2s-3"]
  Flag: !Equals [true, "true"]
  Lists: !Equals [!Ref Subnets, [s-1, s-2, s-3]]
Resources:
  Other: {Type: AWS::S3::Bucket}
  Lengthy: {Type: AWS::S3::Bucket}
""".replace("@", LONG)


def evaluate(text: str, given: dict[str, str] | None = None) -> Evaluation:
    tree = read_template(text)
    found = parameter_values(parameter_declarations(tree), given or {}, {}, str)
    template = compile_template(expand(tree, {**PSEUDO, **found.values}))
    return Evaluation(
        template,
        found.values,
        PSEUDO,
        zones=lambda region: [f"{region}{letter}" for letter in "abc"],
        imported=lambda name: EXPORTS[name],
        dynamic=lambda inside: f"<{inside}>",
    )


def ref(name: str) -> str:
    return LONG if name == "Lengthy" else f"id-of-{name}"


def get_att(name: str, attribute: str) -> Any:
    return {"List": ["x", "y"], "Long": LONG}.get(attribute, f"{name}/{attribute}")


def value(text: str) -> Any:
    evaluation = evaluate(f"{HEAD}  R:\n    Type: AWS::S3::Bucket\n    Properties:\n      P: {text}\n")
    resolved = evaluation.resolve(evaluation.resources["R"].properties, ref, get_att)
    return resolved.get("P", "(no value)")


def nested(levels: int, inner: str, outer: str) -> str:
    text = inner
    for _ in range(levels):
        text = outer.replace("@", text)
    return text


@pytest.mark.parametrize(
    "text, result",
    [
        ("!Ref Env", "dev"),
        ("!Ref Count", "3"),
        ("!Ref Subnets", ["s-1", "s-2", "s-3"]),
        ("!Ref Other", "id-of-Other"),
        ("!Ref AWS::AccountId", "000000000001"),
        ("!Ref AWS::NotificationARNs", ["arn:1", "arn:2"]),
        ("!Ref AWS::NoValue", "(no value)"),
        ("[a, !Ref AWS::NoValue, {b: !Ref AWS::NoValue, c: 1}]", ["a", {"c": 1}]),
        ("!GetAtt Other.Arn", "Other/Arn"),
        ("!GetAtt Other.Outputs.X", "Other/Outputs.X"),
        ("{'Fn::GetAtt': Other.Arn}", "Other/Arn"),
        ("!GetAtt [Other, !Ref Env]", "Other/dev"),
        ("!GetAtt Other.List", ["x", "y"]),
        ("!Sub '${Env}-${AWS::StackName}:${Other}/${Other.Arn}'", "dev-fleet:id-of-Other/Other/Arn"),
        ("!Sub 'echo ${!HOME} $Env $${Env} ${'", "echo ${HOME} $Env $dev ${"),
        ("!Sub ['${a}-${Env}-${a}', {a: !Join [',', !Ref Subnets], Env: 5}]", "s-1,s-2,s-3-5-s-1,s-2,s-3"),
        ("!Sub ['${a}', {a: !Sub ['${a}${a}', {a: true}]}]", "truetrue"),
        (nested(25, "''", "{'Fn::Sub': ['${a}${a}', {a: @}]}"), ""),  # each variable is evaluated once, or this takes a minute
        ("!Join ['-', [a, 1, 1.5, true, !Ref Env, !Ref AWS::NoValue]]", "a-1-1.5-true-dev"),
        ("!Join [',', !GetAZs '']", "us-east-2a,us-east-2b,us-east-2c"),
        ("!Join ['', []]", ""),
        ("!Split [',', 'a,b,,c']", ["a", "b", "", "c"]),
        ("!Select [1, !Split ['-', !Ref AWS::Region]]", "east"),
        ("!Select ['2', !Ref Subnets]", "s-3"),
        ("!Select [0, [{a: !Ref Env}, b]]", {"a": "dev"}),
        ("!Select [0, !GetAZs {Ref: 'AWS::Region'}]", "us-east-2a"),
        ("!GetAZs eu-west-1", ["eu-west-1a", "eu-west-1b", "eu-west-1c"]),
        ("!FindInMap [Regions, !Ref 'AWS::Region', Ami]", "ami-2"),
        ("!FindInMap [Regions, us-east-2, Size]", 2),
        ("!FindInMap [Regions, us-east-2, Ports]", [80, 443]),
        ("!FindInMap [Regions, '012345678901', Ami]", "ami-0"),
        ("!FindInMap [Regions, nowhere, Ami, {DefaultValue: !Ref Env}]", "dev"),
        ("!FindInMap [Nothing, nowhere, Ami, {DefaultValue: [1]}]", [1]),
        ("!FindInMap [!Sub 'Regions', !Join ['-', [us, east, 2]], !Select [0, [Ami]]]", "ami-2"),
        ("!Base64 'hello world'", "aGVsbG8gd29ybGQ="),
        ("!Base64 {'Fn::Sub': '${Secret}'}", "PHNzbTova2V5OjI+"),
        ("!Cidr [192.168.0.0/24, 6, 5]", [f"192.168.0.{number * 32}/27" for number in range(6)]),
        ("!Cidr [10.0.7.9/16, '2', '8']", ["10.0.0.0/24", "10.0.1.0/24"]),
        ("!Cidr ['2600:1f18:abc:de00::/56', 2, 64]", ["2600:1f18:abc:de00::/64", "2600:1f18:abc:de01::/64"]),
        ("!ImportValue {'Fn::Sub': 'net-Vpc'}", "vpc-9"),
        ("!If [IsProd, big, small]", "small"),
        ("!If [Either, {a: !If [Flag, 1, 2]}, !Ref AWS::NoValue]", {"a": 1}),
        ("!If [IsProd, big, !Ref AWS::NoValue]", "(no value)"),
        ("!Length [a, !Ref Env, c]", 3),
        ("!Length {Ref: Subnets}", 3),
        ("!ToJsonString {a: !Ref Env, b: [1, true, 'q\"'], c: !Ref AWS::NoValue}", '{"a":"dev","b":[1,true,"q\\""]}'),
        ("'a {{resolve:ssm:/x:1}} {{resolve:secretsmanager:s:SecretString:p}}'", "a <ssm:/x:1> <secretsmanager:s:SecretString:p>"),
        ("!Ref Secret", "<ssm:/key:2>"),
        ("!Sub '{{resolve:ssm-secure:/${Env}/pw}}'", "<ssm-secure:/dev/pw>"),
        ("!Join ['', ['{{resolve:', 'ssm:/y', '}}']]", "<ssm:/y>"),
        ("{Ref: Other, Also: 1}", {"Ref": "Other", "Also": 1}),  # more than one member: no function
        ("{Condition: IsProd}", {"Condition": "IsProd"}),
        ("5", 5),
    ],
)
def test_functions(text: str, result: Any) -> None:
    assert value(text) == result


@pytest.mark.parametrize(
    "text, message",
    [
        ("!Sub '${Subnets}'", "Template error: variable Subnets in Fn::Sub expression does not resolve to a string"),
        ("!Sub ['${a}', {a: [b]}]", SUB_VALUES),
        ("!Sub ['${a}', {a: !Ref AWS::NoValue}]", SUB_VALUES),
        ("!Select [3, !Ref Subnets]", "Template error: Fn::Select  cannot select nonexistent value at index 3"),
        ("!Select [-1, [a]]", "Template error: Fn::Select requires a list argument with a valid index value as its first element"),
        ("!Select [0, !Ref Env]",
         "Template error: Fn::Select requires a list argument with two elements: an integer index and a list"),
        ("!FindInMap [Regions, eu-west-1, Ami]", "Template error: Unable to get mapping for Regions::eu-west-1::Ami"),
        ("!FindInMap [!Ref Env, a, b]",
         "Template error: Mapping named 'dev' is not present in the 'Mappings' section of template."),
        ("!Cidr [10.0.0/16, 1, 8]", "Template error: invalid CIDR block 10.0.0/16"),
        ("!Cidr [10.0.0.0/24, 1, 23]", "Template error: invalid CIDR block size 23"),
        ("!Cidr [10.0.0.0/24, 9, 5]", "Template error: 9 CIDR blocks of size 5 do not fit into 10.0.0.0/24"),
        ("!Base64 [a]", "Template error: every Fn::Base64 object must have a String-typed value."),
        ("!Length {Ref: Env}", "Template error: every Fn::Length object requires a list or a function that returns a list."),
        # Texts that double at each level, and a variable that is evaluated once only.
        (nested(35, "xx", "{'Fn::Sub': ['${a}${a}', {a: @}]}"),
         "Template error: the functions of one value return more than 8000000 characters"),
        (nested(40, "'a\"'", "{'Fn::ToJsonString': [@]}"),
         "Template error: the functions of one value return more than 8000000 characters"),
        (f"!Sub ['{'${a}' * 9000}', {{a: {'x' * 1000}}}]",
         "Template error: the functions of one value return more than 8000000 characters"),
        # Every use of the same text counts.
        *((f"[{', '.join([use] * 2100)}]", "Template error: the functions of one value return more than 8000000 characters")
          for use in ("!Ref Long", "!FindInMap [Texts, a, Long]", "!ImportValue Long", "!Ref Lengthy", "!GetAtt Other.Long",
                      "!Cidr ['2001:db8::/32', 256, 64]")),
    ],
)  # fmt: skip
def test_refused_arguments(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as refused:
        value(text)
    assert refused.value.message == message


def test_a_condition_decides_about_resources_and_outputs() -> None:
    text = """
Parameters: {Env: {Type: String}}
Conditions: {IsProd: !Equals [!Ref Env, prod], IsDev: !Not [!Condition IsProd]}
Resources:
  Alarm: {Type: X, Condition: IsProd, DependsOn: Queue}
  Queue: {Type: X, DependsOn: [Alarm2, Key], Properties: {A: !If [IsProd, !GetAtt Bucket.Arn, !Ref Key], B: !Sub '${Role}'}}
  Alarm2: {Type: X, Condition: IsProd}
  Bucket: {Type: X, Condition: IsProd, Properties: {P: !If [IsDev, !Ref Queue, none]}}
  Key: {Type: X, Condition: IsDev}
  Role: {Type: X}
Outputs:
  Prod: {Value: !Ref Bucket, Condition: IsProd, Export: {Name: !Sub '${AWS::StackName}:Prod'}}
  Both: {Value: !If [IsProd, !Ref Bucket, !GetAtt Key.Arn], Description: both, Export: {Name: !If [IsProd, a, !Ref AWS::NoValue]}}
"""
    with pytest.raises(TemplateError) as refused:  # the condition of Key and DependsOn of Key do not fit
        evaluate(text.replace("IsProd, !GetAtt Bucket.Arn, !Ref Key", "IsDev, !Ref Bucket, 1"), {"Env": "dev"})
    assert refused.value.message == (
        "Template format error: Unresolved resource dependencies [Bucket] in the Resources block of the template"
    )
    dev, prod = evaluate(text, {"Env": "dev"}), evaluate(text, {"Env": "prod"})
    assert dev.conditions == {"IsProd": False, "IsDev": True}
    assert dev.dependencies == {"Queue": {"Key", "Role"}, "Key": set(), "Role": set()}
    assert prod.dependencies == {
        "Alarm": {"Queue"},
        "Queue": {"Alarm2", "Bucket", "Role"},
        "Alarm2": set(),
        "Bucket": set(),
        "Role": set(),
    }
    assert list(dev.resources) == ["Queue", "Key", "Role"]

    def shown(evaluation: Evaluation) -> list[tuple[Any, ...]]:
        return [(each.key, each.value, each.description, each.export_name) for each in evaluation.outputs(ref, get_att)]

    assert shown(dev) == [("Both", "Key/Arn", "both", None)]
    assert shown(prod) == [("Prod", "id-of-Bucket", None, "fleet:Prod"), ("Both", "id-of-Bucket", "both", "a")]


def test_a_cycle_through_a_branch_counts_only_if_the_branch_is_taken() -> None:
    text = """
Parameters: {Env: {Type: String}}
Conditions: {IsProd: !Equals [!Ref Env, prod]}
Resources:
  A: {Type: X, Properties: {P: !If [IsProd, !Ref B, 1]}}
  B: {Type: X, Properties: {P: !Ref A}}
"""
    assert evaluate(text, {"Env": "dev"}).dependencies == {"A": set(), "B": {"A"}}
    with pytest.raises(TemplateError, match=r"^Circular dependency between resources: \[A, B\]$"):
        evaluate(text, {"Env": "prod"})


@pytest.mark.parametrize(
    "output, message",
    [
        ("{Value: !GetAtt A.List}", "Template format error: The Value field of every Outputs member must evaluate to a String."),
        ("{Value: !Ref AWS::NoValue}", "Template format error: The Value field of every Outputs member must evaluate to a String."),
        ("{Value: a, Export: {Name: !GetAtt A.List}}", MALFORMED_EXPORT),
        ("{Value: a, Export: {Name: !Sub '${AWS::StackName}_O'}}", MALFORMED_EXPORT),
    ],
)
def test_refused_outputs(output: str, message: str) -> None:
    evaluation = evaluate(
        "Conditions: {Never: !Equals [a, b]}\nResources: {A: {Type: X}, Cond: {Type: X, Condition: Never}}\nOutputs: {O: "
        + output
        + "}"
    )
    with pytest.raises(TemplateError) as refused:
        evaluation.outputs(ref, get_att)
    assert refused.value.message == message


CONDITIONAL = "Conditions: {Never: !Equals [a, b]}\nResources: {A: {Type: X}, Cond: {Type: X, Condition: Never}}\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (CONDITIONAL + "Outputs: {O: {Value: !Ref Cond}}",
         "Template format error: Unresolved resource dependencies [Cond] in the Outputs block of the template"),
        (CONDITIONAL + "Outputs: {O: {Value: !If [Never, !Ref Cond, a]}, P: {Value: !Ref Cond, Condition: Never}}", None),
        ("Conditions: {Never: !Equals [a, b]}\nResources: {A: {Type: X, DeletionPolicy: !If [Never, Retain, Keep]}}",
         "Template format error: Unrecognized DeletionPolicy Keep for resource A"),
        ("Resources: {A: {Type: X, DeletionPolicy: !Ref B}, B: {Type: X}}",
         "Template format error: Unresolved resource dependencies [B] in the Resources block of the template"),
    ],
)  # fmt: skip
def test_templates_that_the_parameters_make_unfit(text: str, message: str | None) -> None:
    if message is None:
        evaluate(text)
        return
    with pytest.raises(TemplateError) as refused:
        evaluate(text)
    assert refused.value.message == message


def test_policies_by_functions() -> None:
    text = """
Parameters: {Env: {Type: String, Default: prod}}
Mappings: {M: {prod: {Policy: Snapshot}}}
Conditions: {IsProd: !Equals [!Ref Env, prod]}
Resources:
  A: {Type: X, DeletionPolicy: !If [IsProd, Retain, Delete], UpdateReplacePolicy: !FindInMap [M, !Ref Env, Policy]}
  B: {Type: X, DeletionPolicy: !If [IsProd, !Ref AWS::NoValue, Retain], UpdateReplacePolicy: Retain}
"""
    found = evaluate(text).resources
    assert [(each.deletion_policy, each.update_replace_policy) for each in found.values()] == [
        ("Retain", "Snapshot"), (None, "Retain"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value, message",
    [
        ("!FindInMap [M, b, c]", "Template error: Unable to get mapping for M::b::c"),
        ("!Join ['', [!FindInMap [M, b, c], !Ref A]]", "Template error: Unable to get mapping for M::b::c"),
        ("!Select [2, [!Ref A, b]]", None),  # the list contains a value of a resource
        ("!Select [!FindInMap [M, b, c], !GetAtt A.List]", "Template error: Unable to get mapping for M::b::c"),
        ("!Select [9, !GetAZs '']", "Template error: Fn::Select  cannot select nonexistent value at index 9"),
        ("!If [Never, !Select [2, [a]], b]", None),
    ],
)
def test_functions_without_a_value_are_found_before_the_steps(value: str, message: str | None) -> None:
    head = (
        "Mappings: {M: {a: {c: d}}}\nConditions: {Never: !Equals [a, b]}\nResources: {A: {Type: X}, B: {Type: X, Properties: {P: "
    )
    for text in (head + value + "}}}", head + "a}}}\nOutputs: {O: {Value: " + value + "}}"):
        found = evaluate(text)
        if message is None:
            found.check_functions(("Fn::FindInMap", "Fn::Select"))
            continue
        with pytest.raises(TemplateError) as refused:
            found.check_functions(("Fn::FindInMap", "Fn::Select"))
        assert refused.value.message == message


SUBNETS = {"s-1": "vpc-1", "s-2": "vpc-1", "s-3": "vpc-2"}


@pytest.mark.parametrize(
    "rule, message",
    [
        ("{Assertions: [{Assert: !Equals [!Ref Env, dev]}]}", None),
        ("{RuleCondition: !Equals [!Ref Env, prod], Assertions: [{Assert: !Equals [a, b]}]}", None),
        ("{RuleCondition: !Not [!Equals [!Ref Env, prod]], Assertions: [{Assert: !Equals [a, b], AssertDescription: 'no way '}]}",
         "no way"),
        ("{Assertions: [{Assert: !Contains [[t1, t2], !Ref Env]}]}", "an assertion of rule R is not true"),
        ("{Assertions: [{Assert: !Not [!Contains [['1', '2'], !Ref Count]]}]}", None),
        ("{Assertions: [{Assert: !EachMemberEquals [[dev, dev], !Ref Env]}]}", None),
        ("{Assertions: [{Assert: !EachMemberEquals [!ValueOf [Nets, VpcId], vpc-1], AssertDescription: one VPC}]}", "one VPC"),
        ("{Assertions: [{Assert: !EachMemberIn [!ValueOf [Nets, VpcId], !RefAll 'AWS::EC2::VPC::Id']}]}", None),
        ("{Assertions: [{Assert: !EachMemberIn [!ValueOfAll ['AWS::EC2::Subnet::Id', VpcId], [vpc-1]]}]}",
         "an assertion of rule R is not true"),
        ("{Assertions: [{Assert: !And [!Equals [1, 1], !Or [!Equals [1, 2], !Equals [!Ref 'AWS::Region', us-east-2]]]}]}", None),
    ],
)  # fmt: skip
def test_rules(rule: str, message: str | None) -> None:
    evaluation = evaluate(f"""
Parameters:
  Env: {{Type: String, Default: dev}}
  Count: {{Type: Number, Default: 3}}
  Nets: {{Type: List<AWS::EC2::Subnet::Id>, Default: "s-1,s-3"}}
Rules: {{R: {rule}}}
Resources: {{A: {{Type: X}}}}
""")
    everything = {"AWS::EC2::VPC::Id": ["vpc-1", "vpc-2"], "AWS::EC2::Subnet::Id": list(SUBNETS)}

    def attribute_of(kind: str, value: str, attribute: str) -> str:
        assert (kind, attribute) == ("AWS::EC2::Subnet::Id", "VpcId")
        return SUBNETS[value]

    if message is None:
        evaluation.check_rules(everything.__getitem__, attribute_of)
    else:
        with pytest.raises(TemplateError) as refused:
            evaluation.check_rules(everything.__getitem__, attribute_of)
        assert refused.value.message == f"Template validation error: Rule R failed: {message}"


acyclic = st.integers(1, 15).flatmap(
    lambda count: st.tuples(
        *(st.sets(st.integers(0, index - 1), max_size=3) if index else st.just(set()) for index in range(count))
    )
)


@given(acyclic, st.randoms(use_true_random=False))
def test_dependencies_of_random_templates(graph: tuple[set[int], ...], random: Any) -> None:
    forms: list[Any] = [
        lambda name: {"Ref": name},
        lambda name: {"Fn::GetAtt": [name, "Arn"]},
        lambda name: {"Fn::Sub": "x${" + name + "}"},
        lambda name: {"Fn::Join": ["", [{"Fn::Sub": ["${v}", {"v": {"Ref": name}}]}]]},
        lambda name: {"Fn::If": ["Yes", {"Ref": name}, {"Ref": "R0"}]},
    ]
    resources: dict[str, Any] = {}
    for number in random.sample(range(len(graph)), len(graph)):
        needed = [f"R{other}" for other in graph[number]]
        split = random.randint(0, len(needed))
        resources[f"R{number}"] = {
            "Type": "X",
            "DependsOn": needed[:split],
            "Properties": {name: random.choice(forms)(name) for name in needed[split:]},
        }
    tree = {"Conditions": {"Yes": {"Fn::Equals": ["a", "a"]}}, "Resources": resources}
    evaluation = Evaluation(compile_template(tree), {}, PSEUDO, zones=str.split, imported=str, dynamic=str)
    assert evaluation.dependencies == {f"R{number}": {f"R{other}" for other in needed} for number, needed in enumerate(graph)}
