"""The transform AWS::LanguageExtensions: `expand` returns a template without loops.

It repeats the fragments of Fn::ForEach. It also evaluates functions where a template without the transform must have a literal:
logical ids in Ref and Fn::GetAtt, DependsOn, Condition, DeletionPolicy and UpdateReplacePolicy. `Evaluation` evaluates Fn::Length
and Fn::ToJsonString.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corral.decide.templates.compilation import transform_names
from corral.decide.templates.functions import Functions
from corral.decide.templates.references import LANGUAGE_EXTENSIONS, References, Scope, check_condition, no_transform
from corral.decide.templates.template import TemplateError, function_of, is_text, text_of

FOR_EACH = "Fn::ForEach::"
SECTIONS = ("Conditions", "Resources", "Outputs")
LITERALS = ("DependsOn", "Condition", "DeletionPolicy", "UpdateReplacePolicy")
NODES_MAX = 100_000  # the most values of an expanded template; nested loops multiply their number
TEXT_PER_NODE = 64  # this many characters of a text count as one more value
CONDITIONS_MAX = 50  # the most levels of conditions that use other conditions
LOOPS_MAX = 5  # the most levels of nested loops
_PLACEHOLDER = re.compile(r"([$&])\{([A-Za-z0-9]+)\}")
_SPECIAL = re.compile(r"[^A-Za-z0-9]")


def expand(tree: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the transforms of a template. `parameters` has the values of parameters, and of pseudo parameters if they are known."""
    names = transform_names(tree)
    for name in names:
        if name != LANGUAGE_EXTENSIONS:
            raise no_transform(name)
    if not names:
        return tree
    expansion = _Expansion(tree, parameters)
    expanded = dict(tree)
    for section in SECTIONS:
        if isinstance(tree.get(section), dict):
            expanded[section] = expansion.members(tree[section], {})
            if section == "Conditions":
                expansion.conditions = expanded[section]
    for section in ("Resources", "Outputs"):
        for members in expanded.get(section, {}).values() if isinstance(expanded.get(section), dict) else ():
            if isinstance(members, dict):
                for key in LITERALS:
                    if key in members:
                        members[key] = expansion.literal(members[key])
    return expanded


def _failed(message: str) -> TemplateError:
    return TemplateError(f"Transform {LANGUAGE_EXTENSIONS} failed with: {message}")


class _Expansion:
    def __init__(self, tree: dict[str, Any], parameters: Mapping[str, Any]) -> None:
        self.nodes = 0
        self.conditions = tree.get("Conditions")
        self.held: dict[str, bool] = {}  # the conditions that have been evaluated
        self.running: set[str] = set()  # the conditions that are being evaluated
        mappings = tree.get("Mappings", {})
        is_regular = isinstance(mappings, dict) and all(
            isinstance(mapping, dict) and all(isinstance(attributes, dict) for attributes in mapping.values())
            for mapping in mappings.values()
        )
        self.functions = Functions(
            parameters,
            mappings if is_regular else {},
            condition=self._condition,
            zones=_unknown,
            imported=_unknown,
            dynamic=_unknown,
            ref=_unknown,
            get_att=_unknown,
        )

    def value(self, raw: Any, bound: Mapping[str, str]) -> Any:
        """Copy a raw value. `bound` has the values of the loop variables, which are replaced in every text."""
        self._count(1)
        if isinstance(raw, str):
            return self._substituted(raw, bound)
        if isinstance(raw, list):
            return [self.value(inner, bound) for inner in raw]
        if not isinstance(raw, dict):
            return raw
        name = function_of(raw)
        if name is None or name.startswith(FOR_EACH):
            return self.members(raw, bound)
        argument = raw[name]
        if name == "Ref":
            if isinstance(argument, str) and argument in bound:
                return bound[argument]
            return {"Ref": self.literal(self.value(argument, bound))}
        if name == "Fn::Sub":
            return {name: self._sub(argument, bound)}
        argument = self.value(argument, bound)
        if name == "Fn::GetAtt" and isinstance(argument, list):
            argument = [self.literal(part) for part in argument]
        return {name: argument}

    def _count(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > NODES_MAX:
            raise _failed(f"The template has more than {NODES_MAX} values after Fn::ForEach was applied")

    def _substituted(self, text: str, bound: Mapping[str, str]) -> str:
        """Replace the loop variables in a text: ${Name}, and &{Name} for the value without special characters."""

        def replace(match: re.Match[str]) -> str:
            if match[2] not in bound:
                return match[0]
            return bound[match[2]] if match[1] == "$" else _SPECIAL.sub("", bound[match[2]])

        if not bound:
            return text
        text = _PLACEHOLDER.sub(replace, text)
        self._count(len(text) // TEXT_PER_NODE)
        return text

    def members(self, raw: dict[str, Any], bound: Mapping[str, str]) -> dict[str, Any]:
        """Copy the members of an object, and merge the members that its loops produce."""
        members: dict[str, Any] = {}
        for key, value in raw.items():
            self._add(key, value, bound, members)
        return members

    def _add(self, key: str, value: Any, bound: Mapping[str, str], members: dict[str, Any]) -> None:
        if key.startswith(FOR_EACH):
            self._loop(value, bound, members)
            return
        name = self._substituted(key, bound)
        if name in members:
            raise _failed(f"Duplicate key '{name}' when merging keys to parent object in Fn::ForEach")
        members[name] = self.value(value, bound)

    def literal(self, raw: Any) -> Any:
        """Evaluate a raw value where a template needs a literal. A value that cannot be evaluated stays, and is refused later."""
        if isinstance(raw, list):
            return [self.literal(inner) for inner in raw]
        if function_of(raw) is None:
            return raw
        try:
            value = self.functions.value(raw)
        except TemplateError:
            return raw
        return value if is_text(value) or isinstance(value, list) else raw

    def _loop(self, raw: Any, bound: Mapping[str, str], members: dict[str, Any]) -> None:
        if not isinstance(raw, list) or len(raw) != 3 or not isinstance(raw[0], str) or not isinstance(raw[2], dict):
            raise _failed("Fn::ForEach layout is incorrect")
        if len(bound) >= LOOPS_MAX:
            raise _failed(f"Fn::ForEach is nested more than {LOOPS_MAX} levels deep")
        identifier, collection, fragment = raw
        for item in self._collection(self.value(collection, bound)):
            self._count(1)
            inner = {**bound, identifier: item}
            for key, value in fragment.items():
                self._add(key, value, inner, members)

    def _collection(self, raw: Any) -> list[str]:
        try:
            items = self.functions.value(raw)
        except TemplateError:
            items = None
        if isinstance(items, list):  # a list inside of the list is the value of a list parameter
            items = [item for each in items for item in (each if isinstance(each, list) else [each])]
        if not isinstance(items, list) or not all(map(is_text, items)):
            raise _failed("Could not find a collection or could not be resolved for Fn::ForEach")
        return [text_of(item) for item in items]

    def _sub(self, argument: Any, bound: Mapping[str, str]) -> Any:
        if isinstance(argument, str):
            return self._substituted(argument, bound)
        if isinstance(argument, list) and len(argument) == 2 and isinstance(argument[1], dict):
            outer = {name: value for name, value in bound.items() if name not in argument[1]}
            return [self._sub(argument[0], outer), self.value(argument[1], bound)]
        return self.value(argument, bound)

    def _condition(self, name: str) -> bool:
        if name in self.held:
            return self.held[name]
        raw = self.conditions.get(name) if isinstance(self.conditions, dict) else None
        if raw is None:
            raise _failed(f"Key {name} is missing in the map.")
        if name in self.running or len(self.running) >= CONDITIONS_MAX:
            raise _failed(f"The conditions depend on each other in a cycle, or more than {CONDITIONS_MAX} levels deep")
        check_condition(raw, References(Scope((), (), self.functions.mappings, (), True)))
        self.running.add(name)
        try:
            self.held[name] = self.functions.holds(raw)
        finally:
            self.running.discard(name)
        return self.held[name]


def _unknown(*_: Any) -> Any:
    raise TemplateError("The value is not known before the stack exists.")
