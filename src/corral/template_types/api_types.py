"""Declares CloudFormation resource types by the API operations that create, change and delete a resource.

`api_type` makes a `TemplateType` from the names of these operations. A `Setting` is a property that a separate operation sets.
`Tagging` has the operations that change tags. All operations run through `call`. So the caller of a stack needs the permissions for
these operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from operator import getitem
from types import MappingProxyType
from typing import Any

import orjson
from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.template_types.api_calls import call, request_of
from corral.template_types.generated_names import name_from_tags
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, ValidationError, Waiting

Params = dict[str, Any]
AlreadyExists = api_error("AlreadyExists")


class Setting(Struct, frozen=True):
    """A property that a separate operation sets."""

    put: str  # the operation that sets the property
    request: Callable[[Any], Params]  # value → the members of the request, without the members that name the resource
    remove: str | None = None  # the operation that removes the property
    default: Any = None  # if `remove` is None: the value that `put` sets when the template no longer has the property
    is_created: bool = False  # True if the request that creates the resource contains the property
    # Physical id → the members that name the resource. None: these operations take the same members as the operation that deletes.
    target: Callable[[str], Params] | None = None


class Tagging(Struct, frozen=True):
    """The operations that add and remove tags."""

    tag: str
    untag: str
    resource: Callable[[Caller, str], Params]  # the caller and the physical id → the members that name the resource
    tags: str = "Tags"  # the member of the request to `tag` that contains the tags
    keys: str = "TagKeys"  # the member of the request to `untag` that contains the keys
    # Tags → the value of the member `tags`.
    shape: Callable[[dict[str, str]], Any] = lambda tags: [{"Key": key, "Value": value} for key, value in tags.items()]
    is_created: bool = False  # True if the request that creates the resource contains the tags

    def change(self, tx: Tx[Any], caller: Caller, service: str, identity: str, old: Properties, new: Properties) -> None:
        """Change the tags of a resource from those in `old` to those in `new`."""
        resource = self.resource(caller, identity)
        before, after = tag_values(old.get("Tags")), tag_values(new.get("Tags"))
        if removed := [key for key in before if key not in after]:
            call(tx, caller, service, self.untag, {**resource, self.keys: removed})
        if added := {key: value for key, value in after.items() if before.get(key) != value}:
            call(tx, caller, service, self.tag, {**resource, self.tags: self.shape(added)})


def api_type(
    name: str,
    service: str,
    *,
    target: str | Callable[[str, Properties], Params],
    create: str,
    delete: str,
    identity: str | Callable[[Tx[Any], Caller, Properties], str] = "",
    generated: str = "",
    identity_in: str = "",
    request: Callable[[Caller, Properties], Params] | None = None,
    missing: tuple[str, ...] = (),
    exists: Callable[[Tx[Any], Caller, Properties], bool] | None = None,
    found: Callable[[Tx[Any], Caller, str, Properties], bool] = lambda tx, caller, identity, properties: True,
    update: str | None = None,
    update_request: Callable[[str, Properties, Properties], Params] | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    settings: Mapping[str, Setting] = MappingProxyType({}),
    tagging: Tagging | None = None,
    system_tags: Callable[[Tx[Any], Caller, str, dict[str, str]], None] | None = None,
    attributes: Callable[[Tx[Any], Caller, str], dict[str, Any]] = lambda tx, caller, identity: {},
    applies: tuple[str, ...] = (),
    apply: Callable[[Tx[Any], Caller, str, Properties, Properties], None] = lambda tx, caller, identity, old, new: None,
    without_effect: tuple[str, ...] = (),
    unsent: tuple[str, ...] = (),
    delete_request: Callable[[Properties], Params] = lambda properties: {},
    before_delete: Callable[[Tx[Any], Caller, str, Properties], None] = lambda tx, caller, identity, properties: None,
    lane: str = "state",
    **more: Any,
) -> TemplateType:
    """Return a template type. `more` has other fields of `TemplateType`.

    The physical id of a resource is the property `identity`, or the result of the function `identity`. With `generated`, it is a
    generated name, which `create` gets in this member. With `identity_in`, it is this member of the response of `create`. `target`
    is the member that names the resource in the requests of `delete` and of settings, or a function that returns several members.

    The operations `create` and `update` get `request(caller, properties)`. Without `request`, they get the properties that they
    have as members, and `update` also gets `target`, and the values in `defaults` of properties that the template no longer has. If
    `update` takes other members, `update_request` makes its request from the physical id, the old and the new properties.

    `missing` has the ends of the error codes of operations on a resource that does not exist. If the codes do not say so, `found`
    returns whether the resource to delete still exists. A stack does not take over an existing resource. If `create` would
    overwrite an existing resource without an error, pass `exists`. It returns whether the resource exists. If it does, the step
    fails.

    `apply` handles the properties in `applies`. It is called on each update. It is also called once after the creation, with empty
    old properties. A change of a property in `unsent` needs no request. A property in `without_effect` is stored in the stack only,
    and an event of the resource says so.
    """
    handled = {*settings, *applies, *without_effect, *unsent, *(("Tags",) if tagging is not None else ())}

    def named(identity: str, properties: Properties) -> Params:
        return {target: identity} if isinstance(target, str) else target(identity, properties)

    def sent(operation: str, properties: Properties, but: Iterable[str]) -> Params:
        return request_of(service, operation, {each: value for each, value in properties.items() if each not in but})

    def make(tx: Tx[Any], caller: Caller, properties: Properties) -> str:
        made = name_from_tags(tx, type_, properties) if generated else ""
        if identity:
            made = str(properties[identity]) if isinstance(identity, str) else identity(tx, caller, properties)
        if exists is not None and exists(tx, caller, properties):
            raise AlreadyExists(f"{made} already exists")
        with_tags = tagging is not None and tagging.is_created and bool(properties.get("Tags"))  # some services refuse empty tags
        given = request(caller, properties) if request else sent(create, properties, handled - {"Tags"} if with_tags else handled)
        response = call(tx, caller, service, create, {**given, **({generated: made} if generated else {})})
        if identity_in:
            made = str(reduce(getitem, identity_in.split("."), response))
        if system_tags is not None and properties.get("_tags"):
            system_tags(tx, caller, made, dict(properties["_tags"]))
        set_changed(tx, caller, made, {}, properties)
        return made

    def change(tx: Tx[Any], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
        if names := changed(old, new, without=handled):
            if update is None:
                raise ValidationError(f"Corral cannot change {names[0]} of {name} {identity} in place: replace the resource.")
            call(tx, caller, service, update, updated(caller, identity, old, new))
        set_changed(tx, caller, identity, old, new)

    def updated(caller: Caller, identity: str, old: Properties, new: Properties) -> Params:
        if update_request is not None:
            return update_request(identity, old, new)
        if request is not None:
            return request(caller, new)
        removed = {each: value for each, value in defaults.items() if each in old and each not in new}
        return {**sent(update or "", {**removed, **new}, handled), **named(identity, new)}

    def set_changed(tx: Tx[Any], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
        for property_, setting in settings.items():
            if old.get(property_) != new.get(property_) and (old or not setting.is_created):
                resource = named(identity, new) if setting.target is None else setting.target(identity)
                set_property(tx, caller, setting, resource, new.get(property_))
        if tagging is not None and (old or not tagging.is_created):
            tagging.change(tx, caller, service, identity, old, new)
        apply(tx, caller, identity, old, new)

    def set_property(tx: Tx[Any], caller: Caller, setting: Setting, resource: Params, value: Any) -> None:
        if value is None and setting.remove is not None:
            call(tx, caller, service, setting.remove, resource)
        else:
            given = setting.default if value is None else value
            call(tx, caller, service, setting.put, {**resource, **setting.request(given)})

    def drop(tx: Tx[Any], caller: Caller, identity: str, properties: Properties) -> None:
        if not found(tx, caller, identity, properties):
            return
        try:
            before_delete(tx, caller, identity, properties)
            call(tx, caller, service, delete, {**named(identity, properties), **delete_request(properties)})
        except ApiError as error:
            if not error.code.endswith(missing):
                raise

    if without_effect:
        more["settled"] = note_of(name, without_effect)
    fields = {"lane": lane, "checks_permissions": True, **more}
    type_ = TemplateType(name, make, attributes, change, drop, **fields)
    return type_


def note_of(name: str, without_effect: tuple[str, ...]) -> Callable[[Tx[Any], Caller, ResourceStep], Waiting | None]:
    """Return a function for `TemplateType.settled` that adds a note about the properties of a resource that have no effect."""

    def settled(tx: Tx[Any], caller: Caller, step: ResourceStep) -> Waiting | None:
        if ignored := [property_ for property_ in without_effect if step.properties.get(property_)]:
            step.notes.append(f"Corral stores these properties of {name}, but they have no effect: {', '.join(ignored)}.")
        return None

    return settled


def changed(old: Properties, new: Properties, without: Iterable[str] = ()) -> list[str]:
    names = {*old, *new} - set(without)
    return sorted(name for name in names if name[0] != "_" and old.get(name) != new.get(name))


def policy_type(
    name: str, resources: str, put: Callable[[Tx[Any], Caller, str, str], None], missing: type[ApiError]
) -> TemplateType:
    """Return a type that gives one policy to several resources. `resources` is the name of the property that lists them.

    `put` sets the policy of a resource. An empty text removes the policy. If the resource does not exist, `put` raises `missing`.
    """
    prefix = name.split("::")[1].lower()

    def remove(tx: Tx[Any], caller: Caller, resource: str) -> None:
        with suppress(missing):  # the policy was deleted with the resource
            put(tx, caller, resource, "")

    def update(tx: Tx[Any], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
        for resource in old.get(resources, ()):
            if resource not in new[resources]:
                remove(tx, caller, resource)
        for resource in new[resources]:
            put(tx, caller, resource, json_text(new["PolicyDocument"]))

    def create(tx: Tx[Any], caller: Caller, properties: Properties) -> str:
        update(tx, caller, "", {}, properties)
        return f"{prefix}-policy-{tx.ids.uuid()}"

    def delete(tx: Tx[Any], caller: Caller, identity: str, properties: Properties) -> None:
        for resource in properties[resources]:
            remove(tx, caller, resource)

    return TemplateType(name, create, lambda tx, caller, identity: {"Id": identity}, update, delete, checks_permissions=True)


def tag_values(tags: Any) -> dict[str, str]:
    """Return tags as a dict. Some types have a list of pairs, and others a map."""
    if isinstance(tags, Mapping):
        return dict(tags)
    return {tag["Key"]: tag.get("Value", "") for tag in tags or ()}


def json_text(document: Any) -> str:
    """Return a policy or another document as text. A template may contain it as an object or as text."""
    try:
        return document if isinstance(document, str) else orjson.dumps(document).decode()
    except orjson.JSONEncodeError as error:  # for example, a number with more than 64 bits
        raise ValidationError(f"The template contains an invalid JSON document: {error}.") from None


def renamed(value: Mapping[str, Any], names: Mapping[str, str]) -> Params:
    """Rename the properties that are keys of `names` to the names of the API. All other properties keep their names."""
    return {names.get(name, name): inner for name, inner in value.items()}


def camel_case(value: Any) -> Any:
    """Return properties under the names of an API whose names begin with a lower-case letter."""
    if isinstance(value, Mapping):
        return {name[0].lower() + name[1:]: camel_case(inner) for name, inner in value.items()}
    return [camel_case(inner) for inner in value] if isinstance(value, list) else value
