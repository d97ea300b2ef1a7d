"""The permissions that operations of SNS need, and the facts about topics and subscriptions that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, pass_role, request_tags, request_values, with_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.operations.listings import Listed
from corral.services.sns.names import SERVICE, SUBSCRIPTION, TOPIC, region_and_name, topic_with_arn
from corral.store import Store
from corral.store.stored_resources import Document

ACTIONS = {"PublishBatch": "Publish"}  # operation → action, where their names differ
KEYS = {"sns:endpoint": "Endpoint", "sns:protocol": "Protocol"}  # condition keys of Subscribe, and their members
# A key of Corral's own, with the ARN of the subscription that an operation reads, changes or deletes. Its owner counts, and not
# that of the topic, which is the resource of the permission as on AWS.
ON_SUBSCRIPTION = "corral:subscription"


def _owner_of_topic(tx: Tx[Store], caller: Caller, params: Params, element: Document) -> str:
    return tx.store.stored.owner(SERVICE, TOPIC, *region_and_name(element["TopicArn"]))


def _owner_of_subscription(tx: Tx[Store], caller: Caller, params: Params, element: Document) -> str:
    """The owner of a subscription. One that is not confirmed is listed without its ARN: it belongs to the owner of the topic."""
    given = element["SubscriptionArn"]
    if given.count(":") < 6:
        return _owner_of_topic(tx, caller, params, element)
    return tx.store.stored.owner(SERVICE, SUBSCRIPTION, *region_and_name(given))


# The subscriptions of one topic are not filtered: the owner of the topic may see who gets its messages.
LISTED = {
    "ListSubscriptions": Listed(("Subscriptions",), _owner_of_subscription),
    "ListTopics": Listed(("Topics",), _owner_of_topic),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on the topic. Operations on one subscription need it, too."""
    context = {**request_tags(params), **(request_values(params, KEYS) if operation == "Subscribe" else {})}
    if operation == "CreateTopic":
        arns = [f"arn:aws:sns:{caller.region}:{caller.account}:{params.get('Name', '')}"]
        return on_resources("sns:CreateTopic", arns, context) + with_tags("sns:TagResource", arns, params)
    subscription = params.get("SubscriptionArn")
    if subscription:
        arns = [subscription.rpartition(":")[0]]
        context = {**context, ON_SUBSCRIPTION: (subscription,)}
    else:
        given = params.get("TopicArn") or params.get("TargetArn") or params.get("ResourceArn")
        arns = [given] if given else []
    needed = on_resources(f"sns:{ACTIONS.get(operation, operation)}", arns, context)
    if params.get("AttributeName", "").endswith("RoleArn") and params.get("AttributeValue"):
        needed.append(pass_role(tx, caller, params["AttributeValue"], "sns", *arns))
    return needed


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    topic = topic_with_arn(tx, permission.resource)
    if topic is None:
        return ResourceFacts()
    owner = tx.store.stored.owner(SERVICE, TOPIC, *region_and_name(topic["TopicArn"]))
    for subscription in permission.context.get(ON_SUBSCRIPTION, ()):
        owner = tx.store.stored.owner(SERVICE, SUBSCRIPTION, *region_and_name(subscription)) or owner
    return ResourceFacts(owner, topic["Tags"], topic["Attributes"].get("Policy"))
