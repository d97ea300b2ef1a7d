"""SQS resource types of CloudFormation templates: queues and their policies."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.sqs.errors import QueueDoesNotExist
from corral.services.sqs.queue_attributes import DEFAULTS, FIFO_DEFAULTS, POLICIES
from corral.services.sqs.queue_names import url_of
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, Tagging, api_type, changed, json_text, policy_type
from corral.template_types.resource_types import Properties

MISSING = (QueueDoesNotExist.code,)
NOT_ATTRIBUTES = ("QueueName", "Tags")


def _attributes(properties: Properties) -> dict[str, str]:
    """Return the attributes of a queue. `FifoQueue: false` is omitted, because SQS accepts only true."""
    given = {name: value for name, value in properties.items() if name[0] != "_" and name not in NOT_ATTRIBUTES}
    return {name: _text(name, value) for name, value in given.items() if (name, str(value).lower()) != ("FifoQueue", "false")}


def _text(name: str, value: Any) -> str:
    if name in POLICIES:
        return json_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _changed_attributes(url: str, old: Properties, new: Properties) -> dict[str, Any]:
    """Return the changed attributes. An attribute that the template no longer has gets its default."""
    defaults = {**DEFAULTS, **FIFO_DEFAULTS, "KmsDataKeyReusePeriodSeconds": "300", "SqsManagedSseEnabled": "true"}
    attributes = _attributes(new)
    names = [name for name in changed(old, new) if name not in NOT_ATTRIBUTES]
    return {"QueueUrl": url, "Attributes": {name: attributes.get(name, defaults.get(name, "")) for name in names}}


def _read_queue(tx: Tx[Store], caller: Caller, url: str) -> dict[str, Any]:
    found = call(tx, caller, "sqs", "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]})["Attributes"]
    return {"Arn": found["QueueArn"], "QueueName": found["QueueArn"].rpartition(":")[2], "QueueUrl": url}


# Policies. A policy of a template replaces the whole policy of a queue, as on AWS.


def _put_policy(tx: Tx[Store], caller: Caller, url: str, policy: str) -> None:
    call(tx, caller, "sqs", "SetQueueAttributes", {"QueueUrl": url, "Attributes": {"Policy": policy}})


def _inline_request(caller: Caller, properties: Properties) -> Params:
    return {"QueueUrl": properties["Queue"], "Attributes": {"Policy": json_text(properties["PolicyDocument"])}}


TEMPLATE_TYPES = (
    api_type(
        "AWS::SQS::Queue",
        "sqs",
        identity=lambda tx, caller, properties: url_of(tx, caller, properties["QueueName"]),
        target="QueueUrl",
        create="CreateQueue",
        request=lambda caller, properties: {"QueueName": properties["QueueName"], "Attributes": _attributes(properties)},
        delete="DeleteQueue",
        missing=MISSING,
        exists=lambda tx, caller, properties: tx.store.queues.queue(caller.region, properties["QueueName"]) is not None,
        update="SetQueueAttributes",
        update_request=_changed_attributes,
        tagging=Tagging("TagQueue", "UntagQueue", lambda caller, identity: {"QueueUrl": identity}, shape=dict),
        attributes=_read_queue,
        name_property="QueueName",
    ),
    policy_type("AWS::SQS::QueuePolicy", "Queues", _put_policy, QueueDoesNotExist),
    api_type(
        "AWS::SQS::QueueInlinePolicy",
        "sqs",
        identity="Queue",
        target=lambda identity, properties: {"QueueUrl": identity, "Attributes": {"Policy": ""}},
        create="SetQueueAttributes",
        request=_inline_request,
        delete="SetQueueAttributes",
        missing=MISSING,
        update="SetQueueAttributes",
    ),
)
