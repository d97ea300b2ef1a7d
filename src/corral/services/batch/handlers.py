"""The operations of AWS Batch and their handlers. Service environments, service jobs and quota shares are not served."""

from __future__ import annotations

from corral.operations.services import Fetch, Handler, Split
from corral.services.batch import (
    compute_environments,
    image_configs,
    job_definitions,
    job_description,
    job_listing,
    job_requests,
    queue_requests,
    queue_snapshot,
    resource_jobs,
    resource_requests,
    resource_tags,
    scheduling_policies,
    submit,
)

HANDLERS: dict[str, Handler] = {
    "CancelJob": job_requests.cancel_job,
    "CancelJobs": job_requests.cancel_jobs,
    "CreateComputeEnvironment": compute_environments.create_compute_environment,
    "CreateConsumableResource": resource_requests.create_consumable_resource,
    "CreateJobQueue": queue_requests.create_job_queue,
    "CreateSchedulingPolicy": scheduling_policies.create_scheduling_policy,
    "DeleteComputeEnvironment": compute_environments.delete_compute_environment,
    "DeleteConsumableResource": resource_requests.delete_consumable_resource,
    "DeleteJobQueue": queue_requests.delete_job_queue,
    "DeleteSchedulingPolicy": scheduling_policies.delete_scheduling_policy,
    "DeregisterJobDefinition": job_definitions.deregister_job_definition,
    "DescribeComputeEnvironments": compute_environments.describe_compute_environments,
    "DescribeConsumableResource": resource_requests.describe_consumable_resource,
    "DescribeJobDefinitions": job_definitions.describe_job_definitions,
    "DescribeJobQueues": queue_requests.describe_job_queues,
    "DescribeJobs": job_description.describe_jobs,
    "DescribeSchedulingPolicies": scheduling_policies.describe_scheduling_policies,
    "GetJobQueueSnapshot": queue_snapshot.get_job_queue_snapshot,
    "ListConsumableResources": resource_requests.list_consumable_resources,
    "ListJobs": job_listing.list_jobs,
    "ListJobsByConsumableResource": resource_jobs.list_jobs_by_consumable_resource,
    "ListSchedulingPolicies": scheduling_policies.list_scheduling_policies,
    "ListTagsForResource": resource_tags.list_tags_for_resource,
    "RegisterJobDefinition": job_definitions.register_job_definition,
    "SubmitJob": submit.submit_job,
    "TagResource": resource_tags.tag_resource,
    "TerminateJob": job_requests.terminate_job,
    "TerminateJobs": job_requests.terminate_jobs,
    "UntagResource": resource_tags.untag_resource,
    "UpdateComputeEnvironment": compute_environments.update_compute_environment,
    "UpdateConsumableResource": resource_requests.update_consumable_resource,
    "UpdateJobQueue": queue_requests.update_job_queue,
    "UpdateSchedulingPolicy": scheduling_policies.update_scheduling_policy,
}
FETCH: dict[str, Fetch] = {"SubmitJob": image_configs.fetch}
PIECES: dict[str, Split] = {"CancelJobs": job_requests.split, "TerminateJobs": job_requests.split}
