"""Notifications of Auto Scaling groups: messages to SNS topics when a launch or a termination of an instance succeeded or failed.

As on AWS, the group publishes with its service-linked role. So the policy of the topic does not matter.
"""

from __future__ import annotations

from contextlib import suppress
from time import gmtime, strftime
from typing import Any

import orjson

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.group import Group, ScalingActivity, group_arn
from corral.model.instance import ec2_id
from corral.services.autoscaling.names import NOTIFICATION, documents_of
from corral.services.sns.publish import deliver
from corral.store import Store

LAUNCH, TERMINATE, TEST = "autoscaling:EC2_INSTANCE_LAUNCH", "autoscaling:EC2_INSTANCE_TERMINATE", "autoscaling:TEST_NOTIFICATION"
ERROR = "_ERROR"
EVENTS = {"Launching": LAUNCH, "Terminating": TERMINATE}  # the first word of an activity's description → the event
SUBJECTS = {LAUNCH: "launch", TERMINATE: "termination", LAUNCH + ERROR: "failed launch", TERMINATE + ERROR: "failed termination"}
RESULTS = {"Successful": "", "Failed": ERROR}  # the status of an activity that has ended → the suffix of the event


def notify(tx: Tx[Store], activity: ScalingActivity) -> None:
    """Publish the end of an activity to the topics whose configuration has this type of event."""
    event, suffix = EVENTS.get(activity.description.split(" ")[0]), RESULTS.get(activity.status)
    if event is None or suffix is None:
        return
    kind = event + suffix
    message = {
        "Service": "AWS Auto Scaling",
        "Time": _iso(tx.wall_s),
        "RequestId": tx.ids.uuid(),
        "Event": kind,
        "AccountId": tx.settings.account,
        "AutoScalingGroupName": activity.group,
        "AutoScalingGroupARN": group_arn(tx.settings.account, activity.region, activity.group_uid, activity.group),
        "ActivityId": activity.id,
        "Description": activity.description,
        "Cause": activity.cause,
        "StartTime": _iso(tx.steps.wall_s(activity.started_at_s)),
        "EndTime": _iso(tx.wall_s),
        "StatusCode": activity.status,
        "StatusMessage": activity.message,
        "Progress": activity.progress,
        "EC2InstanceId": ec2_id(activity.instance_id) if activity.instance_id else "",
        "Details": orjson.loads(activity.details),
    }
    for configuration in list(documents_of(tx, activity.region, NOTIFICATION, activity.group)):
        if kind in configuration["_types"]:
            publish(tx, configuration["TopicARN"], f'Auto Scaling: {SUBJECTS[kind]} for group "{activity.group}"', message)


def send_test(tx: Tx[Store], group: Group, topic_arn: str) -> None:
    """Publish the test message for a new configuration."""
    publish(tx, topic_arn, f'Auto Scaling: test notification for group "{group.name}"', test_message(tx, group))


def test_message(tx: Tx[Store], group: Group) -> dict[str, Any]:
    return {
        "AccountId": tx.settings.account,
        "RequestId": tx.ids.uuid(),
        "AutoScalingGroupARN": group.arn(tx.settings.account),
        "AutoScalingGroupName": group.name,
        "Service": "AWS Auto Scaling",
        "Event": TEST,
        "Time": _iso(tx.wall_s),
    }


def publish(tx: Tx[Store], topic_arn: str, subject: str, message: dict[str, Any]) -> None:
    """Publish a message. If the topic does not exist or refuses the message, do nothing."""
    with suppress(ApiError):
        deliver(tx, topic_arn, orjson.dumps(message).decode(), subject=subject[:100])


def _iso(at_s: float) -> str:
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(at_s))}.{int(at_s * 1000) % 1000:03d}Z"
