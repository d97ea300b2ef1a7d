"""The secrets of containers: parameters of Systems Manager and secrets of Secrets Manager, which become environment variables.

The server reads them when it creates the order to start a container, so no row of a task contains a value.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.model.principal import acting_service
from corral.model.task import Task
from corral.services.ecs.task_spec import ContainerSpec
from corral.services.secretsmanager.references import SecretReference, is_secret_arn, of_container, of_parameter, referenced_text
from corral.services.secretsmanager.secret_names import arn_for_permission
from corral.services.secretsmanager.values import get_secret_value
from corral.services.ssm.parameter_names import arn, parse_reference
from corral.services.ssm.parameters import referenced_value
from corral.store import Store

NO_SECRETS = "ResourceInitializationError: unable to pull secrets or registry auth: "
FROM_PARAMETERS = NO_SECRETS + "unable to retrieve secrets from ssm: Invalid parameters: {}"
FROM_SECRETS = (
    NO_SECRETS
    + "execution resource retrieval failed: unable to retrieve secret from asm: service call has been retried 1 time(s): {}"
)
NoValue = api_error("NoValue")


def secret_values(tx: Tx[Store], task: Task, container: ContainerSpec) -> tuple[dict[str, str], str | None]:
    """Return the variables from a container's secrets, and the reason why the container cannot start (None if it can)."""
    values, missing, faults = dict[str, str](), list[str](), list[str]()
    caller = Caller(tx.settings.account, task.region, acting_service(tx.settings.account, "ecs-tasks.amazonaws.com", task.owner))
    for secret in container.secrets:
        source = secret["valueFrom"]
        try:
            read = _of_secrets_manager if is_secret_arn(source) else referenced_value
            values[secret["name"]] = read(tx, caller, source)
        except NoValue as error:
            faults.append(FROM_SECRETS.format(error.message))
        except ApiError:
            missing.append(source)
    if missing:
        faults.append(FROM_PARAMETERS.format(", ".join(missing)))
    variables = {secret["name"]: values.get(secret["name"], "") for secret in container.definition.get("secrets", ())}
    return variables, faults[0] if faults else None


def _of_secrets_manager(tx: Tx[Store], caller: Caller, source: str) -> str:
    """Return the value of a secret. Raise NoValue with the reason if it cannot be read."""
    try:
        reference = of_container(source)
    except ApiError as error:
        raise NoValue(error.message) from None
    local = replace(caller, region=reference.region)
    try:
        return referenced_text(
            reference,
            lambda params: get_secret_value(tx, params, local),
            # The text of AWS's agent for a value that is no JSON contains a character of the value.
            NoValue(f"the value of secret {reference.secret_id} is not a JSON object, so it has no json key {reference.json_key}"),
            NoValue(f"retrieved secret from Secrets Manager did not contain json key {reference.json_key}"),
        )
    except NoValue:
        raise
    except ApiError as error:
        raise NoValue(f"failed to fetch secret {reference.secret_id} from secrets manager: {error.code}: {error.message}") from None


def permissions_to_read(tx: Tx[Store], caller: Caller, source: str) -> list[Permission]:
    """The permissions to read the value that `valueFrom` names."""
    if is_secret_arn(source):
        try:
            return [_permission(tx, caller, of_container(source))]
        except ApiError:  # the task cannot start
            return [Permission("secretsmanager:GetSecretValue", source)]
    needed = [Permission("ssm:GetParameters", _parameter_arn(caller, source))]
    referenced = of_parameter(source)
    return needed if referenced is None else [*needed, _permission(tx, caller, referenced)]


def _permission(tx: Tx[Store], caller: Caller, reference: SecretReference) -> Permission:
    local = replace(caller, region=reference.region or caller.region)
    return Permission("secretsmanager:GetSecretValue", arn_for_permission(tx, local, reference.secret_id))


def _parameter_arn(caller: Caller, given: str) -> str:
    """The ARN of a parameter. For anything else, return `given`."""
    try:
        found = parse_reference(caller, given)
    except ApiError:
        return given
    return arn(caller.account, found.region, found.name)
