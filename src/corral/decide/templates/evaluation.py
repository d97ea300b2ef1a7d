"""Evaluates a template with the values of one operation on a stack: its conditions, dependencies, properties and outputs.

A raw value is a value of the template that still contains functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corral.decide.templates.compilation import circular, is_export_name, malformed_export, unresolved
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
            name: resource for name, resource in template.resources.items() if self._exists(resource.condition)
        }
        self.dependencies: dict[str, frozenset[str]] = self._dependencies()

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
            missing = [name for name in self._needed((output.value, output.export_name)) if name not in self.resources]
            if missing:
                raise unresolved(dict.fromkeys(missing), "Outputs")
            value = functions.with_dynamic(functions.value(output.value))
            if not is_text(value):
                raise TemplateError("Template format error: The Value field of every Outputs member must evaluate to a String.")
            name = NO_VALUE if output.export_name is None else functions.with_dynamic(functions.value(output.export_name))
            if name is not NO_VALUE and not is_export_name(name):
                raise malformed_export(output.key)
            export = None if name is NO_VALUE else text_of(name)
            resolved.append(ResolvedOutput(output.key, text_of(value), output.description, export))
        return resolved

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


def _no_resource(name: str) -> Any:
    raise TemplateError(f"Template format error: Unresolved dependencies [{name}]. Cannot reference resources here")


def _no_attribute(name: str, attribute: str) -> Any:
    return _no_resource(name)


def _no_values(kind: str) -> list[str]:
    raise TemplateError(f"Template error: Fn::RefAll and Fn::ValueOfAll do not support the parameter type {kind}")


def _no_lookup(kind: str, value: str, attribute: str) -> Any:
    raise TemplateError(f"Template error: Fn::ValueOf does not support the attribute {attribute} of the parameter type {kind}")
