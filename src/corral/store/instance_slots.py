"""The slot of an instance, which placement uses, derived from the rows of the instance, its host, its GPUs and its tasks."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from corral.core.database import Database
from corral.model.instance import Instance, InstanceState
from corral.model.placement import Links, Slot
from corral.model.task import Demand
from corral.store.instance_attributes import built_in_attributes, host_attributes, host_options, launch_attributes
from corral.store.task_rows import pause_of

HOLD_PREFIX = "corral.hold."  # the instance attribute `corral.hold.<GPU id>` reserves that GPU; its value is the reason


def slot_of(database: Database, instance: Instance, held: Mapping[str, tuple[int, int]], attributes: Mapping[str, str]) -> Slot:
    """Derive the slot of an instance from the current rows. `held` are the leases of its GPUs."""
    name, connected, links, options = database.execute(
        "SELECT name, connected AND NOT EXISTS (SELECT 1 FROM old_run WHERE host_id = host.id), links, options FROM host "
        "WHERE id = ?",
        (instance.host_id,),
    ).fetchone()
    of_host = host_options(options)
    rows = database.execute(
        "SELECT id, excluded, foreign_use, instance_id, model, simulated, fault, memory_mib FROM gpu "
        "WHERE host_id = ? AND present = 1 ORDER BY position",
        (instance.host_id,),
    ).fetchall()
    moves_to = instance.joins if instance.is_host and instance.joins != instance.cluster else ""
    holds = holds_of(attributes)
    offered: dict[str, str] = {}  # GPU id → foreign processes that use the GPU, as JSON
    withheld: dict[str, str] = {}
    positions: dict[str, int] = {}
    gpu_memory: dict[str, int] = {}
    models, is_simulated = set[str](), False
    for position, (gpu_id, excluded, foreign, instance_id, model, simulated, fault, gpu_memory_mib) in enumerate(rows):
        if instance_id != instance.id or excluded:
            continue
        gpu_memory[gpu_id] = gpu_memory_mib
        models.add(model)
        is_simulated = is_simulated or bool(simulated)
        if fault or gpu_id in holds:
            withheld[gpu_id] = f"failed: {fault}" if fault else f"'{holds[gpu_id]}'"
            continue
        offered[gpu_id] = foreign
        if not foreign:
            positions[gpu_id] = position
        elif gpu_id not in held:  # a run keeps its leased GPU, even if a foreign process uses it too
            withheld[gpu_id] = _in_use(foreign)
    usable = [gpu_id for gpu_id in offered if gpu_id not in withheld]
    lent = [row for row in rows if instance.is_host and row[3] != instance.id and not row[1]]
    is_mixed = len(models | {row[4] for row in lent}) > 1
    slot = Slot(
        id=instance.id,
        total=Demand(
            len(usable),
            instance.cpu_units,
            instance.memory_mib,
            gpu_memory_mib=max((gpu_memory[gpu_id] for gpu_id in usable), default=0),
        ),
        cpu_units=instance.cpu_units,
        memory_mib=instance.memory_mib,
        gpus=[gpu_id for gpu_id in positions if gpu_id not in held],
        positions=positions,
        connected=bool(connected),
        links=_useful_links(links),
        withheld=withheld,
        draining=instance.status != "ACTIVE" or instance.state is not InstanceState.RUNNING or bool(moves_to),
        attributes={
            **built_in_attributes(instance.type, name, models, is_simulated=is_simulated),
            **launch_attributes(instance.details),
            **host_attributes(of_host),
            **attributes,
        },
        registered_at_s=instance.launched_at_s or instance.created_at_s,
        lent=len(lent),
        instance_group=instance.group,
        gpu_memory=gpu_memory,
        shared={
            gpu_id: gpu_memory[gpu_id] - allocated_mib
            for gpu_id, (_, allocated_mib) in held.items()
            if allocated_mib and gpu_id in positions
        },
        lender="" if instance.is_host else instance.owner,
        excluded=sum(row[1] for row in rows) if instance.is_host else 0,
        gpu_models={row[0]: row[4] for row in rows if row[0] in gpu_memory} if is_mixed else None,
        lent_models=tuple(row[4] for row in lent) if is_mixed else (),
        moves_to=moves_to,
        lent_memory_mib=max((row[7] for row in lent), default=0),
        host_id=instance.host_id or "",
        address=of_host.address,
    )
    _count_tasks(database, slot)
    return slot


def holds_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the GPUs that attributes of an instance reserve, each with the reason."""
    return {name.removeprefix(HOLD_PREFIX): value for name, value in attributes.items() if name.startswith(HOLD_PREFIX)}


def _count_tasks(database: Database, slot: Slot) -> None:
    """Subtract the resources of the slot's tasks, and count the tasks.

    Fargate tasks use resources too, but are not counted, because the API shows them on no instance.
    """
    rows = database.execute(
        "SELECT region || '/' || cluster || '/' || task_group, state, desired, launch_type, count(*), sum(cpu_units), "
        "sum(memory_mib) FROM task WHERE instance_id = ? AND state IN ('PENDING', 'RUNNING') GROUP BY 1, 2, 3, 4",
        (slot.id,),
    )
    sql = "SELECT pause FROM task WHERE instance_id = ? AND pause IS NOT NULL AND state != 'STOPPED'"
    paused = database.execute(sql, (slot.id,))
    slot.memory_mib -= sum([pause_of(text).held_mib for (text,) in paused.fetchall()])
    for group, state, desired, launch_type, count, used_cpu, used_memory in rows:
        slot.cpu_units -= used_cpu
        slot.memory_mib -= used_memory
        if launch_type == "EC2":
            slot.running += count if state == "RUNNING" else 0
            slot.pending += count if state == "PENDING" else 0
            if desired == "RUNNING":
                slot.tasks[group] = slot.tasks.get(group, 0) + count


def _in_use(foreign: str) -> str:
    processes = orjson.loads(foreign)
    more = " and others" if len(processes) > 1 else ""
    return f"process {processes[0][0]} ({processes[0][1]}){more} computes on it"


def _useful_links(text: str) -> Links | None:
    """The distances between GPUs. None if all distances are equal, because then placement need not compare them."""
    rows = orjson.loads(text) if text else []
    distances = {far for at, row in enumerate(rows) for other, far in enumerate(row) if other != at}
    return tuple(tuple(row) for row in rows) if len(distances) > 1 else None
