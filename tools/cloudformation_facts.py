"""Generate src/corral/services/cloudformation/facts.json from AWS's resource provider schemas, as cfn-lint ships them.

    pip download --no-deps cfn-lint==1.58.0
    python tools/cloudformation_facts.py cfn_lint-1.58.0-py3-none-any.whl

The file has, for each resource type in TYPES, its properties, which of them are required, which of them force a replacement when
they change, and which attributes GetAtt returns. To add a type, add its name to TYPES.
"""

from __future__ import annotations

import datetime
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

TYPES = {
    "AWS::EC2": (
        "DHCPOptions EIP EIPAssociation InternetGateway KeyPair NatGateway NetworkAcl NetworkAclEntry Route RouteTable "
        "SecurityGroup SecurityGroupEgress SecurityGroupIngress Subnet SubnetNetworkAclAssociation SubnetRouteTableAssociation VPC "
        "VPCDHCPOptionsAssociation VPCEndpoint VPCGatewayAttachment"
    ),
    "AWS::CloudWatch": "Alarm CompositeAlarm Dashboard",
    "AWS::ECR": "RegistryPolicy Repository",
    "AWS::ECS": "CapacityProvider",
    "AWS::IAM": "InstanceProfile ManagedPolicy Policy Role RolePolicy ServiceLinkedRole",
    "AWS::Logs": "LogGroup LogStream MetricFilter",
    "AWS::S3": "Bucket BucketPolicy",
    "AWS::SQS": "Queue QueueInlinePolicy QueuePolicy",
    "AWS::SSM": "Parameter",
}
TARGET = Path(__file__).parent.parent / "src/corral/services/cloudformation/facts.json"
PREFIX = "/properties/"


def names(schema: dict[str, Any], member: str) -> list[str]:
    """The properties that a list of JSON pointers names. A pointer into a property keeps its path."""
    return sorted(pointer.removeprefix(PREFIX) for pointer in schema.get(member, ()))


def typed(schema: dict[str, Any], *types: str) -> list[str]:
    """The names of the properties of these types. Templates may also write their values as text."""
    return sorted(name for name, each in schema["properties"].items() if each.get("type") in types)


def facts(schema: dict[str, Any]) -> dict[str, list[str]]:
    read_only = [name for name in names(schema, "readOnlyProperties") if "/" not in name]
    return {
        "properties": sorted(schema["properties"].keys() - set(read_only)),
        "required": sorted(schema.get("required") or ()),
        "replaced_by": names(schema, "createOnlyProperties"),
        "attributes": read_only,
        "booleans": typed(schema, "boolean"),
        "integers": typed(schema, "integer", "number"),
    }


def main(wheel: Path) -> None:
    wanted = {f"{service}::{name}" for service, listed in TYPES.items() for name in listed.split()}
    found: dict[str, Any] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("cfnlint/data/schemas/resources/") and name.endswith(".json"):
                schema = json.loads(archive.read(name))
                if schema["typeName"] in wanted:
                    found[schema["typeName"]] = facts(schema)
    assert found.keys() == wanted, f"not in {wheel.name}: {sorted(wanted - found.keys())}"
    source = f"AWS resource provider schemas of {'-'.join(wheel.name.split('-')[:2])} (MIT-0), {datetime.date.today()}"
    lines = [f'  "{name}": {json.dumps(found[name])}' for name in sorted(found)]
    TARGET.write_text("{\n" + f'  "source": {json.dumps(source)},\n' + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
