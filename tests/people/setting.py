"""The people of the attempts: root and alice, who own things, and bob, who tries to reach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from people import compute_table, control_table, data_table, stack_table
from people.attempts import Actor, Names
from people.world import build, make_role, trust_with

ATTEMPTS = (*data_table.ATTEMPTS, *compute_table.ATTEMPTS, *stack_table.ATTEMPTS, *control_table.ATTEMPTS)
# Attempts that succeeded before Corral refused them
HOLES = frozenset(
    {"let one's hook notify another's queue", "pass a role to the replication of one's own bucket", "import the export of another",
     "pass a role to the replication of a bucket", "see a consumable resource", "see the warm pool of a group",
     "run the image of another", "run it as a job", "make a user by the role of one's function"}
)  # fmt: skip
SHORT = tuple(each for at, each in enumerate(ATTEMPTS) if at % 3 == 0 or each.name in HOLES)  # for the test suite
PEOPLE = ("root", "alice", "bob")
# Tables that the attempts change: a stack whose resources are refused is a stack of bob until he deletes it.
OWN_STACKS = ("state.db:stack:", "state.db:stack_event:", "state.db:stack_resource:", "state.db:stack_template:")


def prepare(root: Actor) -> None:
    """Make what the administrator makes: roles, and the line of jobs for all users."""
    for name in PEOPLE:
        make_role(root, name)
    batch = root.client("batch")
    batch.create_compute_environment(computeEnvironmentName="line", type="UNMANAGED", tags={"corral:cluster": "default"})
    order = [{"order": 1, "computeEnvironment": "line"}]
    batch.create_job_queue(jobQueueName="line", priority=1, computeEnvironmentOrder=order)


def add_user(root: Actor, name: str, *groups: str) -> Actor:
    """Add a person as the test suite does: without `corral connect`."""
    iam = root.client("iam")
    iam.create_user(UserName=name)
    for group in groups:
        iam.add_user_to_group(GroupName=group, UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return Actor(name, root.url, key["AccessKeyId"], key["SecretAccessKey"])


def worlds_of(root: Actor, people: Mapping[str, Actor], owners: Sequence[str] = PEOPLE) -> dict[str, Names]:
    """Let alice and bob run processes on the host, and let each owner make one of everything. Return the ids."""
    for name in ("alice", "bob"):
        trust_with(root, name)
    return {name: build(actor) for name, actor in {"root": root, **people}.items() if name in owners}
