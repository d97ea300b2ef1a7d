"""The operations of SNS and their handlers. A program in a container needs a policy for all of them."""

from corral.services.sns import publish, subscriptions, topics

HANDLERS = {
    "CreateTopic": topics.create_topic,
    "DeleteTopic": topics.delete_topic,
    "ListTopics": topics.list_topics,
    "GetTopicAttributes": topics.get_topic_attributes,
    "SetTopicAttributes": topics.set_topic_attributes,
    "AddPermission": topics.add_permission,
    "RemovePermission": topics.remove_permission,
    "TagResource": topics.tag_resource,
    "UntagResource": topics.untag_resource,
    "ListTagsForResource": topics.list_tags_for_resource,
    "Subscribe": subscriptions.subscribe,
    "ConfirmSubscription": subscriptions.confirm_subscription,
    "Unsubscribe": subscriptions.unsubscribe,
    "ListSubscriptions": subscriptions.list_subscriptions,
    "ListSubscriptionsByTopic": subscriptions.list_subscriptions_by_topic,
    "GetSubscriptionAttributes": subscriptions.get_subscription_attributes,
    "SetSubscriptionAttributes": subscriptions.set_subscription_attributes,
    "Publish": publish.publish,
    "PublishBatch": publish.publish_batch,
}
