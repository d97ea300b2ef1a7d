"""The reconciler `spot-interruption` terminates a spot instance at the time that its interruption notice gives."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import COUNTED
from corral.fleet import instances
from corral.fleet.spot_interruptions import key, reason_of
from corral.model.group import ENVIRONMENT
from corral.model.instance import INTERRUPTED_AT, InstanceState
from corral.services.autoscaling import activities, group_changes
from corral.store import Store


def end_interrupted_instance(tx: Tx[Store], instance_id: str) -> None:
    """Terminate an instance and its tasks. Then its Auto Scaling group, if it has one, launches another instance.

    The group of a compute environment launches no other instance, because the environment decides how many instances it needs.
    """
    instance = tx.store.instances.get(instance_id)
    at_s = instance.details.get(INTERRUPTED_AT) if instance is not None else None
    if instance is None or at_s is None or instance.state is not InstanceState.RUNNING:
        return
    if at_s > tx.now_s:
        tx.due(key(instance), at_s)
        return
    member = tx.store.groups.member(instance.id)
    group = tx.store.groups.get(instance.region, member.group) if member is not None else None
    if member is not None and group is not None and ENVIRONMENT in group.settings and member.state in COUNTED:
        group = group_changes.put(tx, group.but(desired=max(group.min_size, group.desired - member.weight)))
        cause = activities.sentence(tx, "an instance was taken out of service in response to a Spot Instance interruption.")
        group_changes.terminate(tx, group, member, cause, hooks=False)
    else:
        instances.terminate(tx, instance, reason_of(instance))
