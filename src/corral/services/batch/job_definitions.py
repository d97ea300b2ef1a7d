"""Operations on job definitions: RegisterJobDefinition, DeregisterJobDefinition, DescribeJobDefinitions.

Each revision of a job definition is stored as a JSON document with the members of DescribeJobDefinitions. The document also has
`_tasks`, the ECS task definitions of the revision (`task_documents.py`), and `_images`, the images of its containers.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.operations.pagination import among
from corral.services.batch.definition_rules import DEFINITION_MAX_BYTES, check_bytes, check_job_definition, platform_of
from corral.services.batch.errors import ClientException
from corral.services.batch.names import DEFINITION, NAME, PAGES, arn, checked_tags, short, shown
from corral.services.batch.property_defaults import with_defaults
from corral.services.batch.task_documents import all_task_properties, register_tasks
from corral.store import Store

Document = dict[str, Any]

ACTIVE, INACTIVE = "ACTIVE", "INACTIVE"
DESCRIBED_MAX = 100
REVISION_MAX = 2**31 - 1
TASKS, IMAGES = "_tasks", "_images"
STORED = (
    "jobDefinitionName", "type", "schedulingPriority", "containerProperties", "nodeProperties", "ecsProperties", "retryStrategy",
    "timeout", "consumableResourceProperties", "propagateTags", "platformCapabilities",
)  # fmt: skip


class JobDefinition(Struct, frozen=True):
    region: str
    name: str
    revision: int
    status: str  # ACTIVE or INACTIVE
    document: Document  # the stored JSON document. Do not change it, because the store returns the same object to other callers

    @property
    def tasks(self) -> list[str]:
        """FAMILY:REVISION of each ECS task definition.

        A multi-node job definition has one task definition for each range of nodes. Every other job definition has one.
        """
        tasks: list[str] = self.document[TASKS]
        return tasks

    @property
    def images(self) -> list[str]:
        """The images of all containers of the job definition."""
        images: list[str] = self.document[IMAGES]
        return images

    @property
    def platform(self) -> str:
        """EC2 or FARGATE."""
        return platform_of(self.document)

    @property
    def is_multinode(self) -> bool:
        return bool(self.document["type"] == "multinode")


def register_job_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["jobDefinitionName"]
    if not NAME.fullmatch(name):
        raise ClientException(f"Provided name {name[:200]} is not supported pattern[a-zA-Z_0-9-]{{1,128}}")
    check_job_definition(params)
    given = {member: params[member] for member in (*STORED, "parameters", "tags") if params.get(member) is not None}
    check_bytes("job definition", len(orjson.dumps(given)), DEFINITION_MAX_BYTES)
    platform = platform_of(params)
    document = {
        **with_defaults({member: params[member] for member in STORED if params.get(member) is not None}, platform),
        "parameters": params.get("parameters", {}),
        "containerOrchestrationType": "ECS",
        "tags": checked_tags(params),
    }
    tasks = all_task_properties(document)
    document[IMAGES] = list(dict.fromkeys(container["image"] for task in tasks for container in task["containers"]))
    document[TASKS] = register_tasks(tx, caller, name, document, platform)
    revision = tx.store.job_definitions.add(caller.region, name, document, caller.owner)
    return {
        "jobDefinitionName": name,
        "jobDefinitionArn": arn(caller.account, caller.region, f"{DEFINITION}/{name}:{revision}"),
        "revision": revision,
    }


def deregister_job_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Make a revision INACTIVE. Jobs that were submitted with it still run."""
    name, revision = split_definition(caller.region, params["jobDefinition"])
    if revision is None:
        raise ClientException(
            f"jobDefinition {params['jobDefinition']} has no revision: give NAME:REVISION or the ARN with the revision."
        )
    found = tx.store.job_definitions.get(caller.region, name, revision)
    if found is None:
        raise ClientException(f"Job definition {params['jobDefinition']} does not exist.")
    if found[1] == ACTIVE:
        tx.store.job_definitions.change(caller.region, name, revision, INACTIVE, found[2])
    return {}


def describe_job_definitions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    wanted, name, status = params.get("jobDefinitions"), params.get("jobDefinitionName"), params.get("status")
    if status is not None and status not in (ACTIVE, INACTIVE):
        raise ClientException(f"status '{status[:100]}' is not valid: give {ACTIVE} or {INACTIVE}.")
    if wanted:
        if len(wanted) > DESCRIBED_MAX:
            raise ClientException(f"jobDefinitions can have at most {DESCRIBED_MAX} elements, not {len(wanted)}.")
        if name is not None:
            raise ClientException("Specify either jobDefinitions or jobDefinitionName, not both.")
        named = {pair for given in dict.fromkeys(wanted) for pair in _named(tx, caller.region, given, status)}
        newest_first = {f"{family}:{REVISION_MAX - revision:010}": (family, revision) for family, revision in named}
        pairs, token = PAGES.page(params, among(newest_first))
        return {"jobDefinitions": [_description(caller, _existing(tx, caller.region, *pair)) for pair in pairs], **token}
    if name is not None:
        name, revision = split_definition(caller.region, name)
        if revision is not None:
            raise ClientException(
                f"jobDefinitionName {name}:{revision} has a revision: use jobDefinitions to describe one revision."
            )

    def listed(after: str, limit: int) -> list[tuple[str, JobDefinition]]:
        family, _, last = after.rpartition(":")
        number = whole_number(last, REVISION_MAX)
        if after and number is None:
            raise PAGES.wrong_token()
        rows = tx.store.job_definitions.listed(
            caller.region,
            status,
            family=name,
            after=(family, number) if number is not None else None,
            limit=limit,
            descending=True,
        )
        return [(f"{family}:{number}", _existing(tx, caller.region, family, number)) for family, number in rows]

    page, token = PAGES.page(params, listed)
    return {"jobDefinitions": [_description(caller, each) for each in page], **token}


def split_definition(region: str, given: str) -> tuple[str, int | None]:
    """Split NAME, NAME:REVISION or an ARN of either into name and revision. The revision is None if it is not given."""
    name, colon, revision = short(DEFINITION, region, given).partition(":")
    number = whole_number(revision, REVISION_MAX) if colon else None
    if not NAME.fullmatch(name) or (colon and not number):
        raise ClientException(
            f"Job definition '{given[:300]}' is not valid: give NAME, NAME:REVISION or its ARN in {region}. A revision is a number "
            "of 1 or more."
        )
    return name, number


def find_definition(tx: Tx[Store], region: str, given: str, owner: str) -> JobDefinition | None:
    """Return the revision that `given` names.

    If `given` has no revision, return the newest ACTIVE revision of the owner, or else the newest of all. Return None if there is
    no such revision.
    """
    name, revision = split_definition(region, given)
    found = tx.store.job_definitions.get(region, name, revision, owner)
    return JobDefinition(region, name, *found) if found is not None else None


def definition_of(tx: Tx[Store], region: str, definition_arn: str) -> JobDefinition:
    name, revision = split_definition(region, definition_arn)
    assert revision is not None, "a job refers to a revision"
    return _existing(tx, region, name, revision)


def _existing(tx: Tx[Store], region: str, name: str, revision: int) -> JobDefinition:
    found = tx.store.job_definitions.get(region, name, revision)
    assert found is not None, "revisions of job definitions are never deleted"
    return JobDefinition(region, name, *found)


def _named(tx: Tx[Store], region: str, given: str, status: str | None) -> list[tuple[str, int]]:
    """Return the name and number of the revision that an element of `jobDefinitions` names.

    If the element contains no revision, return the newest revisions of the job definition.
    """
    name, revision = split_definition(region, given)
    if revision is None:
        return tx.store.job_definitions.listed(region, status, family=name, after=None, limit=DESCRIBED_MAX, descending=True)
    found = tx.store.job_definitions.get(region, name, revision)
    return [(name, revision)] if found is not None and status in (None, found[1]) else []


def _description(caller: Caller, definition: JobDefinition) -> Document:
    """Describe a revision in the form of DescribeJobDefinitions."""
    return {
        **shown(definition.document),
        "jobDefinitionArn": arn(caller.account, caller.region, f"{DEFINITION}/{definition.name}:{definition.revision}"),
        "revision": definition.revision,
        "status": definition.status,
    }
