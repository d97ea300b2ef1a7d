"""Evaluates a template with the values of one operation on a stack: its conditions, dependencies, properties and outputs.

A raw value is a value of the template that still contains functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from corral.decide.templates.compilation import checked_policy, circular, is_export_name, malformed_export, unresolved
from corral.decide.templates.functions import NO_VALUE, Functions, GetAtt, Ref
from corral.decide.templates.graph import cyclic
from corral.decide.templates.references import sub_arguments, sub_parts
from corral.decide.templates.rules import AllValues, AttributeOf, Rules
from corral.decide.templates.template import (
    ResolvedOutput,
    ResourceDeclaration,
    Template,
    TemplateError,
    function_of,
    get_att_parts,
    is_text,
    text_of,
)

ASSOCIATIONS = "AWS::ECS::ClusterCapacityProviderAssociations"


class Evaluation:
    """Evaluates the conditions of a template, finds the dependencies of its resources, and resolves its values.

    `values` has the values of the parameters, and `pseudo` those of the pseudo parameters. `zones` returns the zones of a region.
    `imported` returns the value of an export. `dynamic` returns the value of a dynamic reference, for example of `ssm:/name:3`.
    """

    def __init__(
        self,
        template: Template,
        values: Mapping[str, Any],
        pseudo: Mapping[str, Any],
        *,
        zones: Callable[[str], list[str]],
        imported: Callable[[str], str],
        dynamic: Callable[[str], str],
    ) -> None:
        self.template = template
        self.zones, self.imported, self.dynamic = zones, imported, dynamic
        self._values = {**pseudo, **values}
        self.conditions: dict[str, bool] = {}
        functions = self._functions(_no_resource, _no_attribute)
        for name, raw in template.conditions.items():
            self.conditions[name] = functions.holds(raw)
        self.resources: dict[str, ResourceDeclaration] = {
            name: self._with_policies(resource, functions)
            for name, resource in template.resources.items()
            if self._exists(resource.condition)
        }
        self.dependencies: dict[str, frozenset[str]] = self._dependencies()
        self._check_outputs()

    def check_functions(self, names: Collection[str]) -> None:
        """Evaluate the calls of the named functions that need no resource. Raise TemplateError if one has no value.

        Then a template is refused at once, and not when a step evaluates the call: for example Fn::FindInMap with a key that the
        mapping lacks. Branches of Fn::If that are not taken do not count.
        """
        functions = self._functions(_not_known, _not_known)
        waiting: list[Any] = [
            part
            for each in self.resources.values()
            for part in (each.properties, each.metadata, each.creation_policy, each.update_policy)
        ]
        outputs = [each for each in self.template.outputs.values() if self._exists(each.condition)]
        waiting += [part for each in outputs for part in (each.value, each.export_name)]
        while waiting:
            raw = waiting.pop()
            if type(raw) is list:
                waiting += raw
            elif type(raw) is dict:
                name = function_of(raw)
                if name == "Fn::If":
                    condition, *branches = raw[name]
                    waiting.append(branches[0 if self.conditions[condition] else 1])
                    continue
                if name in names:
                    functions.size = 0
                    try:
                        functions.value(raw)
                        continue
                    except _NotKnown:
                        pass
                waiting += raw.values()

    def check_rules(self, all_values: AllValues | None = None, attribute_of: AttributeOf | None = None) -> None:
        """Check the rules of the template. Raise TemplateError if an assertion is not true.

        `all_values` returns all values of a parameter type in the account (Fn::RefAll). `attribute_of` returns an attribute of one
        such value (Fn::ValueOf).
        """
        functions = self._functions(_no_resource, _no_attribute)
        Rules(functions, self.template.parameters, all_values or _no_values, attribute_of or _no_lookup).check(self.template.rules)

    def resolve(self, raw: Any, ref: Ref, get_att: GetAtt) -> Any:
        """Evaluate the functions and dynamic references in a raw value. Return None for AWS::NoValue."""
        functions = self._functions(ref, get_att)
        value = functions.value(raw)
        return None if value is NO_VALUE else functions.with_dynamic(value)

    def outputs(self, ref: Ref, get_att: GetAtt) -> list[ResolvedOutput]:
        """Resolve the outputs whose condition holds."""
        functions, resolved = self._functions(ref, get_att), []
        for output in self.template.outputs.values():
            if not self._exists(output.condition):
                continue
            value = functions.with_dynamic(functions.value(output.value))
            if not is_text(value):
                raise TemplateError("Template format error: The Value field of every Outputs member must evaluate to a String.")
            name = NO_VALUE if output.export_name is None else functions.with_dynamic(functions.value(output.export_name))
            if name is not NO_VALUE and not is_export_name(name):
                raise malformed_export(output.key)
            export = None if name is NO_VALUE else text_of(name)
            resolved.append(ResolvedOutput(output.key, text_of(value), output.description, export))
        return resolved

    def _with_policies(self, resource: ResourceDeclaration, functions: Functions) -> ResourceDeclaration:
        """Resolve the policies of a resource. Most templates have texts, which need nothing."""
        policies = {"DeletionPolicy": resource.deletion_policy, "UpdateReplacePolicy": resource.update_replace_policy}
        if not any(type(raw) is dict for raw in policies.values()):
            return resource
        found = []
        for key, raw in policies.items():
            value = functions.value(raw)
            text = None if value is None or value is NO_VALUE else text_of(value)
            found.append(checked_policy(text, key, resource.logical_id))
        return replace(resource, deletion_policy=found[0], update_replace_policy=found[1])

    def _check_outputs(self) -> None:
        missing: dict[str, None] = {}
        for output in self.template.outputs.values():
            if not output.references <= self.resources.keys() and self._exists(output.condition):
                needed = self._needed((output.value, output.export_name))
                missing |= dict.fromkeys(name for name in needed if name not in self.resources)
        if missing:
            raise unresolved(missing, "Outputs")

    def _exists(self, condition: str | None) -> bool:
        return condition is None or self.conditions[condition]

    def _functions(self, ref: Ref, get_att: GetAtt) -> Functions:
        return Functions(
            self._values,
            self.template.mappings,
            condition=self.conditions.__getitem__,
            zones=self.zones,
            imported=self.imported,
            dynamic=self.dynamic,
            ref=ref,
            get_att=get_att,
        )

    def _dependencies(self) -> dict[str, frozenset[str]]:
        """Map each resource to the resources that it needs. Only the branches of Fn::If that are taken count."""
        dependencies, missing = {}, []
        for name, resource in self.resources.items():
            needed = set(resource.required)
            if not needed.issuperset(resource.references):  # the resource uses Fn::If or DependsOn
                parts = (resource.properties, resource.metadata, resource.creation_policy, resource.update_policy)
                needed.update(self._needed(parts))
            missing += [other for other in sorted(needed) if other not in self.resources]
            # DependsOn of a resource whose condition is false has no effect.
            needed.update(other for other in resource.depends_on if other in self.resources)
            dependencies[name] = frozenset(needed)
        if missing:
            raise unresolved(dict.fromkeys(missing), "Resources")
        on_cycle = cyclic(dependencies)
        if on_cycle:
            raise circular(on_cycle)
        return self._with_implied(dependencies)

    def _with_implied(self, dependencies: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """Let a service with a capacity provider strategy depend on the association of the providers with its cluster.

        CDK declares no such dependency. Without it, the service could be created before the association, or the association
        could be deleted before the service. Both would fail. If the new dependencies make a cycle, return the old ones.
        """
        of_cluster = [(name, each.properties.get("Cluster")) for name, each in self.resources.items() if each.type == ASSOCIATIONS]
        implied = dict(dependencies)
        for name, resource in self.resources.items() if of_cluster else ():
            if resource.type == "AWS::ECS::Service" and "CapacityProviderStrategy" in resource.properties:
                cluster = resource.properties.get("Cluster")
                implied[name] |= {other for other, its_cluster in of_cluster if its_cluster == cluster}
        return dependencies if cyclic(implied) else implied

    def _needed(self, raw: Any) -> list[str]:
        """The resources that a raw value refers to, outside of branches of Fn::If that are not taken."""
        found, waiting = [], [raw]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list | tuple):
                waiting += value
                continue
            if not isinstance(value, dict):
                continue
            name = function_of(value)
            if name is None:
                waiting += value.values()
                continue
            argument = value[name]
            if name == "Ref":
                found.append(argument)
            elif name == "Fn::If":
                waiting.append(argument[1 if self.conditions[argument[0]] else 2])
            elif name == "Fn::GetAtt":
                parts = get_att_parts(argument)
                if parts is not None:
                    found.append(parts[0])
                    waiting.append(parts[1])
            elif name == "Fn::Sub":
                text, own = sub_arguments(argument)
                found += [each.partition(".")[0] for each in sub_parts(text)[1::2] if each not in own]
                waiting += own.values()
            else:
                waiting.append(argument)
        return [name for name in found if name in self.template.resources]


class _NotKnown(Exception):
    """A function needs a value of a resource, which does not exist yet."""


def _not_known(*_: str) -> Any:
    raise _NotKnown


def _no_resource(name: str) -> Any:
    raise TemplateError(f"Template format error: Unresolved dependencies [{name}]. Cannot reference resources here")


def _no_attribute(name: str, attribute: str) -> Any:
    return _no_resource(name)


def _no_values(kind: str) -> list[str]:
    raise TemplateError(f"Template error: Fn::RefAll and Fn::ValueOfAll do not support the parameter type {kind}")


def _no_lookup(kind: str, value: str, attribute: str) -> Any:
    raise TemplateError(f"Template error: Fn::ValueOf does not support the attribute {attribute} of the parameter type {kind}")
