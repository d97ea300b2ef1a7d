"""Custom resources: `Custom::NAME` and `AWS::CloudFormation::CustomResource`.

For each step, the stack sends a request to the Lambda function or SNS topic in ServiceToken, and waits for the response. The
request contains a URL with a secret. The program that gets the request sends its response to this URL, and needs no other
credentials (`server/wait_handles.py`). The response contains the physical id and the attributes of the resource. The server stores
the response in the row of the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.model.function import Invocation, InvocationState
from corral.model.json_documents import read_json
from corral.model.numbers import whole_number
from corral.model.stack import NO_ECHO, StackResource
from corral.services.cloudformation.cdk_providers import PROVIDERS
from corral.store import Store
from corral.template_types.api_calls import authorize
from corral.template_types.generated_names import name_from_tags
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, Waiting

PATH = "/cloudformation-custom-resource/{region}/{secret}"
RESPONSE_PATH = re.compile(r"/cloudformation-custom-resource/([a-z0-9-]{1,32})/([0-9a-f]{64})")
# The service and the type of a stored document. It names the step that waits for a response.
SERVICE, REQUEST = "cloudformation", "custom-request"
TIMEOUT_S = 3600
RESPONSE_MAX_BYTES = 4096
PHYSICAL_ID_MAX_BYTES = 1024
REQUEST_TYPES = {"CREATE": "Create", "UPDATE": "Update", "DELETE": "Delete"}
SUBJECT = "AWS CloudFormation custom resource request"
NO_RESPONSE = (
    "CloudFormation did not receive a response from your Custom Resource. Please check your logs for requestId [{}]. If you are "
    "using the Python cfn-response module, you may need to update your Lambda function code so that CloudFormation can attach the "
    "updated version."
)

CustomResourceFailed = api_error("CustomResourceFailed")


# Steps


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    """Return a provisional physical id. The response replaces it."""
    _check(tx, caller, properties)
    return name_from_tags(tx, CUSTOM_RESOURCE, properties)


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    _check(tx, caller, new)
    if old.get("ServiceToken") != new.get("ServiceToken"):
        raise CustomResourceFailed("Modifying service token is not allowed.")


def _delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Do nothing, because `_settled` sends the request to delete the resource."""


def _no_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {}


def _check(tx: Tx[Store], caller: Caller, properties: Properties) -> None:
    """Raise an error if the request cannot be sent."""
    token = _token(properties)
    if _timeout_s(properties) is None:
        raise CustomResourceFailed(f"ServiceTimeout must be a number of seconds from 1 to {TIMEOUT_S}.")
    if ":sns:" in token:
        from corral.services.sns.names import topic_with_arn  # imported only when a stack needs it

        if topic_with_arn(tx, token) is None:
            raise CustomResourceFailed(f"The topic in ServiceToken does not exist: {token}")
        authorize(tx, caller, "sns", "Publish", {"TopicArn": token})
    else:
        from corral.services.lambda_.names import function_with_arn

        if function_with_arn(tx, token) is None:
            raise CustomResourceFailed(
                f"ServiceToken must be the ARN of a Lambda function or an SNS topic of this account: {token}"
            )
        authorize(tx, caller, "lambda", "Invoke", {"FunctionName": token})


def _token(properties: Properties) -> str:
    token = properties.get("ServiceToken")
    if not isinstance(token, str) or not token:
        raise CustomResourceFailed("The property ServiceToken is required: the ARN of a Lambda function or an SNS topic.")
    return token


def _timeout_s(properties: Properties) -> int | None:
    """Return how many seconds the stack waits for a response. Return None if ServiceTimeout is not valid."""
    given = whole_number(str(properties.get("ServiceTimeout", TIMEOUT_S)), TIMEOUT_S)
    return given or None


def _settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """At the first call, send the request. At later calls, check whether the response has arrived."""
    token = _token(step.properties)
    if ":sns:" not in token:
        from corral.services.lambda_.functions import is_run, not_run  # imported only when a stack needs it
        from corral.services.lambda_.names import function_with_arn

        function = function_with_arn(tx, token)
        if function is not None and not is_run(function):
            if (provider := PROVIDERS.get(step.type)) is not None:
                return provider(tx, caller, step)
            if step.action == "DELETE":
                return None  # Corral does not run the function, so the function has created nothing
            raise CustomResourceFailed(not_run(function["Runtime"]))
    if "secret" not in step.memory:
        _send(tx, caller, step)
    response = step.memory.get("response")
    if response is None:
        return _wait(tx, step)
    request_id = step.memory["request"]
    if error := response.get("error"):
        raise CustomResourceFailed(f"{error} (RequestId: {request_id})")
    given = response.get("PhysicalResourceId")
    if isinstance(given, str) and given:
        step.physical_id = given
    if response["Status"] == "FAILED":
        reason = response.get("Reason") or "No reason was given."
        raise CustomResourceFailed(
            f"Received response status [FAILED] from custom resource. Message returned: {reason} (RequestId: {request_id})"
        )
    if step.action == "CREATE" and not (isinstance(given, str) and given):
        raise CustomResourceFailed(f"Invalid PhysicalResourceId: it must be a text that is not empty (RequestId: {request_id})")
    step.attributes = (response.get("Data") or {}) | ({NO_ECHO: True} if response.get("NoEcho") is True else {})
    return None


def _wait(tx: Tx[Store], step: ResourceStep) -> Waiting:
    timeout_s = _timeout_s(step.properties) or TIMEOUT_S
    ends_s, request_id = step.started_s + timeout_s, step.memory["request"]
    if tx.now_s >= ends_s:
        raise CustomResourceFailed(NO_RESPONSE.format(request_id))
    invocation = tx.store.functions.get(step.memory["invocation"]) if "invocation" in step.memory else None
    if invocation is not None and invocation.state is InvocationState.FAILED:
        times = "once" if invocation.attempts == 1 else f"{invocation.attempts} times"
        failed = f"has failed {times} and sent no response" if invocation.attempts else "could not run"
        raise CustomResourceFailed(f"The function {invocation.function} {failed}: {_error(invocation)}")
    text = "The custom resource waits for a response."
    if invocation is not None and invocation.state is InvocationState.SUCCEEDED:
        text = f"The function {invocation.function} has ended, and sent no response yet."
    return Waiting((invocation.key,) if invocation is not None else (), text, ends_s)


def _error(invocation: Invocation) -> str:
    try:
        found = read_json(invocation.result)
    except ValueError:
        found = None
    return str(found.get("errorMessage", "")) if isinstance(found, dict) else ""


# Requests


def _send(tx: Tx[Store], caller: Caller, step: ResourceStep) -> None:
    token, secret, request_id = _token(step.properties), tx.ids.hex32() + tx.ids.hex32(), tx.ids.uuid()
    event: dict[str, Any] = {
        "RequestType": REQUEST_TYPES[step.action],
        "ServiceToken": token,
        "ResponseURL": tx.settings.endpoint_url + PATH.format(region=caller.region, secret=secret),
        "StackId": step.stack_id,
        "RequestId": request_id,
        "LogicalResourceId": step.logical_id,
        "ResourceType": step.type,
        "ResourceProperties": _shown(step.properties),
    }
    if step.action != "CREATE":
        event["PhysicalResourceId"] = step.physical_id
    if step.action == "UPDATE":
        event["OldResourceProperties"] = _shown(step.old_properties or {})
    waiting = {"stack": step.stack_id, "key": step.key}
    tx.store.stored.put(SERVICE, REQUEST, caller.region, secret, waiting, tx.now_s)
    step.memory.update(secret=secret, request=request_id)
    if ":sns:" in token:
        from corral.services.sns.publish import deliver  # imported only when a stack needs it

        authorize(tx, caller, "sns", "Publish", {"TopicArn": token})
        deliver(tx, token, orjson.dumps(event).decode(), subject=SUBJECT)
        return
    from corral.services.lambda_.invocations import enqueue
    from corral.services.lambda_.names import function_with_arn

    authorize(tx, caller, "lambda", "Invoke", {"FunctionName": token})
    function = function_with_arn(tx, token)
    if function is None:
        raise CustomResourceFailed(f"The function in ServiceToken does not exist: {token}")
    step.memory["invocation"] = enqueue(tx, function, orjson.dumps(event))


def _shown(properties: Properties) -> dict[str, Any]:
    return {name: _texts(value) for name, value in properties.items() if not name.startswith("_")}


def _texts(value: Any) -> Any:
    """Return properties as a function gets them: CloudFormation sends numbers and booleans as text."""
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


# Responses


def request_exists(tx: Tx[Store], region: str, secret: str) -> bool:
    return tx.store.stored.get(SERVICE, REQUEST, region, secret) is not None


def receive_response(tx: Tx[Store], region: str, secret: str, body: bytes) -> None:
    """Store a response in the step that waits for it, and continue the step. A response to a step that has ended is ignored."""
    from corral.services.cloudformation.step_execution import step_key  # at the top, this import would be circular

    waiting = tx.store.stored.get(SERVICE, REQUEST, region, secret)
    if waiting is None:
        return
    tx.store.stored.drop(SERVICE, REQUEST, region, secret)
    resource: StackResource | None = tx.store.stacks.resource(waiting["stack"], waiting["key"])
    if resource is None or resource.step is None or resource.step.memory.get("secret") != secret:
        return
    memory = {**resource.step.memory, "response": _read(body)}
    resource = resource.but(step=resource.step.but(memory=memory))
    tx.store.stacks.put_resource(resource)
    tx.mark(step_key(resource))


def _abandon(tx: Tx[Store], caller: Caller, memory: Mapping[str, Any]) -> None:
    """Delete the stored request, because its step has ended without a response. So the server refuses a late response."""
    if "secret" in memory:
        tx.store.stored.drop(SERVICE, REQUEST, caller.region, memory["secret"])


def _read(body: bytes) -> dict[str, Any]:
    """Check a response. Return its members. If the response is not valid, return only the member `error`."""
    if len(body) > RESPONSE_MAX_BYTES:
        return {"error": f"Response object is too long: it has {len(body)} bytes, and at most {RESPONSE_MAX_BYTES} are allowed."}
    try:
        found = read_json(body)
    except ValueError:
        return {"error": "Invalid response object: it is not valid JSON."}
    if not isinstance(found, dict) or found.get("Status") not in ("SUCCESS", "FAILED"):
        return {"error": "Invalid response object: Value of property Status must be SUCCESS or FAILED."}
    if not isinstance(found.get("Data") or {}, dict):
        return {"error": "Invalid response object: Value of property Data must be an object."}
    if len(str(found.get("PhysicalResourceId", "")).encode()) > PHYSICAL_ID_MAX_BYTES:
        return {"error": f"Invalid PhysicalResourceId: it has more than {PHYSICAL_ID_MAX_BYTES} bytes."}
    return {name: found.get(name) for name in ("Status", "Reason", "PhysicalResourceId", "Data", "NoEcho")}


CUSTOM_RESOURCE = TemplateType(  # also used for all types whose names begin with Custom::
    "AWS::CloudFormation::CustomResource",
    _create,
    _no_attributes,
    _update,
    _delete,
    settled=_settled,
    gone=_settled,
    abandon=_abandon,
)
