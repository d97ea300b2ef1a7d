from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
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
from corral.decide.templates.graph import cyclic, in_order
from examples import examples

BUCKET = "Resources:\n  B: {Type: AWS::S3::Bucket}\n"
PROPERTY = "Resources:\n  B: {Type: AWS::S3::Bucket}\n  A:\n    Type: AWS::S3::Bucket\n    Properties:\n      P: "
UNSUPPORTED = (
    "Supported functions are: [Fn::Base64, Fn::GetAtt, Fn::GetAZs, Fn::ImportValue, Fn::Join, Fn::Split, Fn::FindInMap, "
    "Fn::Select, Ref, Fn::Equals, Fn::If, Fn::Not, Condition, Fn::And, Fn::Or, Fn::Contains, Fn::EachMemberEquals, "
    "Fn::EachMemberIn, Fn::ValueOf, Fn::ValueOfAll, Fn::RefAll, Fn::Sub, Fn::Cidr]"
)
JOIN = (
    "Template error: every Fn::Join object requires two parameters, (1) a string delimiter and (2) a list of strings to be joined "
    "or a function that returns a list of strings (such as Fn::GetAZs) to be joined."
)
GET_ATT = "Template error: every Fn::GetAtt object requires two non-empty parameters, the resource name and the resource attribute"
FIND_IN_MAP = (
    "Template error: every Fn::FindInMap object requires three parameters, the map name, map key and the attribute for return value"
)
SUB = (
    "Template error: One or more Fn::Sub intrinsic functions don't specify expected arguments. Specify a string as first argument, "
    "and an optional second argument to specify a mapping of values to replace in the string"
)
SUB_NAMES = (
    "Template error: variable names in Fn::Sub syntax must contain only alphanumeric characters, underscores, periods, and colons"
)
IMPORT = "Template error: the attribute in Fn::ImportValue must not depend on any resources, imported values, or Fn::GetAZs"
MALFORMED_EXPORT = (
    "Template format error: Output O is malformed. The Name field of every Export member must be specified and consist only of "
    "alphanumeric characters, colons, or hyphens."
)
BOOLEAN = "Template format error: Conditions can only be boolean operations on parameters and other conditions"


def many(count: int, form: str) -> str:
    return "{" + ", ".join(form.format(number) for number in range(count)) + "}"


def unresolved(names: str, block: str = "Resources") -> str:
    return f"Template format error: Unresolved resource dependencies [{names}] in the {block} block of the template"


@pytest.mark.parametrize(
    "text, message",
    [
        # sections
        ("Parameters: {}", "Template format error: At least one Resources member must be defined."),
        ("Resources: {}", "Template format error: At least one Resources member must be defined."),
        ("Resources: [a]", "Template format error: Resources section must be an object."),
        (BUCKET + "Resource: {}\nFoo: 1", "Invalid template property or properties [Resource, Foo]"),
        ("AWSTemplateFormatVersion: 2011-01-01\n" + BUCKET,
         "Template format error: unsupported value for AWSTemplateFormatVersion."),
        (f"Description: {'x' * 1025}\n{BUCKET}", "Template format error: 'Description' length is greater than 1024."),
        ("Description: {a: b}\n" + BUCKET, "Template format error: Every Description member must be a string."),
        ("Parameters:\n" + BUCKET, "[/Parameters] 'null' values are not allowed in templates"),
        ("Transform: AWS::Serverless-2016-10-31\n" + BUCKET,
         "No transform named AWS::Serverless-2016-10-31 found. Corral supports AWS::LanguageExtensions."),
        ("Transform: [AWS::LanguageExtensions, {Name: 'AWS::Include', Parameters: {Location: x}}]\n" + BUCKET,
         "No transform named AWS::Include found. Corral supports AWS::LanguageExtensions."),
        ("Transform: {}\n" + BUCKET, "Transforms defined as maps require Name key."),
        (PROPERTY + "{'Fn::Transform': {Name: AWS::Include}}",
         "No transform named AWS::Include found. Corral supports AWS::LanguageExtensions."),
        # resources
        ("Resources: {A: text}", "Template format error: Any Resources member must be an object."),
        ("Resources: {A: {Properties: {}}}",
         "Template format error: [/Resources/A] Every Resources object must contain a Type member."),
        ("Resources: {A: {Type: [x]}}", "Template format error: Every Type member must be a string."),
        ("Resources: {A: {Type: X, Invalid: 1}}", "Invalid template resource property 'Invalid'"),
        ("Resources: {my-bucket: {Type: X}}", "Template format error: Resource name my-bucket is non alphanumeric."),
        ("Resources: {A: {Type: X, Properties: [a]}}",
         "Template format error: [/Resources/A/Properties] Properties must be an object."),
        ("Resources: {A: {Type: X, Properties: {B: [a, ~]}}}",
         "[/Resources/A/Properties/B/1] 'null' values are not allowed in templates"),
        ("Resources: {A: {Type: X, DeletionPolicy: Keep}}",
         "Template format error: Unrecognized DeletionPolicy Keep for resource A"),
        ("Resources: {A: {Type: X, UpdateReplacePolicy: RetainExceptOnCreate}}",
         "Template format error: Unrecognized UpdateReplacePolicy RetainExceptOnCreate for resource A"),
        ("Resources: {A: {Type: X, DependsOn: {a: b}}}",
         "Template format error: DependsOn must be a string or list of strings."),
        ("Resources: {A: {Type: X, DependsOn: [[a]]}}", "Template format error: Every DependsOn value must be a string."),
        ("Resources: {A: {Type: X, DependsOn: [C]}}", unresolved("C")),
        ("Resources: {A: {Type: X, Condition: C}}",
         "Template format error: Unresolved condition dependency C in the Resources block of the template"),
        ("Resources: {Fn::ForEach::X: [a, [b], {c: {}}]}",
         "Template format error: [/Resources/Fn::ForEach::X] resource definition is malformed"),
        ("Parameters: {B: {Type: String}}\n" + BUCKET,
         "Template error: all resources and parameters must have unique names. Common name(s):[B]"),
        ("Resources: " + many(501, "R{0}: {{Type: X}}"),
         "Template format error: Number of resources, 501, is greater than maximum allowed, 500"),
        ("Outputs: " + many(201, "O{0}: {{Value: X}}") + "\n" + BUCKET,
         "Template format error: Number of outputs, 201, is greater than maximum allowed, 200"),
        ("Parameters: " + many(201, "P{0}: {{Type: String}}") + "\n" + BUCKET,
         "Template format error: Number of parameters, 201, is greater than maximum allowed, 200"),
        # references
        (PROPERTY + "!Ref Nope", unresolved("Nope")),
        (PROPERTY + "[!Ref Y, !Sub '${X}', !Ref Y]", unresolved("Y, X")),
        (PROPERTY + "!Ref {a: b}", "Template error: every Ref object must have a single String value."),
        (PROPERTY + "!GetAtt C.Arn", "Template error: instance of Fn::GetAtt references undefined resource C"),
        (PROPERTY + "!GetAtt B", GET_ATT),
        (PROPERTY + "!GetAtt [B, '']", GET_ATT),
        (PROPERTY + "!GetAtt [B, a, b]", GET_ATT),
        (PROPERTY + "!Sub '${C.Arn}'", "Template error: instance of Fn::Sub references invalid resource attribute C.Arn"),
        (PROPERTY + "!Sub '${A-B}'", SUB_NAMES),
        (PROPERTY + "!Sub '${}'", SUB_NAMES),
        (PROPERTY + "!Sub '${B${C}}'", SUB_NAMES),
        (PROPERTY + "!Sub [a]", SUB),
        (PROPERTY + "!Sub ['${x}', y]", SUB),
        (PROPERTY + "!Sub ['${x}', {x: !Ref C}]", unresolved("C")),
        (PROPERTY + "!Ref AWS::Regionn", unresolved("AWS::Regionn")),
        # functions
        (PROPERTY + "{'Fn::Concat': [a]}", f"Template error: Encountered unsupported function: Fn::Concat {UNSUPPORTED}"),
        (PROPERTY + "!Length [a]", f"Template error: Encountered unsupported function: Fn::Length {UNSUPPORTED}"),
        (PROPERTY + "!Equals [a, b]", "Template error: Fn::Equals cannot be partially collapsed"),
        (PROPERTY + "!Join [a]", JOIN),
        (PROPERTY + "!Join ['-', text]", JOIN),
        (PROPERTY + "!Join [!Ref B, [a]]", JOIN),
        (PROPERTY + "!Split ['-']", "Template error: every Fn::Split object requires two parameters, (1) a string delimiter and "
         "(2) a string to be split or a function that returns a string to be split."),
        (PROPERTY + "!Select [0, text]", "Template error: Fn::Select requires a list argument with two elements: an integer index "
         "and a list"),
        (PROPERTY + "!Select []",
         "Template error: Fn::Select requires a list argument with a valid index value as its first element"),
        (PROPERTY + "!FindInMap [a, b]", FIND_IN_MAP),
        (PROPERTY + "!FindInMap [a, b, c, d]", FIND_IN_MAP),
        (PROPERTY + "!FindInMap [M, b, c]",
         "Template error: Mapping named 'M' is not present in the 'Mappings' section of template."),
        (PROPERTY + "!If [C, a, b]", "Template error: unresolved condition dependency C in Fn::If"),
        (PROPERTY + "!If [C, a]", "Template error: Fn::If requires a list argument with three elements"),
        (PROPERTY + "!If [[C], a, b]", "Template error: Fn::If requires a list argument with the first element being a condition"),
        (PROPERTY + "!ImportValue {Ref: B}", IMPORT),
        (PROPERTY + "!ImportValue {'Fn::Sub': '${Missing}-x'}", IMPORT),
        (PROPERTY + "!ImportValue {'Fn::Select': [0, !GetAZs '']}", IMPORT),
        (PROPERTY + "!Cidr [10.0.0.0/16, 1]",
         "Template error: every Fn::Cidr object requires three parameters, (1) an IP block, (2) "
         "a count between 1 and 256 and (3) the number of subnet bits"),
        # cycles
        ("Resources: {A: {Type: X, DependsOn: A}}", "Circular dependency between resources: [A]"),
        ("Resources: {A: {Type: X, DependsOn: B}, B: {Type: X, Properties: {P: !Sub '${A.Arn}'}}, C: {Type: X, DependsOn: A}}",
         "Circular dependency between resources: [A, B]"),
        ("Resources: {A: {Type: X, Metadata: {P: !Ref B}}, B: {Type: X, UpdatePolicy: {P: !Ref C}}, "
         "C: {Type: X, CreationPolicy: {P: !GetAtt A.B}}}", "Circular dependency between resources: [A, B, C]"),
        # mappings
        ("Mappings: {M: a}\n" + BUCKET, "Template format error: Every Mappings member M must be a map"),
        ("Mappings: {M: {K: a}}\n" + BUCKET, "Template format error: Every Mappings member K must be a map"),
        ("Mappings: {M: {K: {A: {B: c}}}}\n" + BUCKET,
         "Template format error: Every Mappings attribute must be a String or a List."),
        ("Mappings: {M: {K: {x86-64: b}}}\n" + BUCKET,
         "Template format error: Mappings attribute name 'x86-64' must contain only alphanumeric characters."),
        # conditions
        ("Conditions: {C: yes}\n" + BUCKET, BOOLEAN),
        ("Conditions: {C: !Ref AWS::Region}\n" + BUCKET, BOOLEAN),
        ("Conditions: {C: !Not [text]}\n" + BUCKET, BOOLEAN),
        ("Conditions: {C: !Equals [a]}\n" + BUCKET,
         "Template error: every Fn::Equals object requires a list of 2 string parameters."),
        ("Conditions: {C: !And [!Condition D]}\n" + BUCKET,
         "Template error: every Fn::And object requires a list of at least 2 and at most 10 boolean parameters."),
        (f"Conditions: {{C: !Or [{', '.join(['!Condition D'] * 11)}]}}\n" + BUCKET,
         "Template error: every Fn::Or object requires a list of at least 2 and at most 10 boolean parameters."),
        ("Conditions: {C: !Not [!Condition D, !Condition E]}\n" + BUCKET,
         "Template error: every Fn::Not object requires a list with exactly 1 boolean parameter."),
        ("Conditions: {C: !Equals [!Ref B, x]}\n" + BUCKET, "Template format error: Unresolved dependencies [B]. Cannot reference "
         "resources in the Conditions block of the template"),
        ("Conditions: {C: !Not [!Condition D]}\n" + BUCKET,
         "Template format error: Unresolved condition dependencies [D] in the Conditions block of the template"),
        ("Conditions: {C: !Not [!Condition D], D: !Not [!Condition C]}\n" + BUCKET,
         "Template error: Found circular condition dependency: [C, D]"),
        ("Conditions: {C: !Equals [!ImportValue x, y]}\n" + BUCKET, "Template error: Cannot use Fn::ImportValue in Conditions."),
        # outputs
        ("Outputs: {O: text}\n" + BUCKET, "Template format error: Any Outputs member must be an object."),
        ("Outputs: {O_1: {Value: a}}\n" + BUCKET, "Template format error: Output O_1 is non alphanumeric."),
        ("Outputs: {O: {Description: a}}\n" + BUCKET, "Template format error: Every Outputs member must contain a Value object"),
        ("Outputs: {O: {Value: }}\n" + BUCKET, "[/Outputs/O/Value] 'null' values are not allowed in templates"),
        ("Outputs: {O: {Value: a, Fn::Sub: b}}\n" + BUCKET, "Template format error: Invalid outputs property : [Fn::Sub]"),
        ("Outputs: {O: {Value: [a]}}\n" + BUCKET,
         "Template format error: The Value field of every Outputs member must evaluate to a String and not a List."),
        ("Outputs: {O: {Value: a, Export: b}}\n" + BUCKET, MALFORMED_EXPORT),
        ("Outputs: {O: {Value: a, Export: {Name: my name}}}\n" + BUCKET, MALFORMED_EXPORT),
        ("Outputs: {O: {Value: !Ref C}}\n" + BUCKET, unresolved("C", "Outputs")),
        ("Outputs: {O: {Value: a, Condition: C}}\n" + BUCKET,
         "Template format error: Unresolved condition dependency C in the Outputs block of the template"),
        # rules
        ("Rules: {R: {}}\n" + BUCKET, "Template format error: [/Rules/R] Every Rules object must contain a list of Assertions."),
        ("Rules: {R: {Assertions: [{Assert: !Equals [!Ref B, a]}]}}\n" + BUCKET,
         "Template format error: Unresolved dependencies [B]. Cannot reference resources in the Rules block of the template"),
        ("Rules: {R: {Assertions: [{Assert: !Contains [a]}]}}\n" + BUCKET,
         "Template error: every Fn::Contains object requires a list of 2 parameters."),
    ],
)  # fmt: skip
def test_refused_templates(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as refused:
        compile_template(read_template(text))
    assert refused.value.message == message


def test_a_compiled_template() -> None:
    template = compile_template(
        read_template("""
AWSTemplateFormatVersion: 2010-09-09
Description: first
Description: second
Metadata: {a: {Ref: Nothing}}
Parameters:
  Kind: {Type: String, Description: first, Description: second, Default: small, NoEcho: true}
Mappings: {Sizes: {small: {Gpus: 1, Names: [a, b]}}}
Conditions:
  Both: !And [!Condition Small, !Not [!Condition Big]]
  Big: !Equals [!Ref Kind, big]
  Small: !Equals [!FindInMap [Sizes, !Ref Kind, Gpus], 1]
Resources:
  Group:
    Type: AWS::AutoScaling::AutoScalingGroup
    DependsOn: [Role, Role]
    Condition: Small
    DeletionPolicy: Retain
    Metadata: {AWS::CloudFormation::Init: {config: {files: {/etc/x: {content: !Sub '${Cluster.Arn}'}}}}}
    CreationPolicy: {ResourceSignal: {Count: !Ref Kind}}
    UpdatePolicy: {AutoScalingRollingUpdate: {PauseTime: !If [Big, !GetAtt Topic.Name, PT5M]}}
    Properties: {Launch: !Ref Launch, Condition: {StringEquals: {a: b}}}
  Launch: {Type: AWS::EC2::LaunchTemplate}
  Role: {Type: AWS::IAM::Role}
  Cluster: {Type: AWS::ECS::Cluster}
  Topic: {Type: AWS::SNS::Topic}
Outputs:
  Name: {Value: !Ref Cluster, Description: the name, Export: {Name: !Sub '${AWS::StackName}:Cluster'}}
""")
    )
    group = template.resources["Group"]
    assert template.description == "second" and template.metadata == {"a": {"Ref": "Nothing"}}
    assert group.references == {"Role", "Cluster", "Topic", "Launch"} and group.required == {"Cluster", "Launch"}
    assert (group.depends_on, group.condition, group.deletion_policy) == (("Role", "Role"), "Small", "Retain")
    assert list(template.conditions).index("Both") == 2
    assert template.parameters["Kind"].description == "second" and template.parameters["Kind"].no_echo
    output = template.outputs["Name"]
    assert (output.references, output.export_name) == ({"Cluster"}, {"Fn::Sub": "${AWS::StackName}:Cluster"})


graphs = st.integers(1, 12).flatmap(
    lambda count: st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=25).map(
        lambda edges: {f"R{node}": {f"R{to}" for start, to in edges if start == node} for node in range(count)}
    )
)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


@given(graphs)
def test_order_and_cycles_of_random_graphs(graph: dict[str, set[str]]) -> None:
    on_cycle = {name for name in graph if name in reachable(graph, name)}
    found = cyclic(graph)
    assert set(found) >= on_cycle and bool(found) == bool(on_cycle)
    assert all(reachable(graph, name) & on_cycle for name in found)
    ordered = in_order(graph)
    assert set(ordered) == {name for name in graph if not ({name} | reachable(graph, name)) & on_cycle}
    assert all(ordered.index(other) < ordered.index(name) for name in ordered for other in graph[name])


names = st.sampled_from(["A", "B", "P", "C", "M", "AWS::Region", "AWS::NoValue", "x.y", "A.B", "${A}", "${A.B}", "&{I}", "0", ""])
functions = st.sampled_from(
    [
        "Ref", "Condition", "DefaultValue", "Fn::ForEach::L", "Fn::Nope", "Fn::Transform",
        *(f"Fn::{name}" for name in (
            "And", "Base64", "Cidr", "Equals", "FindInMap", "GetAtt", "GetAZs", "If", "ImportValue", "Join", "Length", "Not", "Or",
            "Select", "Split", "Sub", "ToJsonString", "Contains", "RefAll", "ValueOf", "EachMemberIn",
        )),
    ]
)  # fmt: skip
values = st.recursive(
    names | st.sampled_from([0, 1, True, None, 1.5]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(names, inner, max_size=3)
        | functions.flatmap(lambda name: inner.map(lambda value: {name: value}))
        | functions.flatmap(lambda name: st.lists(inner, min_size=1, max_size=4).map(lambda value: {name: value}))
    ),
    max_leaves=12,
)
MEMBERS = ("Type", "Properties", "DependsOn", "Condition", "DeletionPolicy", "Value", "Export", "Assertions", "AllowedValues")
members = st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS, values))
resource = st.fixed_dictionaries(
    {"Type": st.just("AWS::S3::Bucket"), "Properties": st.fixed_dictionaries({"P": values})},
    optional={"Condition": names, "DependsOn": names, "Metadata": st.fixed_dictionaries({"M": values})},
)
output = st.fixed_dictionaries({"Value": values}, optional={"Condition": names, "Export": st.fixed_dictionaries({"Name": values})})
condition = st.lists(values, min_size=2, max_size=2).map(lambda pair: {"Fn::Equals": pair})
rule = st.fixed_dictionaries(
    {"Assertions": st.lists(st.fixed_dictionaries({"Assert": values | condition}), min_size=1, max_size=2)}
)


def section(*forms: Any) -> Any:
    return st.dictionaries(names, st.one_of(*forms), max_size=3) | values


documents = st.fixed_dictionaries(
    {"Resources": st.fixed_dictionaries({"A": resource | members}, optional={"B": resource, "Fn::ForEach::L": values})},
    optional={
        "Conditions": st.fixed_dictionaries({"C": condition | values}) | values,
        "Mappings": st.just({"M": {"A": {"B": "x"}, "x": {"P": ["a", "b"]}}}) | values,
        "Parameters": st.just({"P": {"Type": "CommaDelimitedList", "Default": "a,b"}}) | section(members),
        "Outputs": section(output, members),
        "Rules": section(rule, members),
        "Transform": st.sampled_from(["AWS::LanguageExtensions", ["AWS::LanguageExtensions"], "Other", 5, {"a": 1}]),
        "Description": values,
    },
)


@settings(max_examples=examples(120))
@given(documents)
def test_a_random_tree_works_or_is_refused(tree: dict[str, Any]) -> None:
    try:
        found = parameter_values(parameter_declarations(tree), {}, {}, lambda name: name)
        template = compile_template(expand(tree, found.values))
        pseudo = {"AWS::Region": "us-east-1"}
        evaluation = Evaluation(
            template, found.values, pseudo, zones=lambda region: [region + "a"], imported=str.upper, dynamic=str.lower
        )
        evaluation.check_rules()
        for each in evaluation.resources.values():
            evaluation.resolve(each.properties, str.lower, lambda name, attribute: f"{name}.{attribute}")
        evaluation.outputs(str.lower, lambda name, attribute: f"{name}.{attribute}")
    except TemplateError as refused:
        assert refused.message
