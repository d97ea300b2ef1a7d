"""Rules: assertions about the parameters of a stack. They are checked before anything is created or updated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corral.decide.templates.functions import Functions
from corral.decide.templates.references import PSEUDO_PARAMETERS, Scope
from corral.decide.templates.template import ParameterDeclaration, TemplateError, is_text, text_of

AllValues = Callable[[str], list[str]]  # parameter type → the values of this type in the account
AttributeOf = Callable[[str, str, str], Any]  # parameter type, value, attribute → the value of the attribute, or None

ARGUMENTS = {  # rule function → the smallest and the largest number of its arguments
    "Fn::And": (2, 10),
    "Fn::Contains": (2, 2),
    "Fn::EachMemberEquals": (2, 2),
    "Fn::EachMemberIn": (2, 2),
    "Fn::Equals": (2, 2),
    "Fn::Not": (1, 1),
    "Fn::Or": (2, 10),
    "Fn::ValueOf": (2, 2),
    "Fn::ValueOfAll": (2, 2),
}
BOOLEAN = frozenset(("Fn::And", "Fn::Contains", "Fn::EachMemberEquals", "Fn::EachMemberIn", "Fn::Equals", "Fn::Not", "Fn::Or"))
SUPPORTED = frozenset((*ARGUMENTS, "Ref", "Fn::RefAll", "Fn::FindInMap", "Fn::Sub", "Fn::Join", "Fn::Select", "Fn::Split"))


def check_rules_section(rules: Mapping[str, Any], scope: Scope) -> None:
    for name, rule in rules.items():
        path = f"/Rules/{name}"
        if not isinstance(rule, dict):
            raise TemplateError("Template format error: Any Rules member must be an object.")
        for key in rule:
            if key not in ("RuleCondition", "Assertions"):
                raise TemplateError(f"Template format error: [{path}] Invalid Rules property {key}")
        assertions = rule.get("Assertions")
        if not isinstance(assertions, list) or not assertions:
            raise TemplateError(f"Template format error: [{path}] Every Rules object must contain a list of Assertions.")
        for assertion in assertions:
            if not isinstance(assertion, dict) or "Assert" not in assertion:
                raise TemplateError(f"Template format error: [{path}] Every Assertions member must contain an Assert member.")
            for key, value in assertion.items():
                if key not in ("Assert", "AssertDescription"):
                    raise TemplateError(f"Template format error: [{path}] Invalid Assertions property {key}")
                if key == "AssertDescription" and not is_text(value):
                    raise TemplateError("Template format error: Every AssertDescription member must be a string.")
            _check_boolean(assertion["Assert"], path, scope)
        if "RuleCondition" in rule:
            _check_boolean(rule["RuleCondition"], path, scope)


def _check_boolean(raw: Any, path: str, scope: Scope) -> None:
    if not isinstance(raw, dict) or len(raw) != 1 or next(iter(raw)) not in BOOLEAN:
        raise TemplateError(
            f"Template format error: [{path}] Rule conditions and assertions must be rule functions that return a boolean"
        )
    _check_function(raw, path, scope)


def _check_function(raw: Any, path: str, scope: Scope) -> None:
    if isinstance(raw, list):
        for inner in raw:
            _check_function(inner, path, scope)
        return
    if not isinstance(raw, dict):
        return
    if len(raw) != 1 or next(iter(raw)) not in SUPPORTED:
        raise TemplateError(
            f"Template format error: [{path}] Rules can contain rule functions only: [{', '.join(sorted(SUPPORTED))}]"
        )
    ((name, argument),) = raw.items()
    if name in ("Ref", "Fn::RefAll"):
        if not isinstance(argument, str):
            raise TemplateError(f"Template error: every {name} object must have a single String value.")
        if name == "Ref" and argument not in scope.values:
            raise TemplateError(
                f"Template format error: Unresolved dependencies [{argument}]. "
                "Cannot reference resources in the Rules block of the template"
            )
        return
    if name in ARGUMENTS:
        least, most = ARGUMENTS[name]
        if not isinstance(argument, list) or not least <= len(argument) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise TemplateError(f"Template error: every {name} object requires a list of {count} parameters.")
    if name in ("Fn::ValueOf", "Fn::ValueOfAll"):
        if not all(isinstance(each, str) for each in argument):
            raise TemplateError(f"Template error: every {name} object requires a list of 2 strings.")
        if name == "Fn::ValueOf" and argument[0] not in scope.values - PSEUDO_PARAMETERS:
            raise TemplateError(f"Template error: {name} references undefined parameter {argument[0]}")
    if name in ("Fn::And", "Fn::Or", "Fn::Not"):
        for operand in argument:
            _check_boolean(operand, path, scope)
    elif name != "Fn::Sub":
        _check_function(argument, path, scope)


class Rules:
    def __init__(
        self,
        functions: Functions,
        parameters: Mapping[str, ParameterDeclaration],
        all_values: AllValues,
        attribute_of: AttributeOf,
    ) -> None:
        self.functions = functions
        self.parameters = parameters
        self.all_values = all_values
        self.attribute_of = attribute_of

    def check(self, rules: Mapping[str, Any]) -> None:
        for name, rule in rules.items():
            if "RuleCondition" in rule and not self.value(rule["RuleCondition"]):
                continue
            for assertion in rule["Assertions"]:
                if not self.value(assertion["Assert"]):
                    description = text_of(assertion.get("AssertDescription", f"an assertion of rule {name} is not true"))
                    raise TemplateError(f"Template validation error: Rule {name} failed: {description.strip()}")

    def value(self, raw: Any) -> Any:
        if isinstance(raw, list):
            return [self.value(inner) for inner in raw]
        if not isinstance(raw, dict):
            return raw
        ((name, argument),) = raw.items()
        if name == "Fn::RefAll":
            return self.all_values(argument)
        if name == "Fn::ValueOf":
            declaration = self.parameters[argument[0]]
            return self._attribute(declaration.value_type, self.functions.named(argument[0]), argument[1])
        if name == "Fn::ValueOfAll":
            kind, attribute = argument
            values = [self.attribute_of(kind, each, attribute) for each in self.all_values(kind)]
            return [each for each in values if each is not None]
        if name not in BOOLEAN:
            return self.functions.value(raw)
        operands = self.value(argument)
        if name == "Fn::Not":
            return not operands[0]
        if name == "Fn::And":
            return all(operands)
        if name == "Fn::Or":
            return any(operands)
        first, second = operands
        if name == "Fn::Equals":
            return Functions.equal(first, second)
        if not isinstance(first, list):
            raise TemplateError(f"Template error: the first parameter of {name} must be a list of strings.")
        if name == "Fn::Contains":
            return any(Functions.equal(each, second) for each in first)
        if name == "Fn::EachMemberEquals":
            return all(Functions.equal(each, second) for each in first)
        if not isinstance(second, list):
            raise TemplateError(f"Template error: the second parameter of {name} must be a list of strings.")
        known = {text_of(each) for each in second}
        return all(text_of(each) in known for each in first)

    def _attribute(self, kind: str, value: Any, attribute: str) -> Any:
        if isinstance(value, list):
            return [self._attribute(kind.removeprefix("List<").removesuffix(">"), each, attribute) for each in value]
        found = self.attribute_of(kind, value, attribute)
        return "" if found is None else found
