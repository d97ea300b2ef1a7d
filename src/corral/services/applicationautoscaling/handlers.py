"""The operations of Application Auto Scaling and their handlers."""

from __future__ import annotations

from corral.aws.handlers import handlers_in
from corral.operations.services import Handler
from corral.services.applicationautoscaling import activities, policies, scheduled_actions, targets

HANDLERS: dict[str, Handler] = handlers_in("application-autoscaling", globals())
