"""Finds the type of a resource, by its name in a template.

`resource_type(name)` returns the type of a service in MODULES. For all other types that AWS has, it returns a type that only stores
the resource in the stack (`stored_only.py`). The types of a service are imported when a template first needs one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.stack import STORED_ONLY, ResourceVersion
from corral.operations.services import SERVICES
from corral.store import Store
from corral.template_types import schemas
from corral.template_types.resource_types import Properties, TemplateType
from corral.template_types.schemas import ValidationError

MODULES = {  # service → the module with its TEMPLATE_TYPES
    "AWS::ApplicationAutoScaling": "applicationautoscaling.cloudformation_types",
    "AWS::AutoScaling": "autoscaling.cloudformation_types",
    "AWS::Batch": "batch.cloudformation_types",
    "AWS::CloudFormation": "cloudformation.cloudformation_types",
    "AWS::CloudWatch": "cloudwatch.cloudformation_types",
    "AWS::EC2": "ec2.cloudformation_types",
    "AWS::ECR": "ecr.cloudformation_types",
    "AWS::ECS": "ecs.cloudformation_types",
    "AWS::IAM": "iam.cloudformation_types",
    "AWS::ImageBuilder": "ec2.cloudformation_images",
    "AWS::Lambda": "lambda_.cloudformation_types",
    "AWS::Logs": "logs.cloudformation_types",
    "AWS::S3": "s3.cloudformation_types",
    "AWS::SecretsManager": "secretsmanager.cloudformation_types",
    "AWS::SNS": "sns.cloudformation_types",
    "AWS::SQS": "sqs.cloudformation_types",
    "AWS::SSM": "ssm.cloudformation_types",
}


def template_type(name: str) -> TemplateType | None:
    """Return the type with this name. Return None if no module in MODULES has it."""
    service = name.rpartition("::")[0]
    return _types(service).get(name) if service in MODULES else None


def template_types() -> Iterator[TemplateType]:
    for service in MODULES:
        yield from _types(service).values()


@cache
def _types(service: str) -> dict[str, TemplateType]:
    module = import_module(f"corral.services.{MODULES[service]}")
    return {type_.name: type_ for type_ in module.TEMPLATE_TYPES}


def resource_type(name: str) -> TemplateType:
    """Return the type with this name. Raise CloudFormation's error if AWS has no such type."""
    known = template_type("AWS::CloudFormation::CustomResource" if name.startswith("Custom::") else name)
    if known is not None:
        return known
    if not is_known(name):
        raise ValidationError(f"Template format error: Unrecognized resource types: [{name}]")
    from corral.template_types.stored_only import stored_only_type  # imported only when a stack needs it

    return stored_only_type(name)


def stored_only_reason(name: str) -> str:
    """Return the reason in events of a resource without an effect. It says which operation shows the resource."""
    read = schemas.facts(name).read if schemas.has_schema(name) else ""
    service, _, operation = read.partition(":")
    is_served = service in SERVICES and operation in SERVICES[service].operations
    if template_type(name) is not None and (is_served or not read):
        return f"{STORED_ONLY} {read or 'The API of ' + name.split('::')[1]} shows it."
    why = f", and not {read}" if is_served else f": Corral does not serve {read}" if read else ""
    return f"{STORED_ONLY} Only its stack shows it (DescribeStackResource){why}."


def is_known(name: str) -> bool:
    """Return True if a template can have this type. Types of AWS::Serverless need a transform that Corral does not have."""
    if name.startswith("AWS::Serverless::"):
        return False
    return name.startswith("Custom::") or schemas.has_schema(name)


def replacing_properties(name: str, old: Properties, new: Properties) -> list[str]:
    """Return the changed properties that force a replacement. If there are none, the resource can be updated in place."""
    facts, type_ = schemas.facts(name), resource_type(name)
    changed = schemas.changed_paths(facts.create_only, old, new)
    conditional = schemas.changed_paths(facts.conditional, old, new)
    if conditional and type_.replaces is not None:
        conditional = type_.replaces(old, new)
    return sorted({*changed, *conditional})


def is_replaced(old: ResourceVersion, new: ResourceVersion) -> bool:
    """Return whether two versions of a resource are two resources, so that one of them must be deleted at the end."""
    if old.physical_id != new.physical_id:
        return True
    return any(old.properties.get(each) != new.properties.get(each) for each in resource_type(new.type).name_scope)


def read_attributes(tx: Tx[Store], caller: Caller, type_: TemplateType, physical_id: str, properties: Properties) -> dict[str, Any]:
    """Return the values of GetAtt. If the schema lists a property as an attribute, its value comes from the properties."""
    if type_.attributes_from is not None:
        return type_.attributes_from(tx, caller, physical_id, properties)
    found = {}
    if schemas.has_schema(type_.name):
        for attribute in schemas.facts(type_.name).attributes:
            value = schemas.value_at(properties, attribute.replace(".", "/"))
            if value is not None:
                found[attribute] = value
    return found | type_.attributes(tx, caller, physical_id)
