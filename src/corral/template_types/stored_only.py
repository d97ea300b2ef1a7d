"""Resource types for which Corral has no service. A stack stores such a resource, but the resource has no effect.

Other resources can refer to such a resource, so it has a physical id and attributes. The form of these values comes from the schema
of the type: an ARN, an id such as `fs-0123456789abcdef0`, a name, a URL or a number. `reference_values.py` lists the exceptions.
Except for times, the attributes depend only on the physical id and the properties. So an update that changes no property changes no
attribute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.store import Store
from corral.template_types import schemas
from corral.template_types.generated_names import name_from_tags
from corral.template_types.reference_values import (
    ARN_RESOURCES,
    ATTRIBUTE_VALUES,
    FORMS,
    GLOBAL_SERVICES,
    LOAD_BALANCERS,
    LOWER_CASE_NAMES,
    PORTS,
    REFERENCES,
    RELATED,
    SCOPES,
)
from corral.template_types.resource_types import Properties, TemplateType
from corral.template_types.schemas import Facts

ALPHABETS = {
    "x": "0123456789abcdef",
    "d": "1234567890",
    "a": "abcdefghijklmnopqrstuvwxyz0123456789",
    "A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    "l": "abcdefghijklmnopqrstuvwxyz",
    "U": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
}
PLACEHOLDER = re.compile(r"\{(\d*)(\w+)\}")
NESTED_MAX = 4  # the maximum number of levels of objects in a generated value
# A generated value of an enum is the first of these that the enum contains, or else the first value of the enum.
STATES = ("ACTIVE", "AVAILABLE", "Active", "Available", "active", "available", "READY", "CREATED", "ENABLED", "SUCCEEDED")


@lru_cache(maxsize=256)
def stored_only_type(name: str) -> TemplateType:
    """Return a type whose resources are only stored in the stack."""
    placeholders = {match[2] for form in _identity_forms(name, schemas.facts(name)) for match in PLACEHOLDER.finditer(form)}
    has_versions = "number" in placeholders

    def create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
        facts, seed = schemas.facts(name), tx.ids.hex32()
        given = _own_name(name, facts, properties)
        own = given if given is not None else name_from_tags(tx, stored_only_type(name), properties)

        def identity(number: int) -> str:
            values = Values(name, facts, caller, tx.wall_s, seed, properties)
            values.known |= {"name": own, "number": str(number)}
            found = "|".join(_text(values.reference_part(path)) for path in _references(name, facts)) or own
            return found.lower() if name.split("::")[1] in LOWER_CASE_NAMES else found

        number = 1
        while has_versions and _is_taken(tx, properties, identity(number)):
            number += 1
        return identity(number)

    def attributes(tx: Tx[Store], caller: Caller, physical_id: str) -> dict[str, Any]:
        return attributes_from(tx, caller, physical_id, {})

    def attributes_from(tx: Tx[Store], caller: Caller, physical_id: str, properties: Properties) -> dict[str, Any]:
        facts = schemas.facts(name)
        values = Values(name, facts, caller, tx.wall_s, physical_id, properties)
        references = _references(name, facts)
        values.learn(physical_id, references)
        is_name = len(references) == 1 and references[0] not in facts.read_only
        own = physical_id if is_name else _own_name(name, facts, properties) or re.split(r"[/:|]", physical_id)[-1]
        values.known.setdefault("name", own)
        values.known.setdefault("number", "1")
        return {attribute: values.at(attribute.replace(".", "/")) for attribute in facts.attributes}

    return TemplateType(
        name,
        create,
        attributes,
        update=lambda tx, caller, physical_id, old, new: None,
        delete=lambda tx, caller, physical_id, properties: None,
        name_property=_name_property(name, schemas.facts(name)),
        name_scope=_name_scope(name, schemas.facts(name), placeholders),
        has_versions=has_versions,
        is_stored_only=True,
        replaces=_replaced_by_new_content if name == "AWS::SSM::Document" else None,
        checks_permissions=True,  # there is no operation, so there is no permission to check
        attributes_from=attributes_from,
    )


def _is_taken(tx: Tx[Store], properties: Properties, physical_id: str) -> bool:
    """Whether a resource of a stack has this physical id, also the resource that the present step replaces."""
    if tx.store.stacks.with_physical_id(physical_id):
        return True
    tags = properties.get("_tags", {})
    stack_id, logical_id = (tags.get(f"aws:cloudformation:{key}", "") for key in ("stack-id", "logical-id"))
    row = tx.store.stacks.resource(stack_id, logical_id)
    return row is not None and row.before is not None and row.before.physical_id == physical_id


def _references(name: str, facts: Facts) -> tuple[str, ...]:
    """Return the paths of the properties whose values form the physical id."""
    return REFERENCES.get(name, facts.identifier)


def _name_property(name: str, facts: Facts) -> str | None:
    """Return the property with the name that the physical id contains. Return None if AWS chooses the whole physical id."""
    references = _references(name, facts)
    if len(references) != 1 or "/" in references[0]:
        return None
    if references[0] not in facts.read_only:
        return references[0] if not references[0].lower().endswith("arn") else None
    [form] = _identity_forms(name, facts)
    return next((each for each in _name_properties(name) if each in facts.properties), None) if "{name}" in form else None


def _identity_forms(name: str, facts: Facts) -> list[str]:
    """Return the forms of the parts of the physical id that AWS chooses."""
    forms = facts.forms | FORMS.get(name, {})
    paths = [path for path in _references(name, facts) if path in facts.read_only]
    return [forms.get(path, ARN_RESOURCES.get(name, "{name}") if path.lower().endswith("arn") else "") for path in paths]


def _name_scope(name: str, facts: Facts, placeholders: Container[str]) -> tuple[str, ...]:
    """Return the properties that identify the resource together with its name, for example FunctionName of a Lambda alias."""
    own = _name_property(name, facts)
    others = (path for path in facts.identifier if path != own and path in facts.create_only)
    return (*others, *(RELATED[each][0] for each in SCOPES if each in placeholders))


def _replaced_by_new_content(old: Properties, new: Properties) -> list[str]:
    """Return the changes that replace an SSM document. With the UpdateMethod NewVersion, its content is updated in place."""
    if new.get("UpdateMethod") == "NewVersion":
        return []
    return schemas.changed_paths(schemas.facts("AWS::SSM::Document").conditional, old, new)


def _own_name(name: str, facts: Facts, properties: Properties) -> str | None:
    """Return the name that the template gives to the resource."""
    references = _references(name, facts)
    identifiers = references if len(references) == 1 and references[0] not in facts.read_only else ()
    for path in (*identifiers, *_name_properties(name)):
        value = schemas.value_at(properties, path)
        if isinstance(value, str) and value:
            return value
    return None


def _name_properties(name: str) -> tuple[str, ...]:
    resource = name.split("::")[-1]
    return f"{resource}Name", "Name", f"{resource}Identifier"


def _random(seed: str, key: str, length: int, alphabet: str) -> str:
    digits = sha256(f"{seed}\n{key}".encode()).digest() * (length // 32 + 1)
    return "".join(alphabet[digit % len(alphabet)] for digit in digits[:length])


class Values:
    """Generates values for the attributes and the physical id of one resource. The random parts of the values depend on `seed`."""

    def __init__(self, name: str, facts: Facts, caller: Caller, now_s: float, seed: str, properties: Properties) -> None:
        self.name = name
        self.facts = facts
        self.caller = caller
        self.seed = seed
        self.properties = properties
        self.forms = facts.forms | FORMS.get(name, {})
        time = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # Placeholder → value. All ids of a resource share these values, so its ARN contains its id.
        self.known: dict[str, str] = {"region": caller.region, "account": caller.account, "time": time}
        self.parts: dict[str, str] = {}  # path → value in the physical id

    def learn(self, physical_id: str, references: tuple[str, ...]) -> None:
        """Use the values in the physical id for the attributes too."""
        found = physical_id.split("|") if len(references) > 1 else [physical_id]
        if len(found) == len(references):
            self.parts = dict(zip(references, found, strict=True))
        for path, value in self.parts.items():
            if path in self.facts.read_only:
                self._learn_form(self.form_of(path), value)

    def _learn_form(self, form: str, value: str) -> None:
        def group(match: re.Match[str]) -> str:
            return f"(.{{{match[1]}}})" if match[1] else r"(\d+)" if match[2] == "number" else "(.+?)"

        pattern = re.sub(r"\\\{(\d*)(\w+)\\\}", group, re.escape(form))
        matched = re.fullmatch(pattern, value)
        if matched is not None:
            for (_, key), part in zip(_keys(form), matched.groups(), strict=True):
                self.known.setdefault(key, part)

    def reference_part(self, path: str) -> Any:
        """Return the value at a path of the physical id. A property that the template omits has a generated name."""
        given = schemas.value_at(self.properties, path)
        if given is not None and not isinstance(given, list | Mapping):
            return given
        if path in self.facts.read_only:
            return self.at(path)
        return self.filled(self.form_of(path)) if path.lower().endswith("arn") else self.known["name"]

    def at(self, path: str) -> Any:
        if path in self.parts:
            return self._typed(path, self.parts[path])
        given = schemas.value_at(self.properties, path) if "*" not in path else None
        return given if given is not None else self._generated(path, 0)

    def _is_omitted(self, path: str) -> bool:
        """Return True if the template could have set this property, but did not. Corral does not know the default value on AWS."""
        parts = path.split("/")
        starts = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        return path not in _name_properties(self.name) and not any(start in self.facts.read_only for start in starts)

    def _typed(self, path: str, text: str) -> Any:
        kind = self._kind(path)
        if kind in ("integer", "number") and schemas.NUMBER.fullmatch(text):
            return int(text) if schemas.INTEGER.fullmatch(text) else float(text)
        return text

    def _kind(self, path: str) -> str:
        kind = self.facts.at(path)["type"]
        return str(kind[0] if isinstance(kind, list) else kind)

    def _generated(self, path: str, depth: int) -> Any:
        node, kind = self.facts.at(path), self._kind(path)
        is_omitted = self._is_omitted(path)
        if kind == "object":
            inner = node.get("properties", {}) if depth < NESTED_MAX and not is_omitted else {}
            return {name: self._generated(f"{path}/{name}", depth + 1) for name in inner}
        if kind == "array":
            if is_omitted:
                return []
            items = self.facts.resolved(node.get("items", "any"))
            return [self._generated(f"{path}/*", depth + 1)] if items["type"] == "string" else []
        last = path.rpartition("/")[2].lower() if not path.endswith("/*") else path.split("/")[-2].lower().rstrip("s")
        if kind in ("integer", "number"):
            return int(self.filled(self.forms[path])) if path in self.forms else self._number(last)
        if kind == "boolean":
            return False
        if enum := node.get("enum"):
            return next((state for state in STATES if state in enum), enum[0])
        if last.endswith("port"):
            return str(self._number(last))
        return "" if is_omitted else self.filled(self.form_of(path, last))

    def _number(self, last: str) -> int:
        if last.endswith("port"):
            given = str(self.properties.get("Port", ""))
            engine = re.split(r"[-_]", str(self.properties.get("Engine", "")))[-1].lower()
            service = self.name.split("::")[1].lower()
            return int(given) if schemas.INTEGER.fullmatch(given) else PORTS.get(engine) or PORTS.get(service, 443)
        return 1 if "version" in last or last.endswith(("id", "number")) else 0

    def filled(self, form: str) -> str:
        text, start = "", 0
        for match, key in _keys(form):
            if key not in self.known:
                related = RELATED.get(key)
                value = self._related(*related) if related else _random(self.seed, key, int(match[1]), ALPHABETS[match[2]])
                self.known[key] = value
            text += form[start : match.start()] + self.known[key]
            start = match.end()
        return text + form[start:]

    def _related(self, property_: str, default: str) -> str:
        """Return the value of a placeholder in RELATED: from the property, or else from the default."""
        given = self.properties.get(property_)
        if not isinstance(given, str):
            return self.filled(default)
        if property_ == "Type":
            return LOAD_BALANCERS.get(given, default)
        if property_ == "ListenerArn":
            return given.replace(":listener/", ":listener-rule/")
        if property_ == "LoadBalancerArn":
            return given.replace(":loadbalancer/", ":listener/")
        return given if property_.endswith("Arn") else given.rpartition(":")[2]

    def form_of(self, path: str, last: str | None = None) -> str:
        """Return the form of the text at a path: from the schema or FORMS, or else from the name of the attribute."""
        if path in self.forms:
            return self.forms[path]
        last = path.rpartition("/")[2].lower() if last is None else last
        for ends, form in ATTRIBUTE_VALUES:
            if last.endswith(ends):
                return form
        if last.endswith("arn"):
            return self._arn_form(last)
        prefix = schemas.arn_prefix(self.name)
        if last.endswith(("url", "uri")):
            return f"https://{{17x}}.{prefix}.{{region}}.amazonaws.com"
        if last.endswith(("dnsname", "domainname", "endpoint", "address", "hostname", "dns", "domain")):
            return f"{{17x}}.{prefix}.{{region}}.amazonaws.com"
        if last.endswith("name"):
            return "{name}"
        return "{8x}-{4x}-{4x}-{4x}-{12x}" if last.endswith(("id", "identifier")) else "{17x}"

    def _arn_form(self, last: str) -> str:
        prefix, resource = schemas.arn_prefix(self.name), self.name.split("::")[-1]
        region = "" if prefix in GLOBAL_SERVICES else "{region}"
        is_own = last in ("arn", "resourcearn", f"{resource.lower()}arn")
        usual = f"{kebab_case(resource)}/{{name}}" if is_own else f"{last.removesuffix('arn')}/{{name}}"
        return f"arn:aws:{prefix}:{region}:{{account}}:{ARN_RESOURCES.get(self.name, usual) if is_own else usual}"


def _keys(form: str) -> list[tuple[re.Match[str], str]]:
    """Return the placeholders of a form, and a key for each: the second `{4x}` of a form differs from the first."""
    found: list[tuple[re.Match[str], str]] = []
    seen: Counter[str] = Counter()
    for match in PLACEHOLDER.finditer(form):
        key = match[1] + match[2]
        seen[key] += 1
        found.append((match, f"{key}#{seen[key]}" if match[1] and seen[key] > 1 else key))
    return found


def kebab_case(resource: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", resource).lower()


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
