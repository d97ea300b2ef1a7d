"""SNS resource types of CloudFormation templates: topics, subscriptions and the policies of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.sns.errors import NotFoundException
from corral.services.sns.names import subscriptions_of, topic_arn, topic_with_arn
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, Setting, Tagging, api_type, changed, json_text, note_of, policy_type
from corral.template_types.resource_types import Properties, TemplateType

MISSING = (NotFoundException.code,)
# Property of a topic that is also an attribute of the topic → the value that an update sets when the template no longer has it
ATTRIBUTES = {
    "ArchivePolicy": "",
    "ContentBasedDeduplication": False,
    "DisplayName": "",
    "FifoThroughputScope": "Topic",
    "KmsMasterKeyId": "",
    "MaximumMessageSize": "",
    "SignatureVersion": "1",
    "TracingConfig": "PassThrough",
}
# Protocol in DeliveryStatusLogging → the beginning of the names of its attributes
FEEDBACK = {"http/s": "HTTP", "sqs": "SQS", "lambda": "Lambda", "firehose": "Firehose", "application": "Application"}
SUBSCRIPTION_ATTRIBUTES = ("DeliveryPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy", "SubscriptionRoleArn")
FILTER = "FilterPolicy"
# Property of a subscription → the value that an update sets when the template no longer has the property. Other properties become
# empty.
REMOVED = {"RawMessageDelivery": "false", "FilterPolicyScope": "MessageAttributes"}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_text(value) if isinstance(value, Mapping) else str(value)


# Topics


def _create_request(caller: Caller, properties: Properties) -> Params:
    attributes = {name: _text(properties[name]) for name in (*ATTRIBUTES, "FifoTopic") if name in properties}
    return {"Name": properties["TopicName"], "Attributes": attributes}


def _attribute(name: str) -> Setting:
    return Setting(
        "SetTopicAttributes",
        lambda value: {"AttributeName": name, "AttributeValue": _text(value)},
        default=ATTRIBUTES[name],
        is_created=True,
    )


def _apply(tx: Tx[Store], caller: Caller, arn: str, old: Properties, new: Properties) -> None:
    """Set the properties of a topic that are lists: the logging of deliveries, and subscriptions."""
    before, after = _logging(old), _logging(new)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            call(tx, caller, "sns", "SetTopicAttributes", _topic_attribute(arn, name, after.get(name, "")))
    endpoints, wanted = _endpoints(old), _endpoints(new)
    topic = topic_with_arn(tx, arn)
    for _, subscription in list(subscriptions_of(tx, topic)) if topic is not None else ():
        subscribed = subscription["Protocol"], subscription["Endpoint"]
        if subscribed in endpoints and subscribed not in wanted:
            call(tx, caller, "sns", "Unsubscribe", {"SubscriptionArn": subscription["SubscriptionArn"]})
    for protocol, endpoint in wanted:
        if (protocol, endpoint) not in endpoints:
            call(tx, caller, "sns", "Subscribe", {"TopicArn": arn, "Protocol": protocol, "Endpoint": endpoint})


def _logging(properties: Properties) -> dict[str, str]:
    return {
        f"{FEEDBACK[each['Protocol']]}{name}": str(value)
        for each in properties.get("DeliveryStatusLogging", ())
        for name, value in each.items()
        if name != "Protocol"
    }


def _endpoints(properties: Properties) -> list[tuple[str, str]]:
    return [(each["Protocol"], each["Endpoint"]) for each in properties.get("Subscription", ())]


def _topic_attribute(arn: str, name: str, value: str) -> Params:
    return {"TopicArn": arn, "AttributeName": name, "AttributeValue": value}


def _read_topic(tx: Tx[Store], caller: Caller, arn: str) -> dict[str, Any]:
    return {"TopicArn": arn, "TopicName": arn.rpartition(":")[2]}


# Subscriptions


def _subscribe(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    names = (*SUBSCRIPTION_ATTRIBUTES, FILTER)
    params = {name: properties[name] for name in ("TopicArn", "Protocol", "Endpoint") if name in properties}
    attributes = {name: _text(properties[name]) for name in names if name in properties}
    request = {**params, "Attributes": attributes, "ReturnSubscriptionArn": True}
    made: str = call(tx, _in_region(caller, properties.get("Region")), "sns", "Subscribe", request)["SubscriptionArn"]
    return made


def _in_region(caller: Caller, region: str | None) -> Caller:
    """Return the caller with the region of the topic. This can be another region than the region of the stack."""
    return replace(caller, region=region) if region else caller


def _update_subscription(tx: Tx[Store], caller: Caller, arn: str, old: Properties, new: Properties) -> None:
    """Set the changed attributes. The old filter policy is removed first, because it can be invalid in the new scope."""
    names = changed(old, new)
    values = [(name, new.get(name, REMOVED.get(name, ""))) for name in SUBSCRIPTION_ATTRIBUTES if name in names]
    if FILTER in names or "FilterPolicyScope" in names:
        values = [(FILTER, "{}"), *values, (FILTER, new.get(FILTER, "{}"))]
    for name, value in values:
        params = {"SubscriptionArn": arn, "AttributeName": name, "AttributeValue": _text(value)}
        call(tx, _in_region(caller, arn.split(":")[3]), "sns", "SetSubscriptionAttributes", params)


def _unsubscribe(tx: Tx[Store], caller: Caller, arn: str, properties: Properties) -> None:
    call(tx, _in_region(caller, arn.split(":")[3]), "sns", "Unsubscribe", {"SubscriptionArn": arn})


# Policies. A policy in a template replaces the whole policy of a topic, as on AWS. Without it, the topic has the default policy.


def _put_policy(tx: Tx[Store], caller: Caller, arn: str, policy: str) -> None:
    call(tx, caller, "sns", "SetTopicAttributes", _topic_attribute(arn, "Policy", policy))


TEMPLATE_TYPES = (
    api_type(
        "AWS::SNS::Topic",
        "sns",
        identity=lambda tx, caller, properties: topic_arn(caller.region, caller.account, properties["TopicName"]),
        target="TopicArn",
        create="CreateTopic",
        request=_create_request,
        delete="DeleteTopic",
        missing=MISSING,
        exists=lambda tx, caller, properties: (
            topic_with_arn(tx, topic_arn(caller.region, caller.account, properties["TopicName"])) is not None
        ),
        settings={name: _attribute(name) for name in ATTRIBUTES},
        tagging=Tagging("TagResource", "UntagResource", lambda caller, identity: {"ResourceArn": identity}),
        attributes=_read_topic,
        applies=("DeliveryStatusLogging", "Subscription"),
        apply=_apply,
        without_effect=("DataProtectionPolicy",),
        name_property="TopicName",
    ),
    TemplateType(
        "AWS::SNS::Subscription",
        _subscribe,
        lambda tx, caller, arn: {"Arn": arn},
        _update_subscription,
        _unsubscribe,
        settled=note_of("AWS::SNS::Subscription", ("ReplayPolicy",)),
        checks_permissions=True,
    ),
    policy_type("AWS::SNS::TopicPolicy", "Topics", _put_policy, NotFoundException),
    api_type(
        "AWS::SNS::TopicInlinePolicy",
        "sns",
        identity="TopicArn",
        target=lambda identity, properties: _topic_attribute(identity, "Policy", ""),
        create="SetTopicAttributes",
        request=lambda caller, properties: _topic_attribute(
            properties["TopicArn"], "Policy", json_text(properties["PolicyDocument"])
        ),
        delete="SetTopicAttributes",
        missing=MISSING,
        update="SetTopicAttributes",
    ),
)
