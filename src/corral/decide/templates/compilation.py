"""Checks the structure of a template and compiles it to a `Template`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from corral.decide.templates.graph import cyclic, in_order
from corral.decide.templates.parameters import parameter_declarations
from corral.decide.templates.references import LANGUAGE_EXTENSIONS, References, Scope, check_condition, no_transform
from corral.decide.templates.rules import check_rules_section
from corral.decide.templates.template import (
    OutputDeclaration,
    ResourceDeclaration,
    Template,
    TemplateError,
    function_of,
    is_text,
    text_of,
)

RESOURCES_MAX, OUTPUTS_MAX, MAPPINGS_MAX, ATTRIBUTES_MAX = 500, 200, 200, 200
DESCRIPTION_MAX_BYTES = 1024
NAME_MAX = 255
SECTIONS = (
    "AWSTemplateFormatVersion", "Description", "Metadata", "Parameters", "Rules", "Mappings", "Conditions", "Transform",
    "Resources", "Outputs", "Hooks",
)  # fmt: skip
RESOURCE_ATTRIBUTES = frozenset((
    "Type", "Properties", "DependsOn", "Condition", "Metadata", "DeletionPolicy", "UpdateReplacePolicy", "CreationPolicy",
    "UpdatePolicy", "Description", "Version",
))  # fmt: skip
OUTPUT_ATTRIBUTES = frozenset(("Value", "Description", "Export", "Condition"))
POLICIES = {
    "DeletionPolicy": ("Delete", "Retain", "Snapshot", "RetainExceptOnCreate"),
    "UpdateReplacePolicy": ("Delete", "Retain", "Snapshot"),
}
POLICY_FUNCTIONS = ("Ref", "Fn::FindInMap", "Fn::If")
EXPORT_NAME = re.compile(r"[A-Za-z0-9:-]{1,255}")
ALPHANUMERIC = re.compile(r"[A-Za-z0-9]+")


def compile_template(tree: dict[str, Any]) -> Template:
    """Check a template that `expand` has returned, and compile it."""
    _refuse_nulls(tree)
    unknown = [name for name in tree if name not in SECTIONS]
    if unknown:
        raise TemplateError(f"Invalid template property or properties [{', '.join(unknown)}]")
    if text_of(tree.get("AWSTemplateFormatVersion", "2010-09-09")) != "2010-09-09":
        raise TemplateError("Template format error: unsupported value for AWSTemplateFormatVersion.")
    raw = _section(tree, "Resources")
    if not raw:
        raise TemplateError("Template format error: At least one Resources member must be defined.")
    _refuse_too_many("resources", raw, RESOURCES_MAX)
    transforms = transform_names(tree)
    for name in transforms:
        if name != LANGUAGE_EXTENSIONS:
            raise no_transform(name)
    parameters = parameter_declarations(tree)
    common = [name for name in raw if name in parameters]
    if common:
        names = ", ".join(common)
        raise TemplateError(f"Template error: all resources and parameters must have unique names. Common name(s):[{names}]")
    mappings, conditions = _mappings(_section(tree, "Mappings")), _section(tree, "Conditions")
    scope = Scope(parameters, raw, mappings, conditions, LANGUAGE_EXTENSIONS in transforms)
    conditions = _conditions(conditions, scope)
    resources = _resources(raw, scope)
    rules = _section(tree, "Rules")
    check_rules_section(rules, scope)
    return Template(
        description=_description(tree, "Description"),
        parameters=parameters,
        mappings=mappings,
        conditions=conditions,
        rules=rules,
        metadata=_section(tree, "Metadata"),
        transforms=transforms,
        resources=resources,
        outputs=_outputs(_section(tree, "Outputs"), scope),
    )


def transform_names(tree: dict[str, Any]) -> tuple[str, ...]:
    declared = tree.get("Transform", [])
    names = []
    for each in declared if isinstance(declared, list) else [declared]:
        name = each.get("Name") if isinstance(each, dict) else each
        if not isinstance(name, str):
            raise TemplateError("Transforms defined as maps require Name key.")
        names.append(name)
    return tuple(names)


def circular(names: Iterable[str]) -> TemplateError:
    return TemplateError(f"Circular dependency between resources: [{', '.join(names)}]")


def unresolved(names: Iterable[str], block: str) -> TemplateError:
    return TemplateError(
        f"Template format error: Unresolved resource dependencies [{', '.join(names)}] in the {block} block of the template"
    )


def malformed_export(key: str) -> TemplateError:
    return TemplateError(
        f"Template format error: Output {key} is malformed. The Name field of every Export member must be specified and consist "
        "only of alphanumeric characters, colons, or hyphens."
    )


def is_export_name(value: Any) -> bool:
    return is_text(value) and EXPORT_NAME.fullmatch(text_of(value)) is not None


def _may_be_export_name(raw: Any) -> bool:
    return function_of(raw) is not None or is_export_name(raw)


def _refuse_nulls(tree: Any) -> None:
    """Refuse null values. Most templates have none, so the path of a null is computed only if there is one."""
    level = [tree]
    while level:
        level = [inner for value in level if isinstance(value, dict | list) for inner in _inside(value)]
        if None in level:
            raise TemplateError(f"[{_path_of_null(tree)}] 'null' values are not allowed in templates")


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _path_of_null(value: Any, path: str = "") -> str | None:
    if value is None:
        return path
    members: Iterable[tuple[Any, Any]] = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in members:
        found = _path_of_null(inner, f"{path}/{key}")
        if found is not None:
            return found
    return None


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    section = tree.get(name, {})
    if not isinstance(section, dict):
        raise TemplateError(f"Template format error: {name} section must be an object.")
    return section


def _refuse_too_many(what: str, members: dict[str, Any], most: int) -> None:
    if len(members) > most:
        raise TemplateError(f"Template format error: Number of {what}, {len(members)}, is greater than maximum allowed, {most}")


def _text(members: dict[str, Any], key: str) -> str | None:
    value = members.get(key)
    if value is None:
        return None
    if not is_text(value):
        raise TemplateError(f"Template format error: Every {key} member must be a string.")
    return text_of(value)


def _object(members: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    value = members.get(key, {})
    if not isinstance(value, dict):
        raise TemplateError(f"Template format error: [{path}/{key}] {key} must be an object.")
    return value


def _description(members: dict[str, Any], key: str) -> str | None:
    text = _text(members, key)
    if text is not None and len(text.encode("utf-8", "replace")) > DESCRIPTION_MAX_BYTES:
        raise TemplateError(f"Template format error: 'Description' length is greater than {DESCRIPTION_MAX_BYTES}.")
    return text


def _mappings(mappings: dict[str, Any]) -> dict[str, Any]:
    _refuse_too_many("mappings", mappings, MAPPINGS_MAX)
    for name, mapping in mappings.items():
        if not isinstance(mapping, dict):
            raise TemplateError(f"Template format error: Every Mappings member {name} must be a map")
        for key, attributes in mapping.items():
            if not isinstance(attributes, dict):
                raise TemplateError(f"Template format error: Every Mappings member {key} must be a map")
            _refuse_too_many("mapping attributes", attributes, ATTRIBUTES_MAX)
            for attribute, value in attributes.items():
                if not ALPHANUMERIC.fullmatch(attribute):
                    raise TemplateError(
                        f"Template format error: Mappings attribute name '{attribute}' must contain only alphanumeric characters."
                    )
                if not is_text(value) and not (isinstance(value, list) and all(map(is_text, value))):
                    raise TemplateError("Template format error: Every Mappings attribute must be a String or a List.")
    return mappings


def _conditions(conditions: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Check the conditions. Return them in an order in which each stands after the conditions that it uses."""
    found, uses = References(scope), {}
    for name, raw in conditions.items():
        uses[name] = dict.fromkeys(check_condition(raw, found))
    if "Fn::If" in found.functions:
        raise TemplateError("Template error: Cannot use Fn::If in Conditions.")
    if "Fn::ImportValue" in found.functions:
        raise TemplateError("Template error: Cannot use Fn::ImportValue in Conditions.")
    resources = [*sorted(found.required | found.optional), *found.unresolved]
    if resources:
        names = ", ".join(resources)
        raise TemplateError(
            f"Template format error: Unresolved dependencies [{names}]. "
            "Cannot reference resources in the Conditions block of the template"
        )
    missing = [used for each in uses.values() for used in each if used not in conditions]
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise TemplateError(
            f"Template format error: Unresolved condition dependencies [{names}] in the Conditions block of the template"
        )
    on_cycle = cyclic(uses)
    if on_cycle:
        raise TemplateError(f"Template error: Found circular condition dependency: [{', '.join(on_cycle)}]")
    return {name: conditions[name] for name in in_order(uses)}


def _check_member(members: Any, block: str, name: str, scope: Scope) -> str | None:
    """Check what resources and outputs have in common: the name and the condition. Return the name of the condition, or None."""
    what = "Resource name" if block == "Resources" else "Output"
    if not isinstance(members, dict):
        if name.startswith("Fn::ForEach"):
            raise TemplateError(f"Template format error: [/{block}/{name}] resource definition is malformed")
        raise TemplateError(f"Template format error: Any {block} member must be an object.")
    if not ALPHANUMERIC.fullmatch(name):
        raise TemplateError(f"Template format error: {what} {name} is non alphanumeric.")
    if len(name) > NAME_MAX:
        raise TemplateError(f"Template format error: {what} {name} is longer than {NAME_MAX} characters.")
    condition = _text(members, "Condition")
    if condition is not None and condition not in scope.conditions:
        raise TemplateError(
            f"Template format error: Unresolved condition dependency {condition} in the {block} block of the template"
        )
    return condition


def _resources(raw: dict[str, Any], scope: Scope) -> dict[str, ResourceDeclaration]:
    resources: dict[str, ResourceDeclaration] = {}
    missing: dict[str, None] = {}
    for name, members in raw.items():
        found = References(scope)
        resources[name] = _resource(name, members, found)
        missing |= found.unresolved
    if missing:
        raise unresolved(missing, "Resources")
    on_cycle = cyclic({name: {*resource.required, *resource.depends_on} for name, resource in resources.items()})
    if on_cycle:
        raise circular(on_cycle)
    return resources


def _resource(name: str, members: Any, found: References) -> ResourceDeclaration:
    condition = _check_member(members, "Resources", name, found.scope)
    path = f"/Resources/{name}"
    for key in members:
        if key not in RESOURCE_ATTRIBUTES:
            raise TemplateError(f"Invalid template resource property '{key}'")
    kind = _text(members, "Type")
    if kind is None:
        raise TemplateError(f"Template format error: [{path}] Every Resources object must contain a Type member.")
    policies = {key: _policy(members, key, name, found.scope) for key in POLICIES}
    parts = {key: _object(members, key, path) for key in ("Properties", "Metadata", "CreationPolicy", "UpdatePolicy")}
    for part in parts.values():
        found.scan(part)
    depends_on = _depends_on(members, found)
    return ResourceDeclaration(
        logical_id=name,
        type=kind,
        properties=parts["Properties"],
        depends_on=tuple(each for each in depends_on if each in found.scope.resources),
        references=frozenset(found.required | found.optional | (set(depends_on) & found.scope.resources)),
        required=frozenset(found.required),
        condition=condition,
        deletion_policy=policies["DeletionPolicy"],
        update_replace_policy=policies["UpdateReplacePolicy"],
        creation_policy=parts["CreationPolicy"],
        update_policy=parts["UpdatePolicy"],
        metadata=parts["Metadata"],
    )


def _policy(members: dict[str, Any], key: str, name: str, scope: Scope) -> Any:
    """Return DeletionPolicy or UpdateReplacePolicy: a text, or one of POLICY_FUNCTIONS, which cannot refer to resources."""
    raw = members.get(key)
    if function_of(raw) not in POLICY_FUNCTIONS:
        return checked_policy(_text(members, key), key, name)
    found = References(scope)
    found.scan(raw)
    if names := [*sorted(found.required | found.optional), *found.unresolved]:
        raise unresolved(names, "Resources")
    return raw


def checked_policy(policy: str | None, key: str, name: str) -> str | None:
    if policy is not None and policy not in POLICIES[key]:
        raise TemplateError(f"Template format error: Unrecognized {key} {policy} for resource {name}")
    return policy


def _depends_on(members: dict[str, Any], found: References) -> list[str]:
    raw = members.get("DependsOn", [])
    if isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list):
        raise TemplateError("Template format error: DependsOn must be a string or list of strings.")
    for name in raw:
        if not isinstance(name, str):
            raise TemplateError("Template format error: Every DependsOn value must be a string.")
        if name not in found.scope.resources:
            found.unresolved[name] = None
    return raw


def _outputs(raw: dict[str, Any], scope: Scope) -> dict[str, OutputDeclaration]:
    _refuse_too_many("outputs", raw, OUTPUTS_MAX)
    outputs: dict[str, OutputDeclaration] = {}
    missing: dict[str, None] = {}
    for key, members in raw.items():
        condition = _check_member(members, "Outputs", key, scope)
        for member in members:
            if member not in OUTPUT_ATTRIBUTES:
                raise TemplateError(f"Template format error: Invalid outputs property : [{member}]")
        if "Value" not in members:
            raise TemplateError("Template format error: Every Outputs member must contain a Value object")
        value = members["Value"]
        if not is_text(value) and function_of(value) is None:
            kind = "List" if isinstance(value, list) else "Map"
            raise TemplateError(
                f"Template format error: The Value field of every Outputs member must evaluate to a String and not a {kind}."
            )
        export = members.get("Export")
        if export is not None and not (
            isinstance(export, dict) and list(export) == ["Name"] and _may_be_export_name(export["Name"])
        ):
            raise malformed_export(key)
        found, name = References(scope), export["Name"] if export else None
        found.scan(value)
        found.scan(name)
        missing |= found.unresolved
        outputs[key] = OutputDeclaration(
            key=key,
            value=value,
            description=_description(members, "Description"),
            export_name=name,
            condition=condition,
            references=frozenset(found.required | found.optional),
        )
    if missing:
        raise unresolved(missing, "Outputs")
    return outputs
