"""Computes the changes that an operation on a stack would make, for change sets and for `corral stack diff`.

An update of a stack also uses the result: if nothing would change, the update is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from msgspec import Struct

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.templates import Evaluation, TemplateError
from corral.decide.templates.graph import in_order
from corral.decide.templates.stack_plan import Difference, difference
from corral.model.stack import ENDED, Output, ResourceVersion, Stack, StackResource
from corral.services.cloudformation.stack_evaluation import attribute_of, desired_version, given_properties
from corral.store import Store
from corral.template_types.lookup import replacing_properties, resource_type
from corral.template_types.schemas import has_schema

UNKNOWN = "{{changeSet:KNOWN_AFTER_APPLY}}"  # what change sets of AWS show for values that are not known yet
SUBSTITUTED = re.compile(r"\$\{([A-Za-z0-9.:]+)\}")  # ${NAME} in Fn::Sub
ADD, MODIFY, REMOVE = "Add", "Modify", "Remove"
ALWAYS, NEVER, CONDITIONALLY = "Always", "Never", "Conditionally"


class ChangeDetail(Struct, frozen=True):
    attribute: str  # Properties, Metadata, CreationPolicy, UpdatePolicy, DeletionPolicy, UpdateReplacePolicy or Tags
    name: str = ""  # the property, if the attribute is Properties
    requires_recreation: str = NEVER
    evaluation: str = "Static"  # Dynamic: the new value is not known yet
    change_source: str = "DirectModification"  # or ParameterReference, ResourceReference, ResourceAttribute, Automatic
    causing_entity: str = ""  # the parameter, or the resource and its attribute
    before: Any = None
    after: Any = None


class Change(Struct, frozen=True):
    action: str  # Add, Modify or Remove
    logical_id: str
    type: str
    physical_id: str = ""
    replacement: str = ""  # True, False or Conditional, if the action is Modify
    scope: tuple[str, ...] = ()
    details: tuple[ChangeDetail, ...] = ()
    is_stored_only: bool = False
    policy_action: str = ""  # Delete, Retain, Snapshot, ReplaceAndDelete, ReplaceAndRetain or ReplaceAndSnapshot
    before: dict[str, Any] | None = None  # the properties before the change
    after: dict[str, Any] | None = None  # the properties after the change


def replacing(stack: Stack, logical_id: str, old: ResourceVersion, new: ResourceVersion) -> list[str]:
    """Return the changed properties that force a replacement."""
    if not has_schema(old.type):
        return []
    before, after = given_properties(stack, logical_id, old), given_properties(stack, logical_id, new)
    return replacing_properties(old.type, before, after)


def planned(tx: Tx[Store], stack: Stack, evaluated: Evaluation, *, only_first: bool = False) -> list[Change]:
    """Return what the template of `evaluated` would change in the resources of a stack.

    With `only_first`, the search may stop at the first change. Then the result is incomplete, but never empty.
    """
    rows = tx.store.stacks.resources(stack.id)
    resources = {key: row.existing for key, row in rows.items() if not row.leftover and row.status not in ENDED}
    unknown: set[str] = set()  # resources that would be created or replaced: their physical ids are not known yet
    modified: set[str] = set()  # resources that are modified in place: their attributes may change
    changes: dict[str, Change] = {}

    def ref(logical_id: str) -> Any:
        return UNKNOWN if logical_id in unknown else resources[logical_id].physical_id or UNKNOWN

    def get_att(logical_id: str, attribute: str) -> Any:
        if logical_id in unknown or logical_id in modified:
            return UNKNOWN
        return attribute_of(logical_id, resources[logical_id].version, attribute)

    for logical_id in in_order(evaluated.dependencies):
        if only_first and changes:
            break
        declared, row = evaluated.resources[logical_id], resources.get(logical_id)
        now = row.version if row is not None else None
        try:
            new = desired_version(tx, stack, evaluated, declared, now, ref, get_att, plans=True)
        except (TemplateError, ApiError):  # a function needs a value that is not known yet, so only the step can evaluate it
            new = (now or ResourceVersion(declared.type)).but(properties={**declared.properties})
        if row is None or row.physical_id is None:
            unknown.add(logical_id)
            stored_only = resource_type(declared.type).is_stored_only
            changes[logical_id] = Change(ADD, logical_id, declared.type, is_stored_only=stored_only, after=new.properties)
        elif (change := _modification(stack, row, new, declared.properties, evaluated.template.parameters)) is not None:
            changes[logical_id] = change
            if change.replacement != "False":
                unknown.add(logical_id)
            elif row.version.properties != new.properties:
                modified.add(logical_id)
    for logical_id, row in resources.items():
        if logical_id not in evaluated.resources:
            policy = row.version.deletion_policy
            action = "Retain" if policy.startswith("Retain") else policy or "Delete"
            changes[logical_id] = Change(
                REMOVE, logical_id, row.type, row.physical_id or "", is_stored_only=row.is_stored_only, policy_action=action,
                before=row.version.properties,
            )  # fmt: skip
    return [changes[logical_id] for logical_id in sorted(changes)]


def _modification(
    stack: Stack, row: StackResource, new: ResourceVersion, raw: Mapping[str, Any], parameters: Container[str]
) -> Change | None:
    """Return how a resource changes, or None if it does not change.

    `raw` has the properties as the template declares them. `parameters` has the names of the template's parameters.
    """
    old = row.version
    forced = replacing(stack, row.logical_id, old, new) if old.properties != new.properties else []
    kind = difference(old, new, lambda: forced)
    if kind is Difference.NOTHING:
        return None
    details = []
    for name in sorted({*old.properties, *new.properties}):
        before, after = old.properties.get(name), new.properties.get(name)
        if before != after:
            dynamic = _is_unknown(after)
            recreates = any(path.split("/")[0] == name for path in forced)
            recreation = NEVER if not recreates else CONDITIONALLY if dynamic else ALWAYS
            attribute = "Tags" if name in ("Tags", "TagList") else "Properties"
            evaluation = "Dynamic" if dynamic else "Static"
            source, entity = _source(raw.get(name), parameters, dynamic=dynamic)
            details.append(ChangeDetail(attribute, name, recreation, evaluation, source, entity, before=before, after=after))
    if old.revision != new.revision:
        details.append(ChangeDetail("Properties", evaluation="Dynamic", change_source="Automatic"))
    for attribute in ("metadata", "creation_policy", "update_policy", "deletion_policy", "update_replace_policy"):
        before, after = getattr(old, attribute), getattr(new, attribute)
        if before != after:
            details.append(ChangeDetail("".join(word.title() for word in attribute.split("_")), before=before, after=after))
    if not details:  # only the dependencies changed
        return None
    always = any(each.requires_recreation == ALWAYS for each in details)
    replacement = "True" if always else "Conditional" if forced else "False"
    policy = new.update_replace_policy
    action = f"ReplaceAnd{policy or 'Delete'}" if replacement == "True" else ""
    scope = tuple(dict.fromkeys(each.attribute for each in details))
    return Change(
        MODIFY, row.logical_id, row.type, row.physical_id or "", replacement, scope, tuple(details), row.is_stored_only, action,
        old.properties, new.properties,
    )  # fmt: skip


def _source(raw: Any, parameters: Container[str], *, dynamic: bool) -> tuple[str, str]:
    """Return why the value of a property changes, and the parameter or resource that causes it, in the words of change sets."""
    for entity in references_in(raw):
        if entity in parameters:
            if not dynamic:
                return "ParameterReference", entity
        elif dynamic and not entity.startswith("AWS::"):
            return ("ResourceAttribute" if "." in entity else "ResourceReference"), entity
    return "DirectModification", ""


def references_in(raw: Any) -> Iterator[str]:
    """Yield the names in Ref, Fn::GetAtt (as NAME.ATTRIBUTE) and Fn::Sub of a raw value."""
    if isinstance(raw, list):
        for each in raw:
            yield from references_in(each)
    elif isinstance(raw, dict):
        for name, argument in raw.items():
            if name == "Ref" and isinstance(argument, str):
                yield argument
            elif name == "Fn::GetAtt" and isinstance(argument, list):
                yield ".".join(map(str, argument))
            elif name == "Fn::GetAtt" and isinstance(argument, str):
                yield argument
            else:
                if name == "Fn::Sub":
                    text = argument[0] if isinstance(argument, list) and argument else argument
                    yield from SUBSTITUTED.findall(text) if isinstance(text, str) else ()
                yield from references_in(argument)


def _is_unknown(value: Any) -> bool:
    if isinstance(value, str):
        return UNKNOWN in value
    return any(map(_is_unknown, value.values() if isinstance(value, dict) else value)) if isinstance(value, dict | list) else False


def outputs_now(tx: Tx[Store], evaluated: Evaluation, stack: Stack) -> list[Output] | None:
    """Return the outputs of a template with the present resources, or None if they cannot be resolved yet."""
    resources = tx.store.stacks.resources(stack.id)
    try:
        found = evaluated.outputs(
            lambda logical_id: resources[logical_id].physical_id,
            lambda logical_id, attribute: attribute_of(logical_id, resources[logical_id].version, attribute),
        )
    except (TemplateError, KeyError):
        return None
    return [Output(each.key, each.value, each.description or "", each.export_name or "") for each in found]
