"""Evaluates the templates of stacks: inserts the values of parameters, of other resources and of exports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.templates import (
    Evaluation,
    ParameterValues,
    ResourceDeclaration,
    TemplateError,
    compile_template,
)
from corral.decide.templates.stack_plan import signal_policy
from corral.model.stack import ENDED, ResourceStatus, ResourceVersion, Stack, StackResource, StackVersion
from corral.services.cloudformation.account_values import AccountValues
from corral.services.cloudformation.no_echo import hide, parameter_secrets
from corral.services.cloudformation.stack_events import caller_of
from corral.services.ec2.zones import zone_names
from corral.services.secretsmanager.cloudformation_types import secret_text
from corral.services.ssm.cloudformation_types import dynamic_value
from corral.store import Store
from corral.template_types.api_calls import authorize
from corral.template_types.generated_names import generated_name
from corral.template_types.lookup import resource_type
from corral.template_types.schemas import ValidationError, check_properties, has_schema, tag_property

COMPLETE = frozenset({ResourceStatus.CREATE_COMPLETE, ResourceStatus.UPDATE_COMPLETE})
UPDATE_POLICIES = frozenset(  # the members of UpdatePolicy that are objects
    {"AutoScalingReplacingUpdate", "AutoScalingRollingUpdate", "AutoScalingScheduledAction", "CodeDeployLambdaAliasUpdate"}
)
SECURE = ("ssm-secure:", "secretsmanager:")  # the beginnings of references to secret values
SECURE_REFERENCE = re.compile(rf"\{{\{{resolve:((?:{'|'.join(SECURE)})[^{{}}]*)\}}\}}")
Ref = Callable[[str], Any]
GetAtt = Callable[[str, str], Any]


class Lookups:
    """The values from outside of the stack that a template reads: exports, SSM parameters and zones.

    `tx` is the current transaction.
    """

    def __init__(self, tx: Tx[Store], caller: Caller) -> None:
        self.tx, self.caller = tx, caller
        self.imported_names: set[str] = set()

    def zones(self, region: str) -> list[str]:
        return zone_names(region or self.caller.region)

    def imported(self, name: str) -> str:
        export = self.tx.store.stacks.export(self.caller.region, name)
        if export is None:
            raise TemplateError(f"No export named {name} found.")
        value, stack_id = export
        exporting = self.tx.store.stacks.get(stack_id)
        if exporting is not None and exporting.owner != self.caller.owner:  # the value is an output of the stack
            authorize(self.tx, self.caller, "cloudformation", "DescribeStacks", {"StackName": stack_id})
        self.imported_names.add(name)
        return value

    def dynamic(self, reference: str) -> str:
        """Return the value of a dynamic reference. References to secret values stay: `with_secrets` replaces them."""
        if reference.startswith(SECURE):
            return f"{{{{resolve:{reference}}}}}"
        try:
            return dynamic_value(self.tx, self.caller, reference)
        except ApiError as error:
            raise TemplateError(error.message) from error


class StackWork:
    """The values that the steps of one operation compute from rows. They stay in memory, so the template is compiled only once."""

    def __init__(self, tx: Tx[Store], stack: Stack, values: ParameterValues, template: str, *, checks_rules: bool = True) -> None:
        self.number, self.operation = stack.version.number, stack.operation
        self.lookups = Lookups(tx, caller_of(stack))
        self.evaluation = make_evaluation(self.lookups, stack, values, template, checks_rules=checks_rules)
        # The resources that need nothing more in this operation.
        self.done = {
            resource.logical_id
            for resource in tx.store.stacks.resources(stack.id).values()
            if is_done(stack, resource) and resource.logical_id in self.evaluation.resources
        }


def is_done(stack: Stack, resource: StackResource) -> bool:
    """Whether the present operation has created or updated a resource."""
    is_current = resource.operation == stack.operation and not resource.leftover
    return is_current and resource.step is None and resource.status in COMPLETE


def make_evaluation(
    lookups: Lookups, stack: Stack, values: ParameterValues, template: str, *, checks_rules: bool = True
) -> Evaluation:
    """Compile the template of a stack. Raise ValidationError if it is not valid for these parameters.

    Rules can depend on resources outside of the stack. So they are only checked when an operation begins.
    """
    try:
        made = Evaluation(
            compile_template(orjson.loads(template)),
            values.values,
            pseudo_parameters(stack.region, stack.caller.account, stack.name, stack.id, stack.version.notification_arns),
            zones=lookups.zones,
            imported=lookups.imported,
            dynamic=lookups.dynamic,
        )
        if checks_rules and made.template.rules:
            account = AccountValues(lookups.tx, lookups.caller)
            made.check_rules(account.all_values, account.attribute_of)
    except TemplateError as error:
        raise ValidationError(hide(error.message, parameter_secrets(values.no_echo, values.texts, values.values))) from error
    return made


def pseudo_parameters(region: str, account: str, name: str, stack_id: str | None, topics: Iterable[str]) -> dict[str, Any]:
    """Return the values of the pseudo parameters. A stack that does not exist yet has no id."""
    china = region.startswith("cn-")
    return {
        "AWS::Region": region,
        "AWS::AccountId": account,
        "AWS::StackName": name,
        **({"AWS::StackId": stack_id} if stack_id is not None else {}),
        "AWS::Partition": "aws-cn" if china else "aws-us-gov" if region.startswith("us-gov-") else "aws",
        "AWS::URLSuffix": "amazonaws.com.cn" if china else "amazonaws.com",
        "AWS::NotificationARNs": list(topics),
    }


def stored_values(version: StackVersion) -> ParameterValues:
    return ParameterValues(version.values, version.parameters, version.resolved_ssm, frozenset(version.no_echo))


def work_of(tx: Tx[Store], stack: Stack) -> StackWork:
    """Return the work of the stack's last operation."""
    work = tx.store.stacks.computed.get(stack.id)
    if not isinstance(work, StackWork) or (work.number, work.operation) != (stack.version.number, stack.operation):
        template = tx.store.stacks.template(stack.id, stack.version.number)[1]
        work = StackWork(tx, stack, stored_values(stack.version), template, checks_rules=False)
        tx.store.stacks.compute(stack.id, work)
    work.lookups.tx = tx
    return work


def evaluation(tx: Tx[Store], caller: Caller, stack: Stack) -> Evaluation:
    """Return the template of a stack with the values of its last operation."""
    template = tx.store.stacks.template(stack.id, stack.version.number)[1]
    return make_evaluation(Lookups(tx, caller), stack, stored_values(stack.version), template, checks_rules=False)


def check_functions(
    evaluated: Evaluation, values: ParameterValues, template: str, names: Iterable[str] = ("Fn::FindInMap", "Fn::Select")
) -> None:
    """Raise ValidationError if a call of a function needs no resource and has no value. `template` is the text of the template."""
    used = [name for name in names if name in template]
    if not used:
        return
    try:
        evaluated.check_functions(used)
    except TemplateError as error:
        raise ValidationError(hide(error.message, parameter_secrets(values.no_echo, values.texts, values.values))) from error


def find_imports(evaluated: Evaluation, lookups: Lookups, values: ParameterValues, template: str) -> tuple[str, ...]:
    """Return the names of the exports that a template imports. Raise ValidationError if one does not exist."""
    check_functions(evaluated, values, template, ("Fn::ImportValue",))
    return tuple(sorted(lookups.imported_names))


def references(resources: Mapping[str, StackResource]) -> tuple[Ref, GetAtt]:
    """Return the functions that resolve Ref and Fn::GetAtt of the resources of a stack."""

    def ref(logical_id: str) -> Any:
        return _existing(resources, logical_id).version.physical_id

    def get_att(logical_id: str, attribute: str) -> Any:
        resource = _existing(resources, logical_id)
        return attribute_of(logical_id, resource.version, attribute)

    return ref, get_att


def _existing(resources: Mapping[str, StackResource], logical_id: str) -> StackResource:
    resource = resources.get(logical_id)
    if resource is None or resource.version.physical_id is None or resource.status in ENDED:
        raise TemplateError(f"Unresolved resource dependencies [{logical_id}] in the Resources block of the template")
    return resource


def attribute_of(logical_id: str, version: ResourceVersion, attribute: str) -> Any:
    found: Any = version.attributes
    if attribute in found:
        return found[attribute]
    for part in attribute.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise TemplateError(f"Template error: resource {logical_id} does not support attribute type {attribute} in Fn::GetAtt")
        found = found[part]
    return found


def desired_version(
    tx: Tx[Store], stack: Stack, evaluated: Evaluation, declared: ResourceDeclaration, now: ResourceVersion | None, ref: Ref,
    get_att: GetAtt, *, plans: bool = False,
) -> ResourceVersion:  # fmt: skip
    """Return the version of a resource that the template wants. Raise an ApiError or a TemplateError if it is not valid.

    `now` is the present version, if there is one: it has the generated name. With `plans`, some references are not known yet, so
    properties that are not valid are accepted, and no name is generated.
    """
    properties, creation_policy, update_policy, metadata = (
        _object(evaluated.resolve(raw, ref, get_att), f"/Resources/{declared.logical_id}/{member}")
        for member, raw in (
            ("Properties", declared.properties),
            ("CreationPolicy", declared.creation_policy),
            ("UpdatePolicy", declared.update_policy),
            ("Metadata", declared.metadata),
        )
    )
    for member in UPDATE_POLICIES & update_policy.keys():
        _object(update_policy[member], f"/Resources/{declared.logical_id}/UpdatePolicy/{member}")
    if not plans:
        signal_policy(creation_policy)
    type_ = resource_type(declared.type)
    if has_schema(declared.type):
        try:
            properties = check_properties(declared.type, declared.logical_id, properties)
        except ApiError:
            if not plans:
                raise
    name = ""
    if type_.name_property is not None and type_.name_property not in properties:
        name = now.generated_name if now is not None else ""
        name = name or ("" if plans else generated_name(tx, stack.name, declared.logical_id, type_, properties))
        if name:
            properties = {**properties, type_.name_property: name}
    return ResourceVersion(
        type=declared.type,
        properties=_tagged(declared.type, properties, stack.version.tags),
        dependencies=tuple(sorted(evaluated.dependencies[declared.logical_id])),
        deletion_policy=declared.deletion_policy or "",
        update_replace_policy=declared.update_replace_policy or "",
        creation_policy=creation_policy,
        update_policy=update_policy,
        metadata=metadata,
        generated_name=name,
        revision=type_.revision(tx, caller_of(stack), properties) if type_.revision is not None else "",
    )


def _object(value: Any, path: str) -> dict[str, Any]:
    """Return an evaluated part of a resource. Raise an error if it is not an object. AWS::NoValue becomes an empty object."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TemplateError(f"Template format error: [{path}] {path.rpartition('/')[2]} must be an object.")
    return value


def _tagged(type_name: str, properties: dict[str, Any], tags: Mapping[str, str]) -> dict[str, Any]:
    """Add the tags of the stack to the properties. The resource's own tags have precedence."""
    found = tag_property(type_name) if tags else None
    if found is None:
        return properties
    member, form = found
    if form == "map":
        return {**properties, member: {**tags, **properties.get(member, {})}}
    own = list(properties.get(member, ()))
    keys = {tag.get("Key") for tag in own if isinstance(tag, dict)}
    more = {"PropagateAtLaunch": True} if type_name == "AWS::AutoScaling::AutoScalingGroup" else {}
    return {**properties, member: own + [{"Key": key, "Value": value, **more} for key, value in tags.items() if key not in keys]}


def with_secrets(tx: Tx[Store], caller: Caller, value: Any) -> Any:
    """Replace the references to secure parameters and secrets in properties. Raise an ApiError if one cannot be read.

    Only the functions of a type get the secret values. The rows and the events of a stack contain the references.
    """
    if isinstance(value, dict):
        return {name: with_secrets(tx, caller, each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_secrets(tx, caller, each) for each in value]
    if isinstance(value, str) and "{{resolve:" in value:
        return SECURE_REFERENCE.sub(lambda found: _secret(tx, caller, found[1]), value)
    return value


def _secret(tx: Tx[Store], caller: Caller, reference: str) -> str:
    service, _, rest = reference.partition(":")
    return secret_text(tx, caller, rest) if service == "secretsmanager" else dynamic_value(tx, caller, reference)


def secure_values(tx: Tx[Store], caller: Caller, properties: dict[str, Any]) -> set[str]:
    """Return the values of the secure parameters and secrets to which properties refer. Those that cannot be read are omitted."""
    found = set()
    for reference in SECURE_REFERENCE.findall(orjson.dumps(properties).decode()):
        with suppress(ApiError):
            found.add(_secret(tx, caller, reference))
    return found


def given_properties(stack: Stack, logical_id: str, version: ResourceVersion) -> dict[str, Any]:
    """Return the properties for the functions of a type. The members that begin with "_" are not properties of the template."""
    tags = {
        "aws:cloudformation:stack-name": stack.name,
        "aws:cloudformation:stack-id": stack.id,
        "aws:cloudformation:logical-id": logical_id,
    }
    policy = {"_update_policy": version.update_policy} if version.update_policy else {}
    return {**version.properties, "_tags": tags, "_metadata": version.metadata, **policy}
