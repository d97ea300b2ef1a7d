"""Input and output of the scheduler, which decides where tasks and instances run.

A slot is the capacity of one instance, total and free. A pool is a set of slots. A claim is a task, an instance launch or a Batch
job that waits for capacity in a pool. A demand is what a claim needs: GPUs, CPU, memory and placement rules. Peers are the
claims of a pool that have equal demands and equal time limits. Claims are sorted by rank, and "older" means a smaller rank:
among claims of equal priority, the claim that waits longest has the smallest rank. A withheld GPU is a GPU that tasks may not get.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.instance import ec2_id
from corral.model.task import Demand, PlacementRules

T = TypeVar("T")
Shares = tuple[tuple[str, int], ...]  # (GPU id, memory in MiB) of each run that shares a GPU with other runs
NO_ACCOUNTS: frozenset[str] = frozenset()
Links = tuple[tuple[int, ...], ...]  # the distance of each GPU of a host to each other GPU; smaller is closer


class Slot(Struct):
    """The capacity of one instance: its total and its free resources."""

    id: str  # the id of the instance
    total: Demand  # all resources, except withheld GPUs
    cpu_units: int  # free CPU units
    memory_mib: int  # free memory
    gpus: list[str]  # free GPUs, in the order of `positions`
    positions: dict[str, int]  # id of each GPU that is not withheld → its index in `links`
    connected: bool = True
    links: Links | None = None  # None: unknown, or all distances are equal
    withheld: dict[str, str] = field(default_factory=dict)  # id of each GPU that tasks may not get → the reason
    draining: bool = False  # the status is DRAINING: the slot gets no new tasks
    attributes: dict[str, str] = field(default_factory=dict)  # built-in and custom attributes
    tasks: dict[str, int] = field(default_factory=dict)  # number of tasks that should run here, by group (`Task.group_key`)
    running: int = 0  # number of tasks in state RUNNING
    pending: int = 0  # number of tasks in state PENDING
    registered_at_s: float = 0.0
    lent: int = 0  # the number of GPUs of a host that other instances own now
    instance_group: str = ""  # the name of its Auto Scaling group; empty: none
    gpu_memory: dict[str, int] = field(default_factory=dict)  # the memory in MiB of each GPU of the instance, also of withheld GPUs
    # GPUs that tasks share → their memory in MiB that is not allocated to a task. They are in `positions`, and not in `gpus`.
    shared: dict[str, int] = field(default_factory=dict)
    excluded: int = 0  # the number of GPUs of a host that --exclude-gpus names; they are not in the other members
    gpu_models: dict[str, str] | None = None  # GPU id → model; None: the GPUs of the instance, and the lent ones, have one model
    lent_models: tuple[str, ...] = ()  # the model of each lent GPU; empty if all GPUs have one model
    moves_to: str = ""  # the cluster to which a host moves after its last task; it is draining until then
    lent_memory_mib: int = 0  # the memory of the largest GPU that another instance owns now
    host_id: str = ""  # the host of the instance; empty: a host that no other slot has
    address: str = ""  # the address of the host for tasks on other hosts; empty: it has none
    accounts: frozenset[str] = NO_ACCOUNTS  # the Unix accounts of users that the host has
    lender: str = ""  # the owner of an EC2 instance; empty: the slot is that of a host

    @property
    def whole(self) -> Demand:
        """The total resources that the slot would have if no other instance owned GPUs of its host."""
        if not self.lent:
            return self.total
        largest_mib = max(self.total.gpu_memory_mib, self.lent_memory_mib)
        return Demand(self.total.gpus + self.lent, self.total.cpu_units, self.total.memory_mib, gpu_memory_mib=largest_mib)

    @property
    def host(self) -> str:
        return self.host_id or self.id

    @property
    def takes_tasks(self) -> bool:
        return self.connected and not self.draining

    def free(self) -> Demand:
        return Demand(len(self.gpus), self.cpu_units, self.memory_mib)


TASK, INSTANCE, JOB = "task", "instance", "job"  # kinds of claims
Rank = tuple[float, ...]
EQUAL_SHARE = 0.0  # the share of every owner: Corral does not compare how much the owners have used


def claim_rank(since_s: float, priority: int = 0, share: float = EQUAL_SHARE, order: tuple[float, ...] = ()) -> Rank:
    """Return the rank of a claim. The claim with the smallest rank is served first.

    Higher priorities are served first, then owners with a smaller share, then claims that wait longer. `order` sorts claims that
    are equal in all this: the members of an array that one request launches, and the Batch jobs of a pool. The rank is stored with
    the claim, so a change of this function affects only new claims.
    """
    return (-priority, share, since_s, *order)


class Claim(NamedTuple):
    """A task, an instance launch or a Batch job that waits for capacity in a pool.

    It is a tuple because queues compare claims often.
    """

    rank: Rank  # from `claim_rank`; for jobs, `job_rank` in `decide/tasks/job_order.py` calls it
    kind: str
    id: str  # the id of the task or the instance; for jobs LINE/JOB, the ids of a line (`model/job_line.py`) and of its first job
    demand: Demand
    # The longest time from the placement of the claim until its resources are free again. `longest_time_s` in
    # `decide/placement/backfill.py` computes it from a time limit. None: the claim has no time limit.
    longest_s: float | None = None
    owner: str = ""

    @property
    def name(self) -> str:
        """The name of the claim in messages."""
        if self.kind == TASK:
            return f"task {self.id}"
        return f"job {self.id.partition('/')[2]}" if self.kind == JOB else f"{self.kind} {ec2_id(self.id)}"


class Placement(Struct, frozen=True):
    slot_id: str
    gpu_ids: tuple[str, ...]
    nodes: tuple[Placement, ...] = ()  # of a multi-node job: one placement for each node; the first is equal to this placement


class Unplaceable(Struct, frozen=True):
    """The reason why no slot is suitable for a demand. `resource` is ECS's name for the reason.

    GPU, MEMORY or CPU: too little is free. AGENT: no host is connected. DRAINING: no slot accepts new tasks. memberOf or
    distinctInstance: the placement constraint excludes all slots.
    """

    resource: str
    detail: str


class Ending(Struct, frozen=True):
    """The resources that a placed task with a time limit holds, and when its time limit ends.

    The time limit counts from the start of the task. Until the task has started, it counts from the placement.
    """

    task_id: str
    limit_at_s: float
    gpu_ids: tuple[str, ...]  # the GPUs that only this task has
    cpu_units: int
    memory_mib: int
    shares: Shares = ()  # its memory on a GPU that it shares with other tasks


class Opening(Struct, frozen=True):
    """The time at which a slot has room for a waiting claim, because the time limits of the slot's tasks have ended by then."""

    slot_id: str
    at_s: float
    earliest_s: float  # the slot cannot have room for the claim before this time, even if all tasks without a time limit end now
    spare: Demand  # what is free on the slot at `at_s`, minus what the claim needs


class Reservation(Struct, frozen=True):
    """The free resources of some slots are reserved for a claim that needs more than is free now.

    A multi-node job can reserve several slots. Every other claim reserves one slot, or two: the slot that lacks least, and the slot
    on which time limits make room first.
    """

    claim: Claim
    wanted: dict[str, Demand]  # id of each reserved slot → what the claim will use there
    opening: Opening | None = None  # when the claim can start on one of these slots; None: this is unknown
    # Slot id → GPUs that older paused tasks wait for, to continue on them. If `wanted` is empty, `claim` is the first of them.
    kept: dict[str, frozenset[str]] = field(default_factory=dict)

    def keep(self, demand: Demand) -> Reservation:
        """Return the reservation with the GPUs of a paused task, which is behind `claim` or is `claim` itself."""
        slot_id = demand.rules.slot_id if demand.rules is not None else ""
        return replace(self, kept={**self.kept, slot_id: self.kept.get(slot_id, frozenset()).union(demand.own_gpus)})


class SlotGroup(Protocol):
    """Slots with the same number of free GPUs, sorted by free memory and CPU."""

    gpus: int

    def fitting(self, memory_mib: int, cpu_units: int) -> Iterable[Sequence[str]]:
        """Yield the ids of the slots that have at least this much free, least free memory first.

        Slots with equal free memory and CPU are in one sequence.
        """
        ...

    def roomiest(self) -> Iterable[str]:
        """Yield the ids of all slots, most free memory first."""
        ...


class FreeSlots(Protocol):
    """Slots that accept new tasks, indexed by their free resources."""

    def groups(self, min_gpus: int = 0) -> Iterable[SlotGroup]:
        """Yield the slots with at least `min_gpus` free GPUs, grouped by the number of free GPUs, fewest first.

        With `ALL_GPUS`, which only a Pool supports, yield the slots whose GPUs are all free.
        """
        ...


class SpreadPart(FreeSlots, Protocol):
    """Slots with equal values of the attributes over which tasks are spread."""

    def __len__(self) -> int: ...

    def sample(self, number: int) -> str:
        """Return the id of the slot with this number. The numbers start at 0."""
        ...


class CompiledRules(Struct, frozen=True):
    """Placement rules, compiled to functions that take a slot."""

    allows: Callable[[Slot], bool]
    # Functions from a slot to the value over which tasks are spread. None means that tasks are spread over instances.
    spreads: tuple[Callable[[Slot], str] | None, ...] = ()
    group: str = ""  # the group whose tasks are spread
    by_cpu: bool = False  # True: sort the slots of a SpreadPart by free CPU, least first; False: by free memory
    packs: bool = False  # the strategy is `binpack`: prefer the slot with the least free resources of all parts with equal tasks
    drawn: bool = False  # the strategy is `random`: each SpreadPart must support `sample`


class Selection(FreeSlots, Protocol):
    """The slots that placement rules allow. The selection is updated when slots or tasks change."""

    allowed: int  # number of slots

    def first_fitting(self, wanted: tuple[int, int, int]) -> Sequence[str]:
        """Return the slots that the spread and binpack steps of the strategy prefer, among the slots with this much free.

        `wanted` is a number of GPUs, memory and CPU. All slots of the result have equal free resources.
        """
        ...

    def in_order(self) -> Iterable[Sequence[SpreadPart]]:
        """Yield all slots in parts, those with the fewest tasks of the group first.

        The parts of one sequence have the same number of tasks of the group.
        """
        ...


class Pool(FreeSlots, Protocol):
    """The free capacity of a set of slots. Indexes make it possible to choose a slot without reading all of them."""

    free_gpus: int  # free GPUs of the slots that accept tasks
    total_gpus: int
    connected: int  # number of slots that accept tasks
    peers_depending_on_tasks: int  # number of sets of peers whose placement rules depend on the tasks that run on a slot
    peers_with_limits: int  # number of sets of peers that have a time limit
    shown_cluster: str  # the cluster of the hosts, which reasons name; empty: all hosts are in one cluster, or these are no hosts

    def derived(self, key: Any, compute: Callable[[], T]) -> T:
        """Return a value that `compute` derives from the pool. Call `compute` again only if the pool has changed.

        A new claim behind the first of its peers is not a change.
        """
        ...

    def crowded_hosts(self) -> Iterable[Collection[str]]:
        """Yield the ids of the slots of each host that has several slots in this pool."""
        ...

    def sharing(self) -> Iterable[str]:
        """Return the ids of the slots on which tasks share GPUs."""
        ...

    def groups_by_held(self) -> Iterable[SlotGroup]:
        """Yield the slots that have GPUs, grouped by the number of GPUs in use and then by the total number, fewest first."""
        ...

    def withheld(self) -> Sequence[str]:
        """Return the reason for each withheld GPU."""
        ...

    def selection(self, rules: PlacementRules, compile_rules: Callable[[], CompiledRules]) -> Selection:
        """Return the slots that the rules allow now. `compile_rules` is called if the pool has not compiled these rules yet."""
        ...

    def slot(self, slot_id: str) -> Slot: ...

    def __contains__(self, slot_id: str) -> bool: ...

    def slots(self) -> Iterable[Slot]: ...

    def totals(self) -> Iterable[Demand]:
        """Return the distinct sizes of all slots, including disconnected slots.

        The size of a host includes the GPUs that its instances own.
        """
        ...

    def sizes(self) -> Iterable[tuple[Demand, int]]:
        """Yield each element of `totals` with the number of slots of this size."""
        ...

    def has_claims(self) -> bool: ...

    def heads(self) -> Sequence[Claim]:
        """Return the oldest of each set of peers, oldest first. Claims that wait for a limit of their owner are left out."""
        ...

    def turns(self) -> Iterable[Claim]:
        """Yield the oldest of each set of peers, oldest first, for a caller that may place it.

        If a claim no longer waits when the next one is requested, its peers get another turn. The order follows what has changed
        since. If claims of several owners wait, the ranks are the stored ones (`ranked`).
        """
        ...

    def head(self, demand: Demand) -> Claim | None:
        """Return the oldest claim with this demand."""
        ...

    def waiting_demands(self) -> Iterable[tuple[Demand, int, Claim]]:
        """Yield each demand for which claims wait, the number of these claims, and the oldest of them."""
        ...

    def waiting(self) -> int: ...

    def ranked(self, claim: Claim) -> Claim:
        """Return a claim, whose rank is stored, with the rank that it has in this pool now."""
        ...

    def is_open(self, claim: Claim) -> bool:
        """Whether no limit of its owner holds a waiting claim back."""
        ...

    def in_order(self) -> Iterator[Claim]:
        """Yield all claims in the order in which they are served, as long as no claim is added or removed.

        Claims that wait for a limit of their owner are last.
        """
        ...

    def place_in_line(self, claim: Claim) -> int:
        """Return the place of a claim among all claims of the pool. The first claim has the place 1."""
        ...

    def slots_with_endings(self) -> Collection[str]:
        """Return the ids of the slots that have tasks with a time limit."""
        ...

    def endings(self, slot_id: str) -> Sequence[Ending]:
        """Return the tasks of a slot that have a time limit. The task whose time limit ends first is the first."""
        ...
