"""The operations of Auto Scaling and their handlers."""

from __future__ import annotations

from corral.aws.handlers import handlers_in
from corral.operations.services import Handler
from corral.services.autoscaling import (
    activities,
    group_instances,
    group_settings,
    group_tags,
    groups,
    instance_refreshes,
    launch_configurations,
    lifecycle_hooks,
    scaling_policies,
    scheduled_actions,
)

HANDLERS: dict[str, Handler] = handlers_in("autoscaling", globals()) | {
    **launch_configurations.HANDLERS,
    **group_settings.HANDLERS,
}
