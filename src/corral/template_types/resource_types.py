"""Resource types of CloudFormation templates. They define how a stack creates, reads, updates and deletes a resource.

A step of a stack creates, updates or deletes one resource. A `TemplateType` has the functions for the steps of a type. It creates a
resource from template properties, and returns its physical id, which is also the value of `Ref`. It returns the values of
`Fn::GetAtt`, updates the resource in place, and deletes it. It calls the handlers of the service directly, without HTTP.
`stored_type` makes a `TemplateType` from the declaration of a resource that a service stores without other effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.operations import stored_resources
from corral.operations.stored_resources import Document, Params, ResourceType
from corral.operations.tags import is_reserved
from corral.store import Store
from corral.template_types import schemas
from corral.template_types.schemas import Properties as Properties
from corral.template_types.schemas import ValidationError as ValidationError

# The source of the value of an attribute: the name of a member of the stored document, or a function that computes the value.
Attribute = str | Callable[[Tx[Store], Caller, Document], Any]

Delete = Callable[[Tx[Store], Caller, str, Properties], None]


class Waiting(Struct, frozen=True):
    """The result of a step that is not complete. The step is tried again when one of `keys` changes, and at `until_s`."""

    keys: tuple[str, ...]  # keys of `tx.changed`, for example "group:us-east-1/fleet"
    reason: str = ""  # why the step waits, as a sentence for people
    until_s: float | None = None


class ResourceStep(Struct):
    """The argument of `settled`, `gone` and `signals`. It describes a resource of a stack, and the step in progress."""

    stack_id: str
    stack_name: str
    logical_id: str
    physical_id: str  # `settled` may change it, for example that of a custom resource
    action: str  # "CREATE", "UPDATE" or "DELETE"
    properties: Properties
    old_properties: Properties | None = None  # the properties before an update or a replacement
    replaced_id: str | None = None  # the physical id of the resource that this one replaces
    metadata: Mapping[str, Any] = field(default_factory=dict)
    creation_policy: Mapping[str, Any] = field(default_factory=dict)
    update_policy: Mapping[str, Any] = field(default_factory=dict)
    is_rollback: bool = False
    started_s: float = 0.0
    received: Mapping[str, str] = field(default_factory=dict)  # unique id → SUCCESS or FAILURE: the signals since `started_s`
    memory: dict[str, Any] = field(default_factory=dict)  # data for the next call; it is stored until the step ends
    notes: list[str] = field(default_factory=list)  # texts to append; each becomes an event of the resource
    key: str = ""  # the key of the resource in its stack
    type: str = ""  # the type in the template, for example "Custom::Thing"
    attributes: dict[str, Any] | None = None  # the values of GetAtt, if `settled` sets them instead of `attributes` of the type


class TemplateType(Struct, frozen=True):
    name: str  # for example "AWS::EC2::VPC"
    create: Callable[[Tx[Store], Caller, Properties], str]  # returns the physical id
    attributes: Callable[[Tx[Store], Caller, str], dict[str, Any]]  # physical id → the attributes and their values
    # Updates in place; the parameters are the physical id, the old and the new properties.
    update: Callable[[Tx[Store], Caller, str, Properties, Properties], None]
    delete: Delete  # succeeds if the resource no longer exists
    name_property: str | None = None  # if a template omits this property, the stack generates a name for it
    # The properties inside which the name is unique. For example, two services can have the same name in different clusters.
    name_scope: tuple[str, ...] = ()
    # True if each creation makes a new version under the same name, with a physical id of its own, for example a revision of a task
    # definition. A replacement keeps the name of such a resource.
    has_versions: bool = False
    lane: str = "state"  # the lane (a database and its thread) that runs the functions: "state", "logs" or "metrics"
    # Called after `create` and `update` until it returns None. If it raises an ApiError, the step has failed.
    settled: Callable[[Tx[Store], Caller, ResourceStep], Waiting | None] | None = None
    gone: Callable[[Tx[Store], Caller, ResourceStep], Waiting | None] | None = None  # like `settled`, but called after `delete`
    # Returns unique id → signal, for the signals that Corral gives itself: an instance signals when it has joined its cluster.
    signals: Callable[[Tx[Store], Caller, ResourceStep], dict[str, str]] | None = None
    is_stored_only: bool = False  # True if the resource has no effect: it is only stored, in the stack or by the service
    # Returns the changed properties that force a replacement. It is called with the old and the new properties, and decides about
    # the properties that the schema calls conditionally create-only. If it is None, each change of such a property forces a
    # replacement.
    replaces: Callable[[Properties, Properties], list[str]] | None = None
    # Called with the physical id and the properties of a resource that an update had replaced, when the update is rolled back.
    restore: Callable[[Tx[Store], Caller, str, Properties], None] | None = None
    # True if all functions run operations through `call`, which checks the caller's permissions. If it is False, `authorize_step`
    # checks them.
    checks_permissions: bool = False
    # Returns a text that identifies a file or object to which the properties refer. If the text changes, the resource is updated,
    # although its properties are the same.
    revision: Callable[[Tx[Store], Caller, Properties], str] | None = None
    # Called with the memory of a step that fails or is cancelled.
    abandon: Callable[[Tx[Store], Caller, Mapping[str, Any]], None] | None = None
    # Called instead of `attributes` if the values also depend on the properties.
    attributes_from: Callable[[Tx[Store], Caller, str, Properties], dict[str, Any]] | None = None


def stored_type(
    name: str,
    type_: ResourceType,
    *,
    attributes: Mapping[str, Attribute],
    request: Callable[[Properties], Params] = dict,
    updates: Mapping[str, str] = MappingProxyType({}),
    applies: tuple[str, ...] = (),
    apply: Callable[[Tx[Store], Caller, Document, Properties, Properties], None] = lambda tx, caller, document, old, new: None,
    before_delete: Callable[[Tx[Store], Caller, Document, Properties], None] = lambda tx, caller, document, properties: None,
    physical_id: str | None = None,
    name_property: str | None = None,
    name_scope: tuple[str, ...] = (),
) -> TemplateType:
    """Return the template type of a resource that a service stores and returns without other effects, for example a VPC.

    `request` converts properties to the request that creates the resource. `updates` maps a property to the member of the document
    that it sets. `apply` handles the properties in `applies`. It is called on each update. It is also called after creation, with
    empty old properties. Tags need no declaration. `physical_id` names the member that identifies the resource in a stack. The
    default is the id of the resource.
    """
    member, rules = physical_id or type_.id, type_.style.tags

    def look_up(tx: Tx[Store], caller: Caller, identity: str) -> Document | None:
        is_id = member == type_.id
        every = [stored_resources.get(tx, caller, type_, identity)] if is_id else stored_resources.every(tx, caller, type_)
        return next((document for document in every if document is not None and document[member] == identity), None)

    def find(tx: Tx[Store], caller: Caller, identity: str) -> Document:
        document = look_up(tx, caller, identity)
        if document is None:
            raise type_.style.missing(type_.name, identity)
        return document

    def set_properties(tx: Tx[Store], caller: Caller, document: Document, old: Properties, new: Properties) -> None:
        given = {to: new[property_] for property_, to in updates.items() if property_ in new}
        removed = [to for property_, to in updates.items() if property_ in old and property_ not in new]
        others = {member: value for member, value in document.items() if member not in removed}
        document = {**others, **{to: type_.defaults[to] for to in removed if to in type_.defaults}, **given}
        stored_resources.put(tx, caller, type_, document)
        apply(tx, caller, document, old, new)

    def create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
        given = {name: value for name, value in properties.items() if not name.startswith("_")}
        document = stored_resources.create(tx, caller, type_, request(given))
        if reserved := properties.get("_tags"):
            document = {
                **document,
                type_.style.tags_member: rules.to_list({**reserved, **stored_resources.tags_of(type_, document)}),
            }
        set_properties(tx, caller, document, {}, given)
        return str(document[member])

    def update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
        for changed in (property_ for property_ in {**old, **new} if old.get(property_) != new.get(property_)):
            if changed[0] != "_" and changed != "Tags" and changed not in updates and changed not in applies:
                raise ValidationError(f"Corral cannot change {changed} of {name} {identity} in place: replace the resource.")
        document = find(tx, caller, identity)
        if old.get("Tags") != new.get("Tags"):
            document = _with_tags(tx, caller, type_, document, new.get("Tags", []))
        set_properties(tx, caller, document, old, new)

    def replaces(old: Properties, new: Properties) -> list[str]:
        changed = schemas.changed_paths(schemas.facts(name).conditional, old, new)
        return [path for path in changed if path.split("/")[0] not in (*updates, *applies)]

    def read(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
        document = find(tx, caller, identity)
        return {
            attribute: document.get(source) if isinstance(source, str) else source(tx, caller, document)
            for attribute, source in attributes.items()
        }

    def delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
        document = look_up(tx, caller, identity)
        if document is not None:
            before_delete(tx, caller, document, properties)
            stored_resources.delete(tx, caller, type_, find(tx, caller, identity))

    return TemplateType(name, create, read, update, delete, name_property, name_scope, replaces=replaces)


def forgiving(delete: Delete, *missing: str) -> Delete:
    """Return a function that deletes a resource, and succeeds if the resource no longer exists.

    `missing` has the ends of the error codes that say so.
    """

    def forgiving_delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
        try:
            delete(tx, caller, identity, properties)
        except ApiError as error:
            if not error.code.endswith(missing):
                raise

    return forgiving_delete


def never_updated(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Do nothing, because every property of the type forces a replacement."""


def _with_tags(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document, tags: list[dict[str, str]]) -> Document:
    """Replace the tags of a resource, except the tags that AWS reserves."""
    rules = type_.style.tags
    given = rules.of_pairs([(tag["Key"], tag["Value"]) for tag in tags])
    reserved = {key: value for key, value in stored_resources.tags_of(type_, document).items() if is_reserved(key)}
    document = {**document, type_.style.tags_member: rules.to_list(reserved | given)}
    stored_resources.put(tx, caller, type_, document)
    return document
