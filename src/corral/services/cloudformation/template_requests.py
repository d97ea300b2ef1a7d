"""Templates in requests: reading and checking them, ValidateTemplate, GetTemplate and GetTemplateSummary.

YAML is slow to parse. So `prepare` parses and checks the template of a request in a thread, before the handler runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import orjson
from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.templates import (
    ResourceDeclaration,
    Template,
    TemplateError,
    compile_template,
    expand,
    parameter_declarations,
    read_template,
)
from corral.decide.templates.compilation import transform_names
from corral.decide.templates.expansion import FOR_EACH
from corral.decide.templates.template import ParameterDeclaration
from corral.model.stack import Stack
from corral.services.cloudformation.errors import InsufficientCapabilitiesException, StackSetNotFoundException, ValidationError
from corral.services.cloudformation.lookup import find_change_set, find_stack
from corral.services.cloudformation.template_sources import template_text
from corral.store import Store
from corral.template_types.lookup import is_known
from corral.template_types.schemas import facts, has_schema

TEMPLATE = "_template"  # a parameter that `prepare` adds: a ParsedTemplate
NO_TEMPLATE = "Either Template URL or Template Body must be specified."
IAM, NAMED_IAM, AUTO_EXPAND = "CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"
# Type that needs the capability IAM → the property with its name. If a template sets this property, it needs NAMED_IAM instead.
IAM_TYPES = {
    "AWS::IAM::AccessKey": None,
    "AWS::IAM::Group": "GroupName",
    "AWS::IAM::GroupPolicy": None,
    "AWS::IAM::InstanceProfile": "InstanceProfileName",
    "AWS::IAM::ManagedPolicy": "ManagedPolicyName",
    "AWS::IAM::Policy": None,
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::RolePolicy": None,
    "AWS::IAM::User": "UserName",
    "AWS::IAM::UserPolicy": None,
    "AWS::IAM::UserToGroupAddition": None,
}

T = TypeVar("T")


class CheckedTemplate(Struct, frozen=True):
    """A template after its transforms."""

    text: str  # as the caller has written it
    processed: str  # JSON
    template: Template


class ParsedTemplate(Struct, frozen=True):
    text: str
    tree: dict[str, Any]
    checked: CheckedTemplate | None = None  # None: the template has transforms, which may need the values of parameters


def prepare(params: dict[str, Any]) -> dict[str, Any]:
    """Parse the template in a request, and decode the stack policies that the server has read from S3."""
    prepared = {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in params.items()}
    if "TemplateBody" in params:
        prepared[TEMPLATE] = parsed(template_text(params["TemplateBody"]))
        del prepared["TemplateBody"]
    return prepared


def parsed(text: str) -> ParsedTemplate:
    tree = refusing(lambda: read_template(text))
    return ParsedTemplate(text, tree, None if refusing(lambda: transform_names(tree)) else _check(text, tree))


def refusing(function: Callable[[], T]) -> T:
    """Call a function of `decide/templates`. If it refuses the template, raise a ValidationError with the same message."""
    try:
        return function()
    except TemplateError as error:
        raise ValidationError(error.message) from None


def stored_template(tx: Tx[Store], stack: Stack) -> ParsedTemplate:
    """Return the template of a stack. Transforms are applied again, because they depend on the values of parameters."""
    original, processed = tx.store.stacks.template(stack.id, stack.version.number)
    tree = orjson.loads(processed)
    if "Transform" in tree:
        return tx.result_of(("template", original), lambda: parsed(original))
    return ParsedTemplate(original, tree, _check(original, tree))


def checked(given: ParsedTemplate, parameters: Mapping[str, Any]) -> CheckedTemplate:
    """Apply the transforms of a template, and check the result."""
    return given.checked or _check(given.text, refusing(lambda: expand(given.tree, parameters)))


def _check(text: str, tree: dict[str, Any]) -> CheckedTemplate:
    """Check the structure of a template and its resource types."""
    template = refusing(lambda: compile_template(tree))
    unknown = sorted({resource.type for resource in template.resources.values() if not is_known(resource.type)})
    if unknown:
        raise ValidationError(f"Template format error: Unrecognized resource types: [{', '.join(unknown)}]")
    try:
        processed = orjson.dumps(tree).decode()
    except TypeError as error:  # an integer that has more than 64 bits
        raise ValidationError(f"Template format error: {error}") from None
    return CheckedTemplate(text, processed, template)


def required_capabilities(template: Template) -> tuple[list[str], list[str]]:
    """Return the capabilities that a template needs, and the types that need them."""
    types = sorted({each.type for each in template.resources.values() if each.type in IAM_TYPES})
    named = any(
        IAM_TYPES[each.type] in each.properties for each in template.resources.values() if IAM_TYPES.get(each.type) is not None
    )
    needed = [NAMED_IAM if named else IAM] if types else []
    return needed + ([AUTO_EXPAND] if template.transforms else []), types


def require_capabilities(template: Template, given: Iterable[str], *, expands: bool) -> None:
    """Raise an error if the request lacks a capability that the template needs.

    With `expands`, transforms need a capability, too.
    """
    acknowledged = set(given)
    if NAMED_IAM in acknowledged:
        acknowledged.add(IAM)
    needed, _ = required_capabilities(template)
    lacking = [each for each in needed if each not in acknowledged and (expands or each != AUTO_EXPAND)]
    if lacking:
        raise InsufficientCapabilitiesException(f"Requires capabilities : [{', '.join(lacking)}]")


# Operations


def validate_template(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    template = _described_template(_given(params))
    return {
        "Parameters": [_parameter(each) for each in template.parameters.values()],
        **_common(template),
    }


def _parameter(parameter: ParameterDeclaration) -> dict[str, Any]:
    return {
        "ParameterKey": parameter.name,
        **({"DefaultValue": parameter.default} if parameter.default is not None else {}),
        "NoEcho": parameter.no_echo,
        **({"Description": parameter.description} if parameter.description else {}),
    }


def get_template_summary(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if "StackSetName" in params:
        raise StackSetNotFoundException(f"StackSet {params['StackSetName']} not found")  # Corral has no stack sets
    if "StackName" in params:
        if TEMPLATE in params:
            raise ValidationError("Specify only one of StackName, TemplateBody and TemplateURL.")
        stack = find_stack(tx, caller, params["StackName"])
        if not stack.version.number:
            raise ValidationError("GetTemplateSummary cannot be called on REVIEW_IN_PROGRESS stacks.")
        given = stored_template(tx, stack)
    else:
        given = _given(params)
    template, version = _described_template(given), given.tree.get("AWSTemplateFormatVersion")
    types: dict[str, list[str]] = {}
    for each in template.resources.values():
        types.setdefault(each.type, []).append(each.logical_id)
    return {
        "Parameters": [
            {
                **_parameter(each),
                "ParameterType": each.type,
                "ParameterConstraints": {"AllowedValues": list(each.allowed_values)} if each.allowed_values is not None else {},
            }
            for each in template.parameters.values()
        ],
        **_common(template),
        "ResourceTypes": list(types),
        "ResourceIdentifierSummaries": [_identifiers(type_, logical_ids) for type_, logical_ids in types.items()],
        **({"Version": str(version)} if version else {}),
        **({"Metadata": orjson.dumps(template.metadata).decode()} if template.metadata else {}),
    }


def _identifiers(type_: str, logical_ids: list[str]) -> dict[str, Any]:
    """Describe which properties identify the resources of a type, for an import of existing resources."""
    identifier = list(facts(type_).identifier) if has_schema(type_) else []
    named = {"ResourceIdentifiers": identifier} if identifier else {}
    return {"ResourceType": type_, "LogicalResourceIds": logical_ids, **named}


def get_template(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if not params.get("StackName") and not params.get("ChangeSetName", "").startswith("arn:"):
        raise ValidationError("StackName is a required parameter.")
    if "ChangeSetName" in params:
        original, processed = _template_of_change_set(tx, params, caller)
    else:
        stack = find_stack(tx, caller, params["StackName"], deleted=True)
        if not stack.version.number:  # only its first change set has a template
            return {"TemplateBody": "", "StagesAvailable": []}
        original, processed = tx.store.stacks.template(stack.id, stack.version.number)
    # Without transforms, AWS returns the template as it was written, in both stages.
    is_processed = params.get("TemplateStage") == "Processed" and "Transform" in orjson.loads(processed)
    return {"TemplateBody": processed if is_processed else original, "StagesAvailable": ["Original", "Processed"]}


def _template_of_change_set(tx: Tx[Store], params: Mapping[str, Any], caller: Caller) -> tuple[str, str]:
    found = find_change_set(tx, caller, params)
    return found.spec["template_text"], found.spec["template"]


def _given(params: Mapping[str, Any]) -> ParsedTemplate:
    given: ParsedTemplate | None = params.get(TEMPLATE)
    if given is None:
        raise ValidationError(NO_TEMPLATE)
    return given


def _described_template(given: ParsedTemplate) -> Template:
    """Return the template for a description, without the values of its parameters.

    AWS does not apply transforms here. So a resource in a loop is described once.
    """
    if given.checked is not None:
        return given.checked.template
    declarations = refusing(lambda: parameter_declarations(given.tree))
    transforms = refusing(lambda: transform_names(given.tree))
    resources = {str(number): each for number, each in enumerate(_declared(given.tree.get("Resources")))}
    metadata = given.tree.get("Metadata")
    return Template(
        resources,
        str(given.tree.get("Description") or ""),
        declarations,
        metadata=metadata if isinstance(metadata, dict) else {},
        transforms=transforms,
    )


def _declared(raw: Any) -> Iterator[ResourceDeclaration]:
    """Yield the resources in the section Resources before the transforms, including resources inside of loops."""
    for name, each in raw.items() if isinstance(raw, dict) else ():
        if name.startswith(FOR_EACH):
            yield from _declared(each[-1]) if isinstance(each, list) and each else ()
        elif isinstance(each, dict) and isinstance(each.get("Type"), str):
            properties = each.get("Properties")
            yield ResourceDeclaration(name, each["Type"], properties if isinstance(properties, dict) else {})


def _common(template: Template) -> dict[str, Any]:
    """Return the members that ValidateTemplate and GetTemplateSummary share."""
    needed, types = required_capabilities(template)
    reason = f"The following resource(s) require capabilities: [{', '.join(types)}]" if types else ""
    return {
        **({"Description": template.description} if template.description else {}),
        **({"Capabilities": needed} if needed else {}),
        **({"CapabilitiesReason": reason} if reason else {}),
        **({"DeclaredTransforms": list(template.transforms)} if template.transforms else {}),
    }
