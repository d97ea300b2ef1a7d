"""AWS's schemas of all resource types: the check of properties, and resources of types for which Corral has no service."""

from __future__ import annotations

import re
import subprocess
import sys
from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.store import Store
from corral.template_types import schemas
from corral.template_types.lookup import is_known, read_attributes, replacing_properties
from corral.template_types.reference_values import ARN_RESOURCES, FORMS, REFERENCES
from corral.template_types.schemas import Facts, check_properties, facts, tag_property
from corral.template_types.stored_only import stored_only_type

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
TAGS = {"_tags": {"aws:cloudformation:stack-name": "demo", "aws:cloudformation:logical-id": "Thing"}}
TYPES = list(schemas.type_names())
BUCKET, TABLE, ALARM = "AWS::S3::Bucket", "AWS::DynamoDB::Table", "AWS::CloudWatch::Alarm"


@pytest.fixture
def tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


def test_the_file_names_its_source_and_has_all_types():
    header = schemas.FILE.open("rb").readline()
    assert b'"source":"AWS CloudFormation resource provider schemas of 20' in header and b'"licence":"MIT-0"' in header
    assert len(TYPES) == 1898 and schemas.FILE.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (BUCKET, {"ObjectLockEnabled": "true"}, {"ObjectLockEnabled": True}),
        (BUCKET, {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "ExpirationInDays": "7"}]}},
         {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "ExpirationInDays": 7}]}}),
        (BUCKET, {"BucketName": 12, "Tags": [{"Key": "k", "Value": True}]},
         {"BucketName": "12", "Tags": [{"Key": "k", "Value": "true"}]}),
        (ALARM, {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 1.0, "Threshold": "0.5"},
         {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 1, "Threshold": 0.5}),
        ("AWS::ECS::TaskDefinition", {"ContainerDefinitions": [{"Name": "c", "Image": "i", "DockerLabels": {"any": 1}}]},
         {"ContainerDefinitions": [{"Name": "c", "Image": "i", "DockerLabels": {"any": "1"}}]}),
        ("AWS::IAM::Role", {"AssumeRolePolicyDocument": {"Statement": [{"Any": 1}]}, **TAGS},
         {"AssumeRolePolicyDocument": {"Statement": [{"Any": 1}]}, **TAGS}),
        ("AWS::SSM::Parameter", {"Type": "String", "Value": 1.5}, {"Type": "String", "Value": "1.5"}),
        ("AWS::SSM::Parameter", {"Type": "String", "Value": 8.0}, {"Type": "String", "Value": "8.0"}),
        ("AWS::CDK::Metadata", {"Analytics": "v2"}, {"Analytics": "v2"}),
    ],
)  # fmt: skip
def test_values_get_the_types_of_the_schema(name: str, given: Any, expected: Any):
    checked = check_properties(name, "Thing", given)
    assert checked == expected and repr(checked) == repr(expected)


@pytest.mark.parametrize(
    ("name", "given", "violations"),
    [
        ("AWS::EC2::Subnet", {}, ["#: required key [VpcId] not found"]),
        (BUCKET, {"Colour": "red"}, ["#: extraneous key [Colour] is not permitted"]),
        (BUCKET, {"Arn": "arn:aws:s3:::b"}, ["#: extraneous key [Arn] is not permitted"]),
        (BUCKET, {"ObjectLockEnabled": "maybe"}, ["#/ObjectLockEnabled: expected type: Boolean, found: String"]),
        (BUCKET, {"Tags": {"k": "v"}}, ["#/Tags: expected type: JSONArray, found: JSONObject"]),
        (BUCKET, {"Tags": [{"Key": "k", "Value": ["v"]}, {"Key": "l"}]},
         ["#/Tags/0/Value: expected type: String, found: JSONArray", "#/Tags/1: required key [Value] not found"]),
        (BUCKET, {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "ExpirationInDays": "soon"}]}},
         ["#/LifecycleConfiguration/Rules/0/ExpirationInDays: expected type: Number, found: String"]),
        (BUCKET, {"VersioningConfiguration": "Enabled"},
         ["#/VersioningConfiguration: expected type: JSONObject, found: String"]),
        (BUCKET, {"VersioningConfiguration": {"Status": "On"}},
         ["#/VersioningConfiguration/Status: failed validation constraint for keyword [enum]"]),
        ("AWS::DynamoDB::Table", {"KeySchema": [{"KeyType": "HASH"}]},
         ["#/KeySchema/0: required key [AttributeName] not found"]),
        ("AWS::RDS::GlobalCluster", {"SourceDBClusterIdentifier": "a", "Engine": "aurora"},
         ["#: 2 subschemas matched instead of one"]),
    ],
)  # fmt: skip
def test_violations_in_the_words_of_cloudformation(name: str, given: Any, violations: list[str]):
    with pytest.raises(ApiError) as refused:
        check_properties(name, "Thing", given)
    listed = "\n".join(violations)
    assert refused.value.code == "ValidationError"
    assert refused.value.message == f"Properties validation failed for resource Thing with message:\n{listed}"


def test_which_changes_replace_a_resource():
    assert replacing_properties(TABLE, {"TableName": "a", "BillingMode": "x"}, {"TableName": "a", "BillingMode": "y"}) == []
    assert replacing_properties(TABLE, {"TableName": "a"}, {"TableName": "b"}) == ["TableName"]
    volumes = "AWS::FSx::StorageVirtualMachine"
    assert replacing_properties(volumes, {"FileSystemId": "a"}, {"FileSystemId": "b"}) == ["FileSystemId"]
    peer, path = "AWS::EC2::TransitGatewayConnectPeer", "ConnectPeerConfiguration/BgpConfigurations/*/PeerAsn"
    assert path in facts(peer).create_only
    old, new = ({"ConnectPeerConfiguration": {"BgpConfigurations": [{"PeerAsn": asn}]}} for asn in (1, 2))
    assert path in replacing_properties(peer, old, new) and path not in replacing_properties(peer, old, old)


def test_tags_and_attributes():
    assert tag_property(BUCKET) == ("Tags", "list") and tag_property("AWS::SSM::Parameter") == ("Tags", "map")
    assert tag_property("AWS::EFS::FileSystem") == ("FileSystemTags", "list") and tag_property("AWS::S3::BucketPolicy") is None
    assert "Endpoint.Address" in facts("AWS::RDS::DBInstance").attributes and "CidrBlock" in facts("AWS::EC2::VPC").attributes
    assert "Colour" not in facts(BUCKET).attributes


@pytest.mark.parametrize(
    ("name", "properties", "physical_id", "attributes"),
    [
        ("AWS::Lambda::Function", {"FunctionName": "f"}, "f", {"Arn": "arn:aws:lambda:us-east-1:123456789012:function:f"}),
        ("AWS::Lambda::Function", {}, r"demo-Thing-[A-Z0-9]{12}", {}),
        ("AWS::KMS::Key", {}, r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", {"Arn": "arn:aws:kms:us-east-1:123456789012:key/{id}"}),
        ("AWS::EFS::FileSystem", {}, r"fs-[0-9a-f]{17}",
         {"Arn": "arn:aws:elasticfilesystem:us-east-1:123456789012:file-system/{id}"}),
        ("AWS::RDS::DBInstance", {"Engine": "postgres"}, r"demo-thing-[a-z0-9]{12}", {"Endpoint.Port": "5432"}),
        ("AWS::RDS::DBInstance", {"DBInstanceIdentifier": "MyDB", "Port": "99"}, "mydb",
         {"Endpoint.Port": "99", "DBInstanceArn": "arn:aws:rds:us-east-1:123456789012:db:mydb"}),
        ("AWS::Route53::RecordSet", {"Name": "a.example.org", "Type": "A"}, "a.example.org", {}),
        ("AWS::WAFv2::IPSet", {"Name": "n", "Scope": "REGIONAL"}, r"n\|[0-9a-f-]{36}\|REGIONAL", {}),
        ("AWS::Events::Rule", {"Name": "r"}, "r", {"Arn": "arn:aws:events:us-east-1:123456789012:rule/r"}),
        ("AWS::VpcLattice::Service", {}, r"arn:aws:vpc-lattice:us-east-1:123456789012:service/svc-[0-9a-f]{17}",
         {"Status": "ACTIVE", "CreatedAt": "2023-11-14T22:13:20.000Z"}),
        ("AWS::ElasticLoadBalancingV2::LoadBalancer", {"Name": "web"},
         r"arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/app/web/[0-9a-f]{16}", {"LoadBalancerName": "web"}),
        ("AWS::ElasticLoadBalancingV2::LoadBalancer", {"Name": "web", "Type": "network"},
         r"arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/net/web/[0-9a-f]{16}", {"LoadBalancerName": "web"}),
        ("AWS::ElasticLoadBalancingV2::LoadBalancer", {"Name": "web", "Type": "gateway"},
         r"arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/gwy/web/[0-9a-f]{16}", {"LoadBalancerName": "web"}),
        ("AWS::EC2::VPCCidrBlock", {"VpcId": "vpc-1", "CidrBlock": "10.1.0.0/16"}, r"vpc-cidr-assoc-[0-9a-f]{17}", {"Id": "{id}"}),
        ("AWS::EKS::Nodegroup", {"ClusterName": "c", "NodegroupName": "n"}, "c/n", {"ClusterName": "c"}),
        ("AWS::CDK::Metadata", {}, r"[0-9a-f-]{36}", {}),
    ],
)  # fmt: skip
def test_physical_ids_and_attributes_of_stored_only_types(
    tx: Tx[Store], name: str, properties: Any, physical_id: str, attributes: dict[str, Any]
):
    type_ = stored_only_type(name)
    made = type_.create(tx, CALLER, {**properties, **TAGS})
    found = read_attributes(tx, CALLER, type_, made, properties)
    assert re.fullmatch(physical_id, made) or physical_id == made
    assert {key: found[key] for key in attributes} == {
        key: value.format(id=made) if isinstance(value, str) else value for key, value in attributes.items()
    }
    is_generated = made != physical_id  # the case has a pattern then
    assert (type_.create(tx, CALLER, {**properties, **TAGS}) != made) == is_generated


KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def example(of: Facts, node: Any, depth: int = 0) -> Any:
    """The smallest value that a node accepts."""
    resolved = of.resolved(node)
    kind = resolved["type"][0] if isinstance(resolved["type"], list) else resolved["type"]
    if "enum" in resolved:
        return resolved["enum"][0]
    if kind == "object":
        names = {*resolved.get("required", ()), *(resolved.get("one") or [[]])[0], *(resolved.get("any") or [[]])[0]}
        members = resolved.get("properties", {})
        hidden = of.read_only if resolved is of.top else ()
        return {name: example(of, members.get(name, "any"), depth + 1) for name in sorted(names) if name not in hidden}
    if kind == "array":
        return [example(of, resolved["items"], depth + 1)] if "items" in resolved and depth < 6 else []
    return {"string": "x", "any": "x", "integer": 1, "number": 1.5, "boolean": True}[kind]


def test_every_type_of_aws_deploys(tx: Tx[Store]):
    made = {}
    for name in TYPES:
        known, type_ = facts(name), stored_only_type(name)
        properties = check_properties(name, "Thing", {**example(known, known.top), **TAGS})
        made[name] = identity = type_.create(tx, CALLER, properties)
        assert identity and identity == identity.strip(), name
        found = read_attributes(tx, CALLER, type_, identity, properties)
        assert found.keys() == set(known.attributes), name
        for attribute, value in found.items():
            kinds = known.at(attribute.replace(".", "/"))["type"]
            wanted = [KINDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "any"]
            assert not wanted or any(isinstance(value, kind) for kind in wanted), (name, attribute, value)
        type_.update(tx, CALLER, identity, properties, {**properties, "_other": 1})
        assert read_attributes(tx, CALLER, type_, identity, properties) == found, name
        type_.delete(tx, CALLER, identity, properties)
        for path in known.read_only:
            if path in REFERENCES.get(name, known.identifier) and path in found:
                assert str(found[path]) in identity, (name, path)
    assert sum(not is_known(name) for name in TYPES) == sum(name.startswith("AWS::Serverless::") for name in TYPES)


def test_the_exceptions_name_types_and_properties_of_the_schemas():
    for name in (*REFERENCES, *FORMS, *ARN_RESOURCES):
        assert schemas.has_schema(name), name
    for name, paths in (*REFERENCES.items(), *((name, tuple(forms)) for name, forms in FORMS.items())):
        for path in paths:
            assert facts(name).at(path)["type"] != "any", (name, path)


def test_only_the_types_in_use_are_read():
    code = (
        "import tracemalloc; from corral.template_types import schemas; tracemalloc.start();"
        "schemas.facts('AWS::S3::Bucket'); print(tracemalloc.get_traced_memory()[1])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(shown) < 2_000_000
