"""Computes the changes that an operation on a stack would make, for change sets and for `corral stack diff`.

An update of a stack also uses the result: if nothing would change, the update is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.templates import Evaluation, ResourceDeclaration, TemplateError
from corral.decide.templates.graph import in_order
from corral.decide.templates.stack_plan import Difference, difference
from corral.model.stack import ENDED, Output, ResourceVersion, Stack, StackResource, StackVersion
from corral.services.cloudformation.change_details import ADD, REMOVE, UNKNOWN, Causes, Change, modification
from corral.services.cloudformation.stack_evaluation import attribute_of, desired_version, given_properties
from corral.store import Store
from corral.template_types.lookup import replacing_properties, resource_type
from corral.template_types.schemas import check_properties, has_schema


def replacing(stack: Stack, logical_id: str, old: ResourceVersion, new: ResourceVersion) -> list[str]:
    """Return the changed properties that force a replacement."""
    if not has_schema(old.type):
        return []
    before, after = given_properties(stack, logical_id, old), given_properties(stack, logical_id, new)
    return replacing_properties(old.type, before, after)


def planned(tx: Tx[Store], stack: Stack, evaluated: Evaluation, *, only_first: bool = False) -> list[Change]:
    """Return what the template of `evaluated` would change in the resources of a stack. `stack` has the new version.

    With `only_first`, the search may stop at the first change. Then the result is incomplete, but never empty.
    """
    rows = tx.store.stacks.resources(stack.id)
    resources = {key: row.existing for key, row in rows.items() if not row.leftover and row.status not in ENDED}
    stored = tx.store.stacks.get(stack.id)
    present = stored.version if stored is not None else StackVersion(0)
    parameters = {name for name in evaluated.template.parameters if present.values.get(name) != stack.version.values.get(name)}
    unknown: set[str] = set()  # resources that would be created or replaced: their physical ids are not known yet
    modified: set[str] = set()  # resources that are modified in place: their attributes may change
    replaced: set[str] = set()  # resources that would be replaced for certain
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
            new = _partly_known(declared, now, lambda raw: evaluated.resolve(raw, ref, get_att))
        if row is None or row.physical_id is None:
            unknown.add(logical_id)
            stored_only = resource_type(declared.type).is_stored_only
            changes[logical_id] = Change(ADD, logical_id, declared.type, is_stored_only=stored_only, after=new)
            continue
        causes = Causes(parameters, unknown, modified, replaced, present.tags, stack.version.tags)
        change = _modification(stack, row, new, declared, causes)
        if change is None:
            continue
        changes[logical_id] = change
        if change.replacement != "False":
            unknown.add(logical_id)
        elif row.version.properties != new.properties:
            modified.add(logical_id)
        if change.replacement == "True":
            replaced.add(logical_id)
    for logical_id, row in resources.items():
        if logical_id not in evaluated.resources:
            policy = row.version.deletion_policy
            action = "Retain" if policy.startswith("Retain") else policy or "Delete"
            changes[logical_id] = Change(
                REMOVE, logical_id, row.type, row.physical_id or "", is_stored_only=row.is_stored_only, policy_action=action,
                before=row.version,
            )  # fmt: skip
    return [changes[logical_id] for logical_id in sorted(changes)]


def _partly_known(declared: ResourceDeclaration, now: ResourceVersion | None, resolve: Callable[[Any], Any]) -> ResourceVersion:
    """Return a version with the properties that can be evaluated. The others have the value UNKNOWN."""
    properties: dict[str, Any] = {}
    for name, raw in declared.properties.items():
        try:
            value = resolve(raw)
        except (TemplateError, ApiError):
            value = UNKNOWN
        if value is not None:
            properties[name] = value
    with suppress(ApiError):
        properties = check_properties(declared.type, declared.logical_id, properties)
    version = now or ResourceVersion(declared.type)
    generated = {key: value for key, value in version.properties.items() if value == version.generated_name}
    return version.but(properties={**generated, **properties})


def _modification(
    stack: Stack, row: StackResource, new: ResourceVersion, declared: ResourceDeclaration, causes: Causes
) -> Change | None:
    """Return how a resource changes, or None if it does not change."""
    old = row.version
    forced = replacing(stack, row.logical_id, old, new) if old.properties != new.properties else []
    if difference(old, new, lambda: forced) is Difference.NOTHING:
        return None
    return modification(row, new, declared, forced, causes)


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
