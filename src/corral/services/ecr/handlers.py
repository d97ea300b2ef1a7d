"""The operations of ECR and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.ecr import images, policies, registry_settings, repositories

HANDLERS = handlers_in("ecr", globals()) | {
    **policies.HANDLERS,
}
HEAVY = frozenset({"ListImages", "DescribeImages", "BatchGetImage"})
