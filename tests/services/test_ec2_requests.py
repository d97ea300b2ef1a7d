"""Random requests to EC2's handlers: each response has the model's shape or is an error, and the network stays consistent."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.store import Store
from store.rows import derived_fleet, hello
from wire.oracle import model_of

OPERATIONS = SERVICES["ec2"].operations
CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
REQUESTS = 2_500
TEXTS = ("", "x", "default", "naïve ☃", "\x00", "y" * 300, "*", "\\", "1", "-1")
LIKELY = {  # by the end of a member's name
    "Name": ("vpc-id", "tag:a", "tag-key", "group-id", "colour", "web"),
    "Key": ("a", "domain-name", "aws:x"),
    "Protocol": ("tcp", "udp", "-1", "icmp", "6", "999"),
    "CidrBlock": ("10.0.0.0/16", "10.0.1.0/24", "10.0.2.0/24", "0.0.0.0/0", "10.0.0.0/99"),
    "CidrIp": ("10.0.0.0/8", "0.0.0.0/0"),
    "CidrIpv6": ("::/0",),
    "ResourceType": ("instance", "launch-template", "image", "vpc", "subnet", "security-group", "route-table"),
    "ServiceName": ("com.amazonaws.us-east-1.s3",),
    "AvailabilityZone": ("us-east-1a", "us-east-1z"),
    "KeyType": ("ed25519",),
    "InstanceType": ("p3.2xlarge", "m5.large", "p2.16xlarge", "x"),
    "ImageId": ("ami-1", "resolve:ssm:none"),
    "UserData": ("IyEvYmluL3NoCmVjaG8gRUNTX0NMVVNURVI9ZGVmYXVsdCA+PiAvZXRjL2Vjcy9lY3MuY29uZmln", "%"),
    "Attribute": ("disableApiTermination", "instanceType", "userData", "groupSet", "x"),
    "Version": ("1", "$Latest", "$Default", "2"),
    "Count": ("1",),
}
TARGETS = ("RouteTableId", "SubnetId", "VpcId", "GroupId", "InternetGatewayId", "NatGatewayId", "AllocationId", "NetworkAclId",
           "InstanceId",
           "LaunchTemplateId", "ImageId")  # fmt: skip


class Requests:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seen: dict[str, list[str]] = defaultdict(list)  # member → ids of responses

    def value(self, shape: Any, name: str, depth: int = 0) -> Any:
        rng = self.rng
        match shape.type_name:
            case "structure":
                likely = 0.5 if depth else 0.3
                chosen = [each for each in shape.members if each in shape.required_members or rng.random() < likely]
                return {each: self.value(shape.members[each], each, depth + 1) for each in chosen if each != "DryRun"}
            case "list":
                return [self.value(shape.member, name, depth + 1) for _ in range(rng.randrange(3))]
            case "boolean":
                return rng.random() < 0.5
            case "integer" | "long":
                return rng.choice((0, 1, -1, 22, 100, 65_535, 70_000, 2**31 - 1))
            case "blob":
                return rng.choice((b"", b"ssh-rsa AAAA", b"\xff\x00"))
            case "timestamp" | "double" | "float":
                return 1.0
        return self.text(shape, name)

    def text(self, shape: Any, name: str) -> str:
        if shape.enum and name not in ("KeyType", "InstanceType"):
            return self.rng.choice(shape.enum)
        if self.rng.random() < 0.1:
            return self.rng.choice(TEXTS)
        if name == "Resources":
            name = self.rng.choice(TARGETS)
        known = self.seen.get(
            name.removeprefix("Add").removeprefix("Remove").removesuffix("s").replace("SecurityGroupId", "GroupId")
        )
        if known:
            return self.rng.choice(known)
        return self.rng.choice(next((texts for end, texts in LIKELY.items() if name.endswith(end)), TEXTS))

    def learn(self, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name.endswith("Id") and isinstance(inner, str):
                    self.seen[name] = [*self.seen[name][-20:], inner]
                self.learn(inner)
        elif isinstance(value, list):
            for inner in value:
                self.learn(inner)


def check_shape(shape: Any, value: Any, path: str) -> None:
    if shape.type_name == "structure":
        assert value.keys() <= shape.members.keys(), f"{path} has {value.keys() - shape.members.keys()}"
        for name, inner in value.items():
            check_shape(shape.members[name], inner, f"{path}.{name}")
    elif shape.type_name == "list":
        for inner in value:
            check_shape(shape.member, inner, f"{path}[]")
    else:
        types = {"string": str, "boolean": bool, "integer": int, "long": int, "timestamp": float, "double": float | int}
        assert isinstance(value, types[shape.type_name]), f"{path} is {value!r}"


def check_network(store: Store) -> None:
    def every(type_: str) -> dict[str, Any]:
        return dict(store.stored.listed("ec2", type_, CALLER.region))

    vpcs, subnets, tables, acls, groups = (
        every(type_) for type_ in ("vpc", "subnet", "route-table", "network-acl", "security-group")
    )
    for vpc in vpcs:
        mains = [each for table in tables.values() if table["VpcId"] == vpc for each in table["Associations"] if each["Main"]]
        assert len(mains) == 1, "a VPC has one main route table"
        assert sum(acl["IsDefault"] for acl in acls.values() if acl["VpcId"] == vpc) == 1
        assert sum(group["GroupName"] == "default" for group in groups.values() if group["VpcId"] == vpc) == 1
    for document in (*subnets.values(), *tables.values(), *acls.values(), *groups.values()):
        assert document["VpcId"] in vpcs
    associated = [each["SubnetId"] for acl in acls.values() for each in acl["Associations"]]
    assert sorted(associated) == sorted(subnets), "a subnet has one network ACL"
    explicit = [each["SubnetId"] for table in tables.values() for each in table["Associations"] if "SubnetId" in each]
    assert len(set(explicit)) == len(explicit) and set(explicit) <= set(subnets)
    for group in groups.values():
        referenced = {rule["ReferencedGroupInfo"]["GroupId"] for rule in group["_rules"] if "ReferencedGroupInfo" in rule}
        assert referenced <= set(groups)
    for nat in every("natgateway").values():
        assert nat["SubnetId"] in subnets
    for gateway in every("internet-gateway").values():
        assert {each["VpcId"] for each in gateway["Attachments"]} <= set(vpcs)


@pytest.mark.parametrize("seed", range(2))
def test_random_requests(seed: int):
    store, requests, clock, ids = Store(None), Requests(seed), VirtualClock(), SeededIds(Random(seed))
    names = [name for name in sorted(OPERATIONS) if name not in ("DescribeRegions", "DescribeAvailabilityZones")]
    answered: dict[str, int] = defaultdict(int)
    store.hosts.put(hello("h", 8), 1.0)
    store.begin()
    for at in range(REQUESTS):
        name = requests.rng.choice(names)
        model = model_of("ec2").operation_model(name)
        params = requests.value(model.input_shape, name)
        if name == "RunInstances":  # it has too many members for all of them to be right at once
            chosen = requests.rng.sample(sorted(params), min(3, len(params)))
            params = {member: params[member] for member in chosen} | {"ImageId": "ami-1", "MinCount": 1, "MaxCount": 2}
        store.savepoint()
        try:
            result = OPERATIONS[name](Tx(store, clock.now_s(), ids, Settings()), params, CALLER)
        except ApiError:
            store.rollback_to_savepoint()
            continue
        except Exception as error:
            raise AssertionError(f"request {at}: {name} {params}") from error
        store.release()
        answered[name] += 1
        requests.learn(result)
        if model.output_shape is not None:
            check_shape(model.output_shape, result, name)
        else:
            assert result == {}
        if at % 20 == 0:
            check_network(store)
    check_network(store)
    assert store.fleet.snapshot() == derived_fleet(store).snapshot()
    assert answered["RunInstances"] > 3
    assert len(answered) > len(names) / 2, "most requests have a valid form"
