"""AWS Batch jobs: their states, the allowed transitions between states, and the resources that a job needs.

A job is what SubmitJob creates. An array job is a parent whose children run the same command with different indexes. A multi-node
job is a parent whose nodes run at the same time. An attempt is one execution of a job: one ECS task, or one per node.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from corral.model.numbers import whole_number
from corral.model.task import Changeable, Demand

STARTED_BY = "batch:"  # the prefix of `Task.started_by`; the job id follows
WAITS = -1  # the value of `Job.expanded` while an array waits for other jobs
INDEX_MAX = 9_999  # the largest index of a child or node

# Status reasons, as AWS words them
DEPENDENCY_FAILED = "Dependent Job failed"
CHILD_FAILED = "Array Child Job failed"
TIMED_OUT = "Job attempt duration exceeded timeout"
HOST_TERMINATED = "Host EC2 (instance {}) terminated."


class JobState(StrEnum):
    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"  # waits for other jobs; an array is also PENDING while its children wait and run
    RUNNABLE = "RUNNABLE"  # waits for capacity
    STARTING = "STARTING"  # its task is placed
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED})
_BEFORE_START = frozenset({JobState.PENDING, JobState.RUNNABLE, JobState.FAILED})
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.SUBMITTED: _BEFORE_START | {JobState.SUCCEEDED},  # an array can end before its state has become PENDING
    JobState.PENDING: _BEFORE_START | {JobState.SUCCEEDED},  # an array is PENDING until its last child has ended
    JobState.RUNNABLE: frozenset({JobState.STARTING, JobState.FAILED}),
    # A short task may end before the server knows that it was running.
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.RUNNABLE, JobState.SUCCEEDED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.RUNNABLE, JobState.SUCCEEDED, JobState.FAILED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
}


class JobKind(StrEnum):
    SINGLE = "single"
    ARRAY = "array"  # the parent of CHILD jobs
    CHILD = "child"
    MULTI_NODE = "multi-node"  # the parent of NODE jobs
    NODE = "node"


class ExitRule(Struct, frozen=True, array_like=True):
    """One element of `evaluateOnExit`. An empty pattern matches everything. The first rule that matches decides."""

    retries: bool  # the action is RETRY; otherwise EXIT
    on_status_reason: str = ""
    on_reason: str = ""
    on_exit_code: str = ""


class Dependency(Struct, frozen=True, array_like=True):
    """A dependency of a job on another job.

    With the type "", the whole other job must succeed. With N_TO_N, each child needs the child with the same index of the other
    array. With SEQUENTIAL, each child needs the child before it in its own array.
    """

    job_id: str  # empty for SEQUENTIAL
    type: str = ""  # "", "N_TO_N" or "SEQUENTIAL"


class NodeGroup(Struct, frozen=True):
    """A range of nodes of a multi-node job with one container definition."""

    first: int
    last: int
    definition_arn: str  # of the ECS task definition
    demand: Demand
    overrides: dict[str, Any] = field(default_factory=dict)  # in ECS's form
    asks_for_gpus_by_image: bool = False  # the image or environment of these nodes sets NVIDIA_VISIBLE_DEVICES


class JobSpec(Struct, frozen=True):
    """Everything that the attempts of a job need. An array and all its children share one spec."""

    definition_arn: str  # of the Batch job definition, with its revision
    task_definition: str  # the ECS family and revision, FAMILY:REVISION
    demand: Demand  # the resources of one attempt; of the largest node for a multi-node job
    overrides: dict[str, Any] = field(default_factory=dict)  # for the ECS task, in ECS's form
    parameters: dict[str, str] = field(default_factory=dict)
    attempts_max: int = 1
    exit_rules: tuple[ExitRule, ...] = ()
    timeout_s: float | None = None
    share: str = ""  # the share identifier
    priority: int = 0  # the scheduling priority
    tags: dict[str, str] = field(default_factory=dict)
    propagate_tags: bool = False
    resources: tuple[tuple[str, int], ...] = ()  # consumable resources: name, quantity
    nodes: tuple[NodeGroup, ...] = ()
    main_node: int = 0
    asks_for_gpus_by_image: bool = False  # an image or environment sets NVIDIA_VISIBLE_DEVICES, so jobs wait for a free GPU
    request: dict[str, Any] = field(default_factory=dict)  # members of SubmitJob that DescribeJobs returns unchanged
    only_in_docker: bool = False  # a caller that may not run on the host has submitted the job
    as_account: bool = False  # also if `only_in_docker`, processes may run as the Unix account of the job's owner
    passed_from: str = ""  # `removed_owner`, if a removed user has submitted the job: it does not get rights of the new owner


class Attempt(Struct, frozen=True, array_like=True):
    """One execution of a job that has ended."""

    task_id: str  # empty: the job ended before a task existed
    cluster: str
    instance_id: str
    started_at_s: float | None
    stopped_at_s: float
    exit_code: int | None
    reason: str  # the reason of the container
    status_reason: str
    log_stream: str
    container: str = ""  # the container whose exit code and reason these are


class Job(Changeable, frozen=True):
    """A job, a parent, a child or a node."""

    id: str  # a UUID; a child adds :INDEX, a node adds #INDEX
    region: str
    queue: str  # the name of the job queue
    name: str
    kind: JobKind
    state: JobState
    spec: JobSpec
    created_at_s: float
    size: int = 0  # number of children or nodes
    index: int | None = None  # of a child or node
    parent_id: str = ""
    depends_on: tuple[Dependency, ...] = ()
    started_at_s: float | None = None
    stopped_at_s: float | None = None
    runnable_at_s: float | None = None  # when it last became RUNNABLE
    status_reason: str = ""
    task_id: str = ""  # the ECS task of the current attempt
    environment: str = ""  # the compute environment of the current attempt
    attempts: tuple[Attempt, ...] = ()  # ended attempts
    cancelled: bool = False  # CancelJob has ended the job, or is ending the children of this array
    terminated: bool = False  # TerminateJob has ended the job, or is ending it
    number: int = 0  # the number of its row; for a child or node, of the parent's row. A newer job has a larger number
    expanded: int = 0  # of an array: the number of children that have rows; WAITS: the array waits for other jobs
    check_from: int | None = None  # of an array: the index from which on the reconciler must check the children; None: it need not
    owner: str = ""  # see `model/principal.py`; a child has the owner of its array

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_stopping(self) -> bool:
        """Whether CancelJob or TerminateJob was called for the job."""
        return self.cancelled or self.terminated

    @property
    def definition(self) -> str:
        """The name and the revision of its job definition, NAME:REVISION."""
        return self.spec.definition_arn.rpartition("/")[2]


class ListedJob(Struct, frozen=True):
    number: int  # in the store; 0 for children and nodes
    id: str
    name: str
    kind: JobKind
    state: JobState
    definition: str  # NAME:REVISION
    created_at_s: float
    started_at_s: float | None
    stopped_at_s: float | None
    status_reason: str
    share: str
    size: int
    index: int | None
    cancelled: bool
    terminated: bool
    attempt: Attempt | None  # the last attempt that ended
    cursor: tuple[float, ...]  # the position in the list; the next page begins after it


def child_id(parent: Job, index: int) -> str:
    """Return the id of a child of an array, or of a node of a multi-node job."""
    return f"{parent.id}{':' if parent.kind is JobKind.ARRAY else '#'}{index}"


def parent_and_index(job_id: str) -> tuple[str, int] | None:
    """Split the id of a child or node into the id of its parent and its index. Return None for other ids."""
    for mark in ":#":
        parent_id, found, text = job_id.partition(mark)
        if found:
            index = whole_number(text, INDEX_MAX)
            return None if index is None or str(index) != text else (parent_id, index)
    return None
