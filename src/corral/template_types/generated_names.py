"""Generated names. If a template has no name for a resource, the stack names it STACK-LOGICALID-RANDOM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.transactions import Tx
from corral.template_types.resource_types import TemplateType
from corral.template_types.schemas import has_schema, max_name_length

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
RANDOM_LENGTH = 12
DEFAULT_MAX = 128
LOWER_CASE = frozenset({"AWS::S3::Bucket", "AWS::ECR::Repository"})
MAX_LENGTHS = {  # limits that the schemas do not have
    "AWS::S3::Bucket": 63,
    "AWS::IAM::Role": 64,
    "AWS::IAM::User": 64,
    "AWS::SQS::Queue": 80,
    "AWS::ElasticLoadBalancingV2::LoadBalancer": 32,
    "AWS::ElasticLoadBalancingV2::TargetGroup": 32,
    "AWS::Lambda::Function": 64,
    "AWS::Lambda::Permission": 100,
    "AWS::Events::Rule": 64,
}
# Type → property. If the property is true, the name ends with .fifo.
FIFO = {"AWS::SQS::Queue": "FifoQueue", "AWS::SNS::Topic": "FifoTopic"}


def generated_name(tx: Tx[Any], stack_name: str, logical_id: str, type_: TemplateType, properties: Mapping[str, Any]) -> str:
    number, random = int(tx.ids.hex32(), 16), ""
    for _ in range(RANDOM_LENGTH):
        number, digit = divmod(number, len(ALPHABET))
        random += ALPHABET[digit]
    suffix = ".fifo" if properties.get(FIFO.get(type_.name, "")) is True else ""
    limit = max_name_length(type_.name, type_.name_property or "") if has_schema(type_.name) else None
    room = min(MAX_LENGTHS.get(type_.name, DEFAULT_MAX), limit or DEFAULT_MAX) - len(suffix) - RANDOM_LENGTH - 2
    # A long name is cut. The logical id gets at least half of the room.
    stack_part = stack_name[: max(room // 2, room - len(logical_id))]
    logical_part = logical_id[: room - len(stack_part)]
    name = f"{stack_part}-{logical_part}-{random}{suffix}"
    return name.lower() if type_.name in LOWER_CASE else name


def name_from_tags(tx: Tx[Any], type_: TemplateType, properties: Mapping[str, Any]) -> str:
    """Return a generated name for a resource whose name a template cannot choose. The tags of the stack name its parts."""
    tags = properties.get("_tags", {})
    stack, logical_id = (tags.get(f"aws:cloudformation:{part}", "") for part in ("stack-name", "logical-id"))
    return generated_name(tx, stack or "stack", logical_id or "resource", type_, properties)
