"""The operations of AWS Batch and their handlers. Service environments, service jobs and quota shares are not served."""

from __future__ import annotations

from corral.services import Handler
from corral.services.batch import queue_requests, resource_tags, scheduling_policies

HANDLERS: dict[str, Handler] = {
    "CreateJobQueue": queue_requests.create_job_queue,
    "CreateSchedulingPolicy": scheduling_policies.create_scheduling_policy,
    "DeleteJobQueue": queue_requests.delete_job_queue,
    "DeleteSchedulingPolicy": scheduling_policies.delete_scheduling_policy,
    "DescribeJobQueues": queue_requests.describe_job_queues,
    "DescribeSchedulingPolicies": scheduling_policies.describe_scheduling_policies,
    "ListSchedulingPolicies": scheduling_policies.list_scheduling_policies,
    "ListTagsForResource": resource_tags.list_tags_for_resource,
    "TagResource": resource_tags.tag_resource,
    "UntagResource": resource_tags.untag_resource,
    "UpdateJobQueue": queue_requests.update_job_queue,
    "UpdateSchedulingPolicy": scheduling_policies.update_scheduling_policy,
}
