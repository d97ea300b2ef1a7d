"""Checkers of Auto Scaling groups: their members, their activities, and what is left of them in the end."""

from __future__ import annotations

from corral.core.core import Outcome
from corral.model.group import LAUNCH_STATES, TERMINATION_STATES, Group, GroupMember, LifecycleState
from corral.model.instance import InstanceState
from corral.services.autoscaling.handlers import HANDLERS
from simulation.checkers import Checker, Rows, Violation, read_rows
from simulation.clients import CALLER, FLEET

SCALED_IN = "in response to a difference between desired and actual capacity, shrinking the capacity"
COUNTED = (*LAUNCH_STATES, LifecycleState.IN_SERVICE)


class GroupChecker(Checker):
    """The base class of those that look at each group after a transaction."""

    def transaction_done(self, outcome: Outcome) -> None:
        if not self.world.plan.with_groups or outcome.faults:
            return
        store = self.world.plane.store
        for group in self.world.group_clients.groups():
            self.group_seen(group, store.groups.members(group.region, group.name))

    def group_seen(self, group: Group, members: list[GroupMember]) -> None: ...

    def scale_in(self, member: GroupMember) -> str:
        """Why a scale-in has chosen a member; empty if none has.

        A scale-in removes the difference between the desired and the actual capacity. A user who terminates an instance and lowers
        the desired capacity with the same request also shrinks the group, but the protection from scale-in does not apply then.
        """
        activity = self.world.plane.store.groups.activity(member.activity) if member.state in TERMINATION_STATES else None
        return activity.cause if activity is not None and SCALED_IN in activity.cause else ""

    def is_due(self, group: Group) -> bool:
        found = self.world.plane.store.execute("SELECT 1 FROM due WHERE key = ?", (group.key,))
        return found.fetchone() is not None


class GroupsAreReconciled(GroupChecker):
    """After a transaction a group has its desired capacity, or a due row says when it goes on, or its instances are protected."""

    def group_seen(self, group: Group, members: list[GroupMember]) -> None:
        counted = [member for member in members if member.state in COUNTED]
        if group.status or self.is_due(group):
            return
        if len(counted) < group.desired:
            raise Violation(f"{group.name} should have {group.desired} instances and launches none: {counted}")
        if len(counted) > group.desired and not all(member.protected for member in counted):
            raise Violation(f"{group.name} should have {group.desired} instances and terminates none: {counted}")


class MembersAreInstances(GroupChecker):
    """An instance names its group exactly while it is a member of it: no instance is lost, and none has two groups."""

    def transaction_done(self, outcome: Outcome) -> None:
        if not self.world.plan.with_groups or outcome.faults:
            return
        store = self.world.plane.store
        named = store.execute("SELECT id, group_name FROM instance WHERE state != 'terminated' AND group_name != '' ORDER BY id")
        members = store.execute("SELECT instance_id, name FROM group_member ORDER BY instance_id")
        instances, of_groups = dict(named.fetchall()), dict(members.fetchall())
        lost = {instance_id: name for instance_id, name in instances.items() if of_groups.get(instance_id) != name}
        if lost:
            raise Violation(f"these instances belong to groups that do not know them: {lost}")
        for instance_id in of_groups.keys() - instances.keys():
            instance = store.instances.get(instance_id)
            if instance is not None and instance.state is not InstanceState.TERMINATED:
                raise Violation(f"{instance} is a member of {of_groups[instance_id]} and does not know it")


class ActivitiesEnd(GroupChecker):
    """An activity is open exactly while a member waits for it."""

    def transaction_done(self, outcome: Outcome) -> None:
        if not self.world.plan.with_groups or outcome.faults:
            return
        rows = self.world.plane.store.execute("SELECT id FROM scaling_activity WHERE ended_at IS NULL").fetchall()
        under_way = sorted(member.activity for member in self.world.group_clients.members() if member.activity)
        if sorted(activity_id for (activity_id,) in rows) != under_way:
            raise Violation(f"open are the activities {rows}, and members wait for {under_way}")


class ProtectedStay(GroupChecker):
    """A scale-in ends no instance that is protected from it. A request of the same transaction may change the protection."""

    def __init__(self) -> None:
        self._protected: set[str] = set()

    def transaction_done(self, outcome: Outcome) -> None:
        super().transaction_done(outcome)
        if self.world.plan.with_groups:
            rows = self.world.plane.store.execute(
                "SELECT instance_id FROM group_member WHERE json_extract(record, '$.protected') "
                "AND state IN ('Pending', 'InService')"
            )
            self._protected = {instance_id for (instance_id,) in rows}

    def group_seen(self, group: Group, members: list[GroupMember]) -> None:
        changes = [
            each for each in self.world.clients.requests if each.operation == "SetInstanceProtection" and each.answer is None
        ]
        for member in members if not changes and group.name != FLEET else ():
            if member.instance_id in self._protected and (cause := self.scale_in(member)):
                raise Violation(f"{member} was protected: {cause}")


class TasksKeepTheirInstances(GroupChecker):
    """With managed termination protection, a scale-in ends no instance with tasks, except tasks of DAEMON services."""

    def group_seen(self, group: Group, members: list[GroupMember]) -> None:
        store = self.world.plane.store
        for member in members if group.name == FLEET else ():
            if not (cause := self.scale_in(member)):
                continue
            ended = store.execute(
                "SELECT task.id FROM task WHERE instance_id = ? AND stop_code = 'TerminationNotice' AND NOT EXISTS (SELECT 1 FROM "
                "ecs_service WHERE strategy = 'DAEMON' AND cluster = task.cluster AND 'service:' || name = task_group)",
                (member.instance_id,),
            ).fetchall()
            if ended or member.protected:
                raise Violation(f"{member} had the tasks {ended}: {cause}")


class GroupsReachTheirCapacity(GroupChecker):
    """Without faults each group has its instances in the end; or an activity says why not."""

    def transaction_done(self, outcome: Outcome) -> None: ...

    def services_settled(self) -> None:
        super().transaction_done(Outcome())

    def group_seen(self, group: Group, members: list[GroupMember]) -> None:
        if group.status:
            return
        shown = HANDLERS["DescribeScalingActivities"](self.world.reading(), {"AutoScalingGroupName": group.name}, CALLER)
        activities = shown["Activities"]
        counted = [member for member in members if member.state in COUNTED]
        if len(counted) < group.desired:
            launches = (each for each in activities if "EndTime" in each and each["Description"].startswith("Launching"))
            newest = next(launches, {})
            if newest.get("StatusCode") != "Failed" or "needs" not in newest.get("StatusMessage", ""):
                raise Violation(f"{group.name} has {len(counted)} of {group.desired} instances and does not say why: {newest}")
        if len(counted) > group.desired and not all(member.protected for member in counted):
            raise Violation(f"{group.name} has more than {group.desired} instances: {counted}")
        waiting = [member for member in counted if member.state is LifecycleState.PENDING]
        told = [each for each in activities if each["StatusCode"] == "WaitingForInstanceId"]
        if len(told) != len(waiting) or not all("needs " in each.get("StatusMessage", "") for each in told):
            raise Violation(f"{group.name} waits for {waiting} and says {told}")


class GroupsEnd(GroupChecker):
    """In the end no group is left, and no instance of one, except on a host that died; and its GPUs are the host's again."""

    def transaction_done(self, outcome: Outcome) -> None: ...

    def finished(self) -> None:
        if not self.world.plan.with_groups:
            return
        rows = read_rows(self.world.plane.store.execute)
        dead = {host.id for host in self.world.hosts if host.dead}
        left = [each for each in rows.instances.values() if each.group_name and each.state != "terminated"]
        if any(instance.host_id not in dead for instance in left):
            raise Violation(f"these instances of groups are left: {left}")
        if self.world.group_clients.left():
            raise Violation(f"these groups are left: {self.world.group_clients.left()}")
        self._check_owners(rows, dead)

    def _check_owners(self, rows: Rows, dead: set[str]) -> None:
        for gpu_id, owner in rows.owners.items():
            instance = rows.instances[owner]
            if instance.host_id not in dead and instance.state not in ("running", "stopping", "shutting-down"):
                raise Violation(f"{gpu_id} still belongs to {instance}")


def group_checkers() -> list[Checker]:
    each_transaction = [GroupsAreReconciled(), MembersAreInstances(), ActivitiesEnd(), ProtectedStay(), TasksKeepTheirInstances()]
    return [*each_transaction, GroupsReachTheirCapacity(), GroupsEnd()]
