"""The changes that an operation on a stack would make to one resource, and why: in the words of change sets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson
from msgspec import Struct

from corral.decide.templates import ResourceDeclaration
from corral.model.stack import ResourceVersion, StackResource
from corral.services.cloudformation.no_echo import hide
from corral.template_types.schemas import tag_property

UNKNOWN = "{{changeSet:KNOWN_AFTER_APPLY}}"  # what change sets of AWS show for values that are not known yet
SUBSTITUTED = re.compile(r"\$\{([A-Za-z0-9.:]+)\}")  # ${NAME} in Fn::Sub
ADD, MODIFY, REMOVE = "Add", "Modify", "Remove"
ALWAYS, NEVER = "Always", "Never"
STATIC, DYNAMIC = "Static", "Dynamic"
DIRECT, AUTOMATIC = "DirectModification", "Automatic"
POLICIES = ("creation_policy", "update_policy", "deletion_policy", "update_replace_policy")


class ChangeDetail(Struct, frozen=True):
    attribute: str  # Properties, Metadata, CreationPolicy, UpdatePolicy, DeletionPolicy, UpdateReplacePolicy or Tags
    name: str = ""  # the property, if the attribute is Properties
    requires_recreation: str = NEVER
    evaluation: str = STATIC  # Dynamic: the new value is not known yet, or something else also changes it
    change_source: str = DIRECT  # or ParameterReference, ResourceReference, ResourceAttribute, Automatic
    causing_entity: str = ""  # the parameter, or the resource and its attribute
    before: Any = None
    after: Any = None
    is_with_values: bool = False  # AWS shows this detail only together with the values of properties


class Change(Struct, frozen=True):
    action: str  # Add, Modify or Remove
    logical_id: str
    type: str
    physical_id: str = ""
    replacement: str = ""  # True, False or Conditional, if the action is Modify
    details: tuple[ChangeDetail, ...] = ()
    is_stored_only: bool = False
    policy_action: str = ""  # Delete, Retain, Snapshot, ReplaceAndDelete, ReplaceAndRetain or ReplaceAndSnapshot
    before: ResourceVersion | None = None
    after: ResourceVersion | None = None

    @property
    def scope(self) -> list[str]:
        return sorted({each.attribute for each in self.details})


class Causes(Struct, frozen=True):
    """What changes in a stack together with a resource, and may cause changes of the resource."""

    parameters: Collection[str]  # the parameters whose values change
    unknown: Collection[str]  # the resources that may get another physical id
    modified: Collection[str]  # the resources that keep their id, and whose attributes may change
    replaced: Collection[str]  # the resources that will be replaced for certain
    tags_before: Mapping[str, str]  # of the stack
    tags_after: Mapping[str, str]

    def details_of(self, raw: Any, detail: ChangeDetail) -> Iterator[ChangeDetail]:
        """Yield the details about a changed value, one for each cause. `raw` is the value in the template."""
        references = list(dict.fromkeys(references_in(raw)))
        from_parameters = [entity for entity in references if entity in self.parameters]
        from_resources = [entity for entity in references if self._may_change(*entity.partition("."))]
        for entity in from_parameters:
            yield _but(detail, STATIC, "ParameterReference", entity)
        for entity in from_resources:
            source = "ResourceAttribute" if "." in entity else "ResourceReference"
            yield _but(detail, STATIC if entity.partition(".")[0] in self.replaced else DYNAMIC, source, entity)
        if from_parameters:
            yield _but(detail, DYNAMIC, DIRECT, "")
        elif not from_resources:
            yield _but(detail, STATIC, DIRECT, "")
        elif any(entity.partition(".")[0] in self.replaced for entity in from_resources):
            yield _but(detail, DYNAMIC, DIRECT, "", is_with_values=True)

    def _may_change(self, logical_id: str, dot: str, attribute: str) -> bool:
        return logical_id in self.unknown or (attribute != "" and logical_id in self.modified)


def _but(detail: ChangeDetail, evaluation: str, source: str, entity: str, *, is_with_values: bool = False) -> ChangeDetail:
    return ChangeDetail(
        detail.attribute, detail.name, detail.requires_recreation, evaluation, source, entity, detail.before, detail.after,
        is_with_values,
    )  # fmt: skip


def modification(
    row: StackResource, new: ResourceVersion, declared: ResourceDeclaration, forced: Collection[str], causes: Causes
) -> Change | None:
    """Return how a resource changes, or None if only its dependencies change. `forced` are the paths that force a replacement."""
    old = row.version
    details: list[ChangeDetail] = []
    tags = tag_property(row.type)
    for name in sorted({*old.declared, *new.declared}):
        before, after = old.declared.get(name), new.declared.get(name)
        if before == after:
            continue
        if tags is not None and tags[0] == name and causes.tags_before != causes.tags_after:
            details.append(ChangeDetail("Tags"))
            if _without(before, causes.tags_before) == _without(after, causes.tags_after):
                continue
        recreation = ALWAYS if any(path.split("/")[0] == name for path in forced) else NEVER
        detail = ChangeDetail("Properties", name, recreation, before=before, after=after)
        details += causes.details_of(declared.properties.get(name), detail)
    if old.revision != new.revision:
        details.append(ChangeDetail("Properties", evaluation=DYNAMIC, change_source=AUTOMATIC))
    if old.metadata != new.metadata:
        details += causes.details_of(declared.metadata, ChangeDetail("Metadata", before=old.metadata, after=new.metadata))
    for member in POLICIES:
        before, after = getattr(old, member), getattr(new, member)
        if before != after:
            details.append(ChangeDetail(_attribute(member), before=before, after=after))
    if not details:
        return None
    recreating = [each for each in details if each.requires_recreation == ALWAYS]
    is_certain = any(each.evaluation == STATIC for each in recreating)
    replacement = "True" if is_certain else "Conditional" if recreating or forced else "False"
    action = f"ReplaceAnd{new.update_replace_policy or 'Delete'}" if replacement == "True" else ""
    return Change(
        MODIFY, row.logical_id, row.type, row.physical_id or "", replacement, tuple(details), row.is_stored_only, action, old, new
    )


def _attribute(member: str) -> str:
    return "".join(word.title() for word in member.split("_"))


def _without(value: Any, tags: Mapping[str, str]) -> Any:
    """Return the tags of a resource without those of its stack."""
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if tags.get(key) != each} or None
    return [tag for tag in value or () if not isinstance(tag, dict) or tags.get(tag.get("Key", "")) != tag.get("Value")] or None


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


# In the form of DescribeChangeSet

VALUES = ("AfterContext", "BeforeContext")  # the members of a change that are shown only with the values of properties
TARGET_VALUES = ("AfterValue", "AttributeChangeType", "BeforeValue", "Path")  # and those of the target of a detail
WITH_VALUES = "_with_values"  # marks a detail that is shown only with the values of properties


def described(change: Change, secrets: set[str]) -> dict[str, Any]:
    """Return a change with all values. `shown` removes them."""
    contexts = {"BeforeContext": change.before, "AfterContext": change.after}
    return {
        **({"PolicyAction": change.policy_action} if change.policy_action else {}),
        "Action": change.action,
        "LogicalResourceId": change.logical_id,
        **({"PhysicalResourceId": change.physical_id} if change.physical_id else {}),
        "ResourceType": change.type,
        **({"Replacement": change.replacement} if change.replacement else {}),
        "Scope": change.scope,
        "Details": [_described_detail(each, secrets) for each in change.details],
        **{name: _json(_context(version), secrets) for name, version in contexts.items() if version is not None},
    }


def shown(change: dict[str, Any], *, with_values: bool) -> dict[str, Any]:
    """Return a described change as DescribeChangeSet shows it: with the values of properties, or without them."""
    hidden = () if with_values else TARGET_VALUES
    details = [
        {
            **{name: value for name, value in detail.items() if name != WITH_VALUES},
            "Target": {name: value for name, value in detail["Target"].items() if name not in hidden},
        }
        for detail in change["Details"]
        if with_values or WITH_VALUES not in detail
    ]
    return {**{name: value for name, value in change.items() if with_values or name not in VALUES}, "Details": details}


def _described_detail(detail: ChangeDetail, secrets: set[str]) -> dict[str, Any]:
    values = {"BeforeValue": detail.before, "AfterValue": detail.after}
    texts = {name: _value(value, secrets) for name, value in values.items() if value not in (None, {}, "")}
    kind = "Modify" if len(texts) == 2 else "Remove" if "BeforeValue" in texts else "Add"
    path = f"/{detail.attribute}/{detail.name}" if detail.name else f"/{detail.attribute}"
    return {
        "Target": {
            "Attribute": detail.attribute,
            **({"Name": detail.name} if detail.name else {}),
            "RequiresRecreation": detail.requires_recreation,
            **({**texts, "AttributeChangeType": kind, "Path": path} if texts else {}),
        },
        "Evaluation": detail.evaluation,
        "ChangeSource": detail.change_source,
        **({"CausingEntity": detail.causing_entity} if detail.causing_entity else {}),
        **({WITH_VALUES: True} if detail.is_with_values else {}),
    }


def _context(version: ResourceVersion) -> dict[str, Any]:
    others = {_attribute(member): getattr(version, member) for member in ("metadata", *POLICIES)}
    return {"Properties": version.declared, **{name: value for name, value in others.items() if value}}


def _value(value: Any, secrets: set[str]) -> str:
    return str(hide(_texts(value), secrets)) if isinstance(value, str | int | float) else _json(value, secrets)


def _json(value: Any, secrets: set[str]) -> str:
    return orjson.dumps(hide(_texts(value), secrets)).decode()


def _texts(value: Any) -> Any:
    """Return a value with all numbers and booleans as texts, as AWS shows them."""
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) or value is None else str(value)
