"""The operations of compute environments: create, update, delete and describe.

An environment is stored as a JSON document with the members of DescribeComputeEnvironments. The instances of an environment belong
to Auto Scaling groups. A generation is the set of groups that have the same settings (`environment_groups.py`). The reconciler
`environment` (`reconcile/compute_environments.py`) launches and terminates the instances, and sets the status of the environment.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.compute_environment import (
    CLUSTER_TAG,
    CREATING,
    DELETING,
    DISABLED,
    ENABLED,
    INVALID,
    MANAGED,
    UNMANAGED,
    UPDATING,
    VALID,
    ComputeEnvironment,
)
from corral.operations.pagination import among
from corral.operations.stored_resources import Params
from corral.services.batch.environment_groups import (
    HEALTHY,
    STATE,
    EnvironmentState,
    OldGroup,
    check_types,
    have_gpus,
    problem_of,
    put_state,
    service_linked_role,
    state_of,
)
from corral.services.batch.environment_rules import (
    REPLACING,
    SCALING,
    check_environment,
    check_policy,
    check_resources,
    check_state,
)
from corral.services.batch.environments import SERVICE, TYPE, environment_of, find_environment
from corral.services.batch.errors import EXISTS, ClientException, missing
from corral.services.batch.job_queues import queues_of_environment
from corral.services.batch.names import ENVIRONMENT, PAGES, arn, check_name, checked_tags, listed, queue_key, shown
from corral.services.ecs.clusters import create_cluster
from corral.services.ecs.lookup import arn as ecs_arn
from corral.store import Store
from corral.store.stored_resources import Document

ENVIRONMENTS_MAX = 500  # per region; AWS's quota is 50, and can be raised
DESCRIBED_MAX = 100
TIMEOUT_MINUTES = 30  # the default of the update policy: how long jobs may run on instances that an update replaces
UPDATE_POLICY = {"terminateJobsOnUpdate": False, "jobExecutionTimeoutMinutes": TIMEOUT_MINUTES}


# Create


def create_compute_environment(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name, tags = check_name("computeEnvironmentName", params["computeEnvironmentName"]), checked_tags(params)
    check_environment(params)
    resources = dict(params.get("computeResources") or {})
    if resources.get("instanceTypes"):
        check_types(tx, resources["instanceTypes"])
    if tx.store.stored.get(SERVICE, TYPE, caller.region, name) is not None:
        raise ClientException(EXISTS)
    if len(tx.store.stored.listed(SERVICE, TYPE, caller.region, limit=ENVIRONMENTS_MAX)) == ENVIRONMENTS_MAX:
        raise ClientException(f"A region can have at most {ENVIRONMENTS_MAX} compute environments: delete one first.")
    uuid, is_managed = tx.ids.uuid(), params["type"] == MANAGED
    cluster = (tags.get(CLUSTER_TAG) if not is_managed else None) or f"{name}_Batch_{uuid}"
    document: Document = {
        "computeEnvironmentName": name,
        "computeEnvironmentArn": arn(caller.account, caller.region, f"{ENVIRONMENT}/{name}"),
        "ecsClusterArn": ecs_arn(caller.account, caller.region, f"cluster/{cluster}"),
        "tags": tags,
        "type": params["type"],
        "state": params.get("state", ENABLED),
        "status": CREATING,
        "serviceRole": params.get("serviceRole") or service_linked_role(caller.account).arn,
        "containerOrchestrationType": "ECS",
        "uuid": uuid,
    }
    for member in ("unmanagedvCpus", "context", "ecsSettings"):
        if params.get(member) is not None:
            document[member] = params[member]
    asked = resources.get("desiredvCpus") or 0
    if is_managed:
        document["computeResources"] = _resources(tx, resources)
    if CLUSTER_TAG not in tags or is_managed:
        create_cluster(tx, {"clusterName": cluster}, caller)
    environment = environment_of(caller.region, document)
    document |= _health(tx, environment)
    tx.store.stored.add(SERVICE, TYPE, caller.region, name, document, tx.now_s, caller.owner)
    put_state(tx, caller.region, name, EnvironmentState(), EnvironmentState(asked=asked))
    tx.mark(environment.key)
    return {"computeEnvironmentName": name, "computeEnvironmentArn": document["computeEnvironmentArn"]}


def _resources(tx: Tx[Store], given: Params) -> Params:
    """Return computeResources as the environment stores them: with the defaults that Batch shows, and without empty members.

    Batch does not show the default of allocationStrategy. Clients compare these members with their own, for example Terraform.
    """
    resources = {member: value for member, value in given.items() if value not in (None, "", [], {})}
    if resources["type"] in ("EC2", "SPOT"):
        resources = {"minvCpus": 0, "securityGroupIds": [], "tags": {}, **resources}
        resources["desiredvCpus"] = 0  # the vCPUs of the instances; a new environment has no instances
        if not resources.get("imageId"):
            image_type = "ECS_AL2023_NVIDIA" if have_gpus(tx, resources["instanceTypes"]) else "ECS_AL2023"
            resources.setdefault("ec2Configuration", [{"imageType": image_type}])
    return resources


def _health(tx: Tx[Store], environment: ComputeEnvironment) -> Document:
    problem = problem_of(tx, environment)
    return {"status": INVALID, "statusReason": problem} if problem else {"status": VALID, "statusReason": HEALTHY}


# Update


def update_compute_environment(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change an environment.

    If settings of its instances change, the update is an infrastructure update: it replaces all instances.
    """
    environment = _existing(tx, caller, params["computeEnvironment"])
    if environment.status == DELETING:
        raise ClientException(f"Cannot update, compute environment {environment.name} is being deleted.")
    check_state(params)
    document: Document = {**environment.document}
    document |= {member: params[member] for member in ("state", "ecsSettings") if member in params}
    if params.get("unmanagedvCpus") is not None:
        if environment.type != UNMANAGED:
            raise ClientException("unmanagedvCpus must not be provided for a MANAGED compute environment.")
        document["unmanagedvCpus"] = params["unmanagedvCpus"]
    if params.get("serviceRole"):
        document["serviceRole"] = params["serviceRole"]
    if params.get("updatePolicy"):
        check_policy(params["updatePolicy"])
        document["updatePolicy"] = UPDATE_POLICY | document.get("updatePolicy", {}) | params["updatePolicy"]
    given = params.get("computeResources") or {}
    state = before = state_of(tx, caller.region, environment.name)
    if given:
        if environment.type == UNMANAGED:
            raise ClientException("computeResources must not be provided for an UNMANAGED compute environment.")
        document["computeResources"] = changed = _updated(tx, environment, given)
        if given.get("desiredvCpus") is not None:
            state = replace(state, asked=given["desiredvCpus"])
        document |= _health(tx, environment_of(caller.region, document))
        if environment.scales and _replaces(environment, changed, given):
            state = _new_generation(tx, state, document.get("updatePolicy", {}))
            document["status"] = UPDATING if document["status"] == VALID and state.old else document["status"]
    put_state(tx, caller.region, environment.name, before, state)
    put_document(tx, environment, document)
    tx.mark(environment.key)
    return {"computeEnvironmentName": environment.name, "computeEnvironmentArn": environment.arn}


def _updated(tx: Tx[Store], environment: ComputeEnvironment, given: Params) -> Params:
    """Return computeResources after an update. An empty value removes a member."""
    before = environment.document["computeResources"]
    given = {member: value for member, value in given.items() if member != "updateToLatestImageVersion"}
    if environment.is_fargate:
        given = {member: value for member, value in given.items() if member not in ("subnets", "securityGroupIds") or value}
    template = given.get("launchTemplate")
    if template is not None and not (template.get("launchTemplateId") or template.get("launchTemplateName")):
        given["launchTemplate"] = None  # an empty name removes the template
    merged = {**before, **given}
    desired = merged.pop("desiredvCpus", None)
    resources = {member: value for member, value in merged.items() if value not in (None, "", [], {})}
    if resources["type"] != before["type"] and (resources["type"] in ("EC2", "SPOT")) != environment.scales:
        raise ClientException(
            f"computeResources.type cannot be changed from {before['type']} to {resources['type']}: create another compute "
            "environment."
        )
    least, most = resources.get("minvCpus", 0), resources["maxvCpus"]
    if given.get("desiredvCpus") is not None and not least <= given["desiredvCpus"] <= most:
        raise ClientException(
            f"desiredvCpus must be between minvCpus ({least}) and maxvCpus ({most}): it is {given['desiredvCpus']}."
        )
    check_resources(resources)
    if "instanceTypes" in given:
        check_types(tx, resources["instanceTypes"])
    if not environment.scales:
        return resources
    desired = environment.desired_vcpus if desired is None else before["desiredvCpus"]
    return {"minvCpus": 0, "securityGroupIds": [], "tags": {}, **resources, "desiredvCpus": desired}


def _replaces(environment: ComputeEnvironment, changed: Params, given: Params) -> bool:
    """Whether an update replaces the instances. Raise an error if it would replace instances of the strategy BEST_FIT."""
    before = environment.document["computeResources"]
    different = [member for member in REPLACING if (changed.get(member) or None) != (before.get(member) or None)]
    different += ["updateToLatestImageVersion"] if given.get("updateToLatestImageVersion") else []
    if different and before.get("allocationStrategy", "BEST_FIT") == "BEST_FIT":
        raise ClientException(
            f"computeResources.{different[0]} of compute environment {environment.name} cannot be updated, because its allocation "
            f"strategy is BEST_FIT: only {', '.join(SCALING)} can be. Create another compute environment."
        )
    return bool(different)


def _new_generation(tx: Tx[Store], state: EnvironmentState, policy: Params) -> EnvironmentState:
    """Begin a new generation of groups. The groups of the current generation become old.

    The reconciler terminates an instance of an old group when its jobs have ended, and at the latest at the deadline, which the
    update policy sets.
    """
    minutes = 0 if policy.get("terminateJobsOnUpdate") else policy.get("jobExecutionTimeoutMinutes", TIMEOUT_MINUTES)
    deadline_s = tx.now_s + minutes * 60.0
    old = tuple(OldGroup(name, state.templates[type_], deadline_s) for type_, name in state.groups.items())
    return replace(state, groups={}, templates={}, idle={}, old=(*state.old, *old))


# Delete


def delete_compute_environment(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Begin to delete an environment. The reconciler terminates its instances, and then deletes the environment.

    As on AWS, do nothing if the environment does not exist.
    """
    environment = find_environment(tx, caller.region, params["computeEnvironment"])
    if environment is None:
        return {}
    if environment.state != DISABLED:
        raise ClientException(
            f"Cannot delete, state must be {DISABLED}: disable the compute environment {environment.name} with "
            "UpdateComputeEnvironment first."
        )
    if queues := queues_of_environment(tx, caller.region, environment.name):
        raise ClientException(
            f"Cannot delete, found existing JobQueue relationship: remove {environment.name} from {queues[0].name} with "
            "UpdateJobQueue, or delete the job queue."
        )
    put_document(tx, environment, {**environment.document, "status": DELETING, "statusReason": ""})
    tx.mark(environment.key)
    return {}


def drop(tx: Tx[Store], environment: ComputeEnvironment) -> None:
    """Delete an environment that has no instances, and its cluster. A cluster that a user created is not deleted."""
    is_own = environment.cluster == f"{environment.name}_Batch_{environment.uuid}"
    found = tx.store.clusters.get(environment.region, environment.cluster)
    if is_own and found is not None:
        tx.store.clusters.put(environment.region, environment.cluster, "INACTIVE", found[1])
    tx.store.stored.drop(SERVICE, TYPE, environment.region, environment.name)
    tx.store.stored.drop(SERVICE, STATE, environment.region, environment.name)
    tx.watch(environment.key, [])
    tx.changed(environment.key)


# Describe


def describe_compute_environments(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe environments. Names that do not exist are omitted."""
    given = params.get("computeEnvironments") or []
    if len(given) > DESCRIBED_MAX:
        raise ClientException(f"computeEnvironments can have at most {DESCRIBED_MAX} elements: it has {len(given)}.")
    candidates = listed(tx, caller, TYPE)
    if given:
        found = [find_environment(tx, caller.region, each) for each in given]
        candidates = among({each.name: each.document for each in found if each is not None})
    documents, more = PAGES.page(params, candidates)
    return {"computeEnvironments": [shown(document) for document in documents], **more}


# Shared


def _existing(tx: Tx[Store], caller: Caller, given: str) -> ComputeEnvironment:
    environment = find_environment(tx, caller.region, given)
    if environment is None:
        raise missing(ENVIRONMENT, given)
    return environment


def put_document(tx: Tx[Store], environment: ComputeEnvironment, document: Document) -> None:
    """Store the document of an environment if it has changed. Wake the commands and reconcilers that wait for the environment.

    If the change affects which jobs can run in the environment, also run the reconcilers of its job queues.
    """
    before = environment.document
    if document == before:
        return
    tx.store.stored.change(SERVICE, TYPE, environment.region, environment.name, document)
    tx.changed(environment.key)
    old, new = environment, environment_of(environment.region, document)
    if (old.takes_jobs, old.max_vcpus, old.kind) != (new.takes_jobs, new.max_vcpus, new.kind):
        for queue in queues_of_environment(tx, environment.region, environment.name):
            tx.mark(queue_key(environment.region, queue.name))
