"""Generate src/corral/template_types/schemas.dat from AWS's resource provider schemas, as cfn-lint ships them.

    pip download --no-deps cfn-lint==1.58.0
    python tools/cloudformation_facts.py cfn_lint-1.58.0-py3-none-any.whl

The file has the facts of every resource type. Its first line is a JSON header: the source, the IAM prefixes of services, and the
size of each type's facts. The facts follow, in the order of the header. Each is a JSON document that is compressed on its own, with
a dictionary that follows the header, so that a reader decompresses only the types that it needs. The documents are described in
`template_types/schemas.py`. `example_values.py` finds the form of ids and ARNs in the patterns of the schemas.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from example_values import arn_resource, value_form

Schema = dict[str, Any]

TARGET = Path(__file__).parent.parent / "src/corral/template_types/schemas.dat"
RESOURCES = "cfnlint/data/schemas/resources/"
PREFIX = "/properties/"
ENUM_MAX_VALUES = 40  # longer lists, for example of instance types, are soon out of date
DICTIONARY_BYTES = 32_000
# Prefixes of actions that the handlers of many services need.
SHARED_PREFIXES = {
    "cloudwatch",
    "codecommit",
    "ds",
    "ec2",
    "iam",
    "kms",
    "lambda",
    "logs",
    "organizations",
    "s3",
    "secretsmanager",
    "sts",
}
EVERY_KIND = ["string", "integer", "number", "boolean", "object", "array"]


def paths(schema: Schema, member: str) -> list[str]:
    """The properties that a list of JSON pointers names. A pointer into a property keeps its path, with `*` for list elements."""
    listed = (pointer.removeprefix("/").removeprefix("properties/") for pointer in schema.get(member, ()))
    return sorted({path.replace("/items/", "/*/").replace("/properties/", "/") for path in listed})


class Reduced:
    """The reduced schema of one type: only what Corral checks or returns."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.definitions: dict[str, Any] = {}

    def target(self, node: Schema) -> Schema:
        for _ in range(20):
            if "$ref" not in node:
                break
            found: Any = self.schema
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node

    def node(self, node: Schema) -> Any:
        """A text such as "string", "#Definition" for a reference, or a dict if there is more to say."""
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/definitions/")
            if name.startswith("#"):
                return self.node(self.target(node))
            if name not in self.definitions:
                self.definitions[name] = None  # a definition may contain itself
                self.definitions[name] = self.node(self.target(node))
            return f"#{name}"
        merged = self.merged(node)
        kinds = merged["kinds"]
        reduced: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
        if "array" in kinds and merged.get("items") is not None:
            reduced["items"] = self.node(merged["items"])
        if "object" in kinds and merged["properties"]:
            reduced["properties"] = {name: self.node(each) for name, each in sorted(merged["properties"].items())}
            reduced |= {name: merged[name] for name in ("required", "one", "any") if merged.get(name)}
        if "object" in kinds and merged["patterns"]:
            reduced["patterns"] = {pattern: self.node(each) for pattern, each in merged["patterns"].items()}
        if "object" in kinds and merged["properties"] and merged["open"]:
            reduced["open"] = True
        enum = merged.get("enum")
        if enum and len(enum) <= ENUM_MAX_VALUES and not node.get("enumCaseInsensitive"):
            reduced["enum"] = enum
        if set(reduced) == {"type"}:
            return "any" if len(kinds) >= 4 else reduced["type"] if len(kinds) == 1 else reduced
        return reduced

    def merged(self, node: Schema, depth: int = 0) -> Schema:
        """Merge a node with its alternatives. Alternatives are not told apart: each may have the properties of the others."""
        node = self.target(node)
        properties = dict(node.get("properties", {}))
        required, enum = set(node.get("required", ())), node.get("enum")
        items, patterns = node.get("items"), dict(node.get("patternProperties", {}))
        extra = node.get("additionalProperties", True)
        if isinstance(extra, dict):
            patterns[""] = extra
        found: Schema = {"kinds": self.kinds(node), "open": extra is True}
        if depth < 4:
            for inner in (self.merged(each, depth + 1) for each in node.get("allOf", ())):
                properties |= inner["properties"]
                required |= set(inner["required"])
                found |= {name: inner[name] for name in ("one", "any") if inner.get(name)}
            for keyword, name in (("oneOf", "one"), ("anyOf", "any")):
                inner_nodes = [self.merged(each, depth + 1) for each in node.get(keyword, ())]
                own = set(properties)
                for inner in inner_nodes:
                    for key, each in inner["properties"].items():
                        if key not in own:  # a property that differs between alternatives may have any value
                            properties[key] = each if properties.get(key, each) == each else {}
                    patterns |= inner["patterns"]
                    items = items if items is not None else inner["items"]
                    enum = None
                    if not node.get("type"):
                        found["kinds"] = [kind for kind in EVERY_KIND if kind in {*inner["kinds"], *(found["kinds"] or ())}]
                lists = [inner["required"] for inner in inner_nodes]
                only_required = all(
                    set(self.target(each)) <= {"required", "title", "description"} for each in node.get(keyword, ())
                )
                if lists and all(lists) and only_required:
                    found[name] = lists
        if not found["kinds"]:
            found["kinds"] = ["object"] if properties or patterns else ["array"] if items is not None else EVERY_KIND
        return found | {
            "properties": properties,
            "required": sorted(name for name in required if name in properties or not properties),
            "patterns": patterns,
            "items": items,
            "enum": enum,
        }

    @staticmethod
    def kinds(node: Schema) -> list[str]:
        given = node.get("type", [])
        kinds = [given] if isinstance(given, str) else list(given)
        if not kinds and "enum" in node:
            kinds = ["string"] if all(isinstance(value, str) for value in node["enum"]) else []
        return [kind for kind in EVERY_KIND if kind in kinds]

    def at(self, path: str) -> Schema | None:
        """The schema at a path such as `Endpoint/Address`."""
        node: Any = self.schema
        for part in path.split("/"):
            merged = self.merged(node)
            node = merged["items"] if part == "*" else merged["properties"].get(part)
            if node is None:
                return None
        return self.target(node)


def attributes(reduced: Reduced, every_property: bool, also: list[str]) -> list[str]:
    """The names that GetAtt accepts. It does not accept names inside of lists."""
    names = {path.replace("/", ".") for path in paths(reduced.schema, "readOnlyProperties") if "*" not in path.split("/")}
    names |= set(also)

    def walk(node: Schema, name: str, depth: int) -> None:
        merged = reduced.merged(node)
        if merged["kinds"] == ["object"] and merged["properties"] and depth < 4:
            for inner, each in merged["properties"].items():
                walk(each, f"{name}.{inner}", depth + 1)
        elif merged["kinds"] != ["array"] or reduced.merged(merged["items"] or {})["kinds"][0] not in ("object", "array"):
            names.add(name)

    if every_property:
        for name, each in reduced.schema["properties"].items():
            walk(each, name, 0)
    return sorted(names)


def facts(name: str, schema: Schema, prefix: str, gettable: dict[str, Any]) -> Schema:
    reduced = Reduced(schema)
    top = reduced.node({**{key: value for key, value in schema.items() if key != "$schema"}, "type": "object"})
    read_only, identifier = paths(schema, "readOnlyProperties"), paths_in_order(schema, "primaryIdentifier")
    found: Schema = {
        "top": top,
        "definitions": reduced.definitions,
        "create_only": paths(schema, "createOnlyProperties"),
        "conditional": paths(schema, "conditionalCreateOnlyProperties"),
        "read_only": read_only,
        "identifier": identifier,
        "attributes": attributes(reduced, name in gettable["every"], gettable["also"].get(name, [])),
    }
    tagging = schema.get("tagging", {})
    tag_path = tagging.get("tagProperty", "/properties/Tags").removeprefix(PREFIX)
    if tagging.get("taggable", schema.get("taggable", True)) and tag_path in schema["properties"]:
        kinds = reduced.merged(schema["properties"][tag_path])["kinds"]
        found["tags"] = [tag_path, "list" if "array" in kinds else "map"]
    forms, limits = {}, {}
    for path in {*read_only, *identifier}:
        node = reduced.at(path)
        if node is None:
            continue
        if path not in read_only:
            limits |= {path: node["maxLength"]} if "maxLength" in node else {}
        elif node.get("format") == "date-time":
            forms[path] = "{time}"
        elif "pattern" in node and (form := value_form(node["pattern"], path, arn_resource(name), prefix)) is not None:
            forms[path] = form
    found |= {"forms": forms, "max_length": limits, "read": read_operation(name, schema, prefix)}
    return {key: value for key, value in found.items() if value}


def read_operation(name: str, schema: Schema, prefix: str) -> str:
    """The operation that describes a resource, such as `iam:GetUser`: of those that AWS's handler calls, the one with its name."""
    called = schema.get("handlers", {}).get("read", {}).get("permissions", ())
    own = [action.partition(":")[2] for action in called if action.partition(":")[0].lower() == prefix]
    reads = [operation for operation in own if operation.startswith(("Describe", "Get", "List")) and "*" not in operation]
    named = [operation for operation in reads if name.split("::")[-1].lower() in operation.lower()]
    return f"{prefix}:{min(named, key=len) if named else reads[0]}" if reads else ""


def paths_in_order(schema: Schema, member: str) -> list[str]:
    return [pointer.removeprefix(PREFIX) for pointer in schema.get(member, ())]


def prefixes(schemas: dict[str, Schema]) -> dict[str, str]:
    """Service → the prefix of its IAM actions and ARNs, if it is not the name of the service in lower case."""
    found = {}
    for service in {name.split("::")[1] for name in schemas}:
        votes: Counter[str] = Counter()
        for name, schema in schemas.items():
            if name.split("::")[1] == service:
                for verb in ("create", "delete"):
                    actions = schema.get("handlers", {}).get(verb, {}).get("permissions", ())
                    votes.update({action.partition(":")[0].lower() for action in actions if ":" in action})
        own = [prefix for prefix, _ in votes.most_common() if prefix.replace("-", "") == service.lower()]
        best = own or [prefix for prefix, _ in votes.most_common() if prefix not in SHARED_PREFIXES]
        if best and best[0] != service.lower():
            found[service] = best[0]
    return dict(sorted(found.items()))


def getatt_tables(source: str) -> dict[str, Any]:
    """cfn-lint's tables of types whose GetAtt accepts more than the read-only properties."""
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List | ast.Dict)
    }
    return {"every": set(tables["_all_property_types"]), "also": tables["_exceptions"]}


def main(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if name.startswith(RESOURCES) and name.endswith(".json")]
        schemas = {schema["typeName"]: schema for schema in (json.loads(archive.read(name)) for name in files)}
        gettable = getatt_tables(archive.read("cfnlint/schema/_getatts.py").decode())
        date = json.loads(archive.read("cfnlint/data/schemas/version.json"))["schema_date"][:10]
    named = prefixes(schemas)
    texts = {}
    for name in sorted(schemas):
        service = name.split("::")[1]
        document = facts(name, schemas[name], named.get(service, service.lower()), gettable)
        texts[name] = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    dictionary = b"".join(sorted(texts.values(), key=len)[len(texts) // 2 :: 20])[-DICTIONARY_BYTES:]
    packed = {}
    for name, text in texts.items():
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zdict=dictionary)
        packed[name] = compressor.compress(text) + compressor.flush()
    header = {
        "source": f"AWS CloudFormation resource provider schemas of {date}, from {'-'.join(wheel.name.split('-')[:2])}",
        "licence": "MIT-0",
        "generator": "tools/cloudformation_facts.py",
        "prefixes": named,
        "dictionary": len(dictionary),
        "types": {name: len(data) for name, data in packed.items()},
    }
    TARGET.write_bytes(json.dumps(header, separators=(",", ":")).encode() + b"\n" + dictionary + b"".join(packed.values()))
    print(f"{len(texts)} types, {sum(map(len, texts.values())):,} bytes as JSON, {TARGET.stat().st_size:,} bytes in the file")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
