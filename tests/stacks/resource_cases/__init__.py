"""Cases of `tests/stacks/test_resource_types.py`: the properties that create, change and replace a resource of each type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.access.caller import Caller
from corral.model.principal import root_user

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
ALLOW = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
DENY = {"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}]}
TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}]}
OTHER_TRUST = {**TRUST, "Statement": [{**TRUST["Statement"][0], "Principal": {"Service": "ec2.amazonaws.com"}}]}
REGISTRY = {
    "Version": "2012-10-17",
    "Statement": [{"Sid": "a", "Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["ecr:ReplicateImage"], "Resource": ["*"]}],
}
GROUP = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:u:autoScalingGroupName/fleet"


@dataclass(frozen=True)
class Case:
    properties: dict[
        str, Any
    ]  # a value {"Ref": key} is the physical id of a needed resource, {"GetAtt": [key, name]} its attribute
    needs: Mapping[str, str | tuple[str, dict[str, Any]]] = field(
        default_factory=dict
    )  # key → type, with other properties than its case
    changed: dict[str, Any] = field(default_factory=dict)  # properties that are updated in place; None removes one
    replacing: dict[str, Any] = field(default_factory=dict)  # properties that force a replacement; empty: none does
    starts: str = ""  # what the physical id begins with
    shown: tuple[str, dict[str, Any], str] | None = None  # (operation, request, a text that its response has after the update)


TAGS = {"Tags": [{"Key": "a", "Value": "1"}]}
OTHER_TAGS = {"Tags": [{"Key": "b", "Value": "2"}]}
