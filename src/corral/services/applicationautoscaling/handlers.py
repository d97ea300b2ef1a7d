"""The operations of Application Auto Scaling and their handlers."""

from __future__ import annotations

from corral.operations.services import Handler
from corral.services.applicationautoscaling import activities, policies, scheduled_actions, targets

HANDLERS: dict[str, Handler] = {
    "DeleteScalingPolicy": policies.delete_scaling_policy,
    "DeleteScheduledAction": scheduled_actions.delete_scheduled_action,
    "DeregisterScalableTarget": targets.deregister_scalable_target,
    "DescribeScalableTargets": targets.describe_scalable_targets,
    "DescribeScalingActivities": activities.describe_scaling_activities,
    "DescribeScalingPolicies": policies.describe_scaling_policies,
    "DescribeScheduledActions": scheduled_actions.describe_scheduled_actions,
    "GetPredictiveScalingForecast": policies.get_predictive_scaling_forecast,
    "ListTagsForResource": targets.list_tags_for_resource,
    "PutScalingPolicy": policies.put_scaling_policy,
    "PutScheduledAction": scheduled_actions.put_scheduled_action,
    "RegisterScalableTarget": targets.register_scalable_target,
    "TagResource": targets.tag_resource,
    "UntagResource": targets.untag_resource,
}
