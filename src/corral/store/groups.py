"""SQL of Auto Scaling groups: groups, members, activities and instance refreshes."""

from __future__ import annotations

from functools import partial

import msgspec

from corral.core.database import Database
from corral.model.group import Group, GroupMember, InstanceRefresh, ScalingActivity

EC2_DIGITS = 17  # an id in EC2's form is `i-` and the first 17 of the 32 digits of the instance's id
_ENCODER = msgspec.json.Encoder()


class Groups:
    """The part of the state store (`Store`) with Auto Scaling groups.

    The members of all groups are also in memory, because the reconciler `group`, which launches and terminates instances, reads all
    members of a group each time it runs.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute
        self._members: dict[tuple[str, str], dict[str, GroupMember]] = {}  # (region, group) → instance → member, oldest first
        if not database.reads_only:
            for (record,) in self._execute("SELECT record FROM group_member").fetchall():
                self._remember(msgspec.json.decode(record, type=GroupMember))

    # Groups

    def add(self, group: Group) -> bool:
        """Add a group. Return False if a group with this name already exists."""
        sql = "INSERT INTO scaling_group VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        values = (group.region, group.name, group.min_size, group.max_size, group.desired, group.owner, _dumps(group))
        return self._execute(sql, values).rowcount == 1

    def put(self, group: Group) -> None:
        """Update the row of an existing group."""
        changed = self._execute(
            "UPDATE scaling_group SET min_size = ?, max_size = ?, desired = ?, record = ? WHERE region = ? AND name = ?",
            (group.min_size, group.max_size, group.desired, _dumps(group), group.region, group.name),
        ).rowcount
        assert changed == 1, f"the group {group.name} does not exist"

    def set_owner(self, group: Group, owner: str) -> None:
        self._execute("UPDATE scaling_group SET owner = ? WHERE region = ? AND name = ?", (owner, group.region, group.name))
        self.put(group.but(owner=owner))

    def get(self, region: str, name: str) -> Group | None:
        row = self._execute("SELECT record FROM scaling_group WHERE region = ? AND name = ?", (region, name)).fetchone()
        return msgspec.json.decode(row[0], type=Group) if row else None

    def listed(self, region: str, after: str = "", limit: int = -1) -> list[Group]:
        """Return the groups whose name is greater than `after`, sorted by name. A limit of -1 means no limit."""
        sql = "SELECT record FROM scaling_group WHERE region = ? AND name > ? ORDER BY name LIMIT ?"
        return [msgspec.json.decode(record, type=Group) for (record,) in self._execute(sql, (region, after, limit))]

    def count(self, region: str) -> int:
        found: int = self._execute("SELECT count(*) FROM scaling_group WHERE region = ?", (region,)).fetchone()[0]
        return found

    def drop(self, group: Group) -> None:
        """Delete a group that has no members, and its refreshes. Its activities are deleted when they are six weeks old."""
        key = (group.region, group.name)
        self._execute("DELETE FROM instance_refresh WHERE region = ? AND name = ?", key)
        self._execute("DELETE FROM scaling_group WHERE region = ? AND name = ?", key)

    # Members

    def put_member(self, member: GroupMember) -> None:
        self._execute(
            "INSERT INTO group_member VALUES (?, ?, ?, ?, ?) ON CONFLICT (instance_id) DO UPDATE SET "
            "state = excluded.state, record = excluded.record",
            (member.instance_id, member.region, member.group, member.state.value, _dumps(member)),
        )
        before = self._members.get((member.region, member.group), {}).get(member.instance_id)
        inverse = partial(self._forget, member) if before is None else partial(self._remember, before)
        self._database.undo_log.on_rollback(inverse)
        self._remember(member)

    def drop_member(self, member: GroupMember) -> None:
        self._execute("DELETE FROM group_member WHERE instance_id = ?", (member.instance_id,))
        known = self._members.get((member.region, member.group), {}).get(member.instance_id)
        if known is not None:
            self._forget(known)
            self._database.undo_log.on_rollback(partial(self._remember, known))

    def members(self, region: str, name: str) -> list[GroupMember]:
        """Return the members of a group, oldest first."""
        if not self._database.reads_only:
            return list(self._members.get((region, name), {}).values())
        sql = "SELECT record FROM group_member WHERE region = ? AND name = ?"
        return sorted((msgspec.json.decode(record, type=GroupMember) for (record,) in self._execute(sql, (region, name))), key=_age)

    def _remember(self, member: GroupMember) -> None:
        members = self._members.setdefault((member.region, member.group), {})
        newest = next(reversed(members.values()), None)
        is_new = member.instance_id not in members
        members[member.instance_id] = member
        if is_new and newest is not None and _age(member) < _age(newest):
            in_order = sorted(members.values(), key=_age)
            self._members[member.region, member.group] = {each.instance_id: each for each in in_order}

    def _forget(self, member: GroupMember) -> None:
        members = self._members[member.region, member.group]
        del members[member.instance_id]
        if not members:
            del self._members[member.region, member.group]

    def member(self, instance_id: str) -> GroupMember | None:
        row = self._execute("SELECT record FROM group_member WHERE instance_id = ?", (instance_id,)).fetchone()
        return msgspec.json.decode(row[0], type=GroupMember) if row else None

    def member_with_ec2_id(self, region: str, ec2_id: str) -> GroupMember | None:
        digits = ec2_id.removeprefix("i-")
        if len(digits) != EC2_DIGITS:
            return None
        sql = "SELECT record FROM group_member WHERE instance_id >= ? AND instance_id < ? AND region = ?"
        row = self._execute(sql, (digits, digits + "g", region)).fetchone()  # "g" follows every hexadecimal digit
        return msgspec.json.decode(row[0], type=GroupMember) if row else None

    def members_in(self, region: str, after: str, limit: int) -> list[GroupMember]:
        """Return the members of all groups of a region, sorted by instance id."""
        sql = "SELECT record FROM group_member WHERE region = ? AND instance_id > ? ORDER BY instance_id LIMIT ?"
        return [msgspec.json.decode(record, type=GroupMember) for (record,) in self._execute(sql, (region, after, limit))]

    # Activities

    def put_activity(self, activity: ScalingActivity) -> None:
        self._execute(
            "INSERT INTO scaling_activity (id, region, name, ended_at, record) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, record = excluded.record",
            (activity.id, activity.region, activity.group, activity.ended_at_s, _dumps(activity)),
        )

    def activity(self, activity_id: str) -> ScalingActivity | None:
        row = self._execute("SELECT record FROM scaling_activity WHERE id = ?", (activity_id,)).fetchone()
        return msgspec.json.decode(row[0], type=ScalingActivity) if row else None

    def activities(
        self, region: str, name: str | None, *, ended: bool, before: int | None = None, limit: int = -1
    ) -> list[tuple[int, ScalingActivity]]:
        """Return activities with their numbers, newest first. If `name` is None, return activities of all groups of the region.

        `ended` selects the activities that have ended, otherwise those in progress. If `before` is given, return only activities
        with smaller numbers.
        """
        where = ["region = ?", f"ended_at IS {'NOT ' if ended else ''}NULL"]
        values: list[str | int] = [region]
        if name is not None:
            where.append("name = ?")
            values.append(name)
        if before is not None:
            where.append("number < ?")
            values.append(before)
        sql = f"SELECT number, record FROM scaling_activity WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?"
        return [
            (number, msgspec.json.decode(record, type=ScalingActivity)) for number, record in self._execute(sql, (*values, limit))
        ]

    def ended_since(self, region: str, name: str, since_s: float) -> list[ScalingActivity]:
        """Return the activities of a group that ended after this time.

        Because of the `+`, SQLite uses the index on the time, and so it reads only recent activities.
        """
        sql = "SELECT record FROM scaling_activity WHERE ended_at > ? AND +region = ? AND +name = ?"
        return [msgspec.json.decode(record, type=ScalingActivity) for (record,) in self._execute(sql, (since_s, region, name))]

    def drop_activities(self, before_s: float, limit: int) -> int:
        """Delete activities that ended before this time. Return how many were deleted."""
        sql = "DELETE FROM scaling_activity WHERE number IN (SELECT number FROM scaling_activity WHERE ended_at < ? LIMIT ?)"
        return self._execute(sql, (before_s, limit)).rowcount

    def oldest_activity_s(self) -> float | None:
        """Return the earliest time when an activity ended, or None if none has ended."""
        at_s: float | None = self._execute("SELECT min(ended_at) FROM scaling_activity WHERE ended_at IS NOT NULL").fetchone()[0]
        return at_s

    # Instance refreshes

    def put_refresh(self, refresh: InstanceRefresh) -> None:
        self._execute(
            "INSERT INTO instance_refresh VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "ended_at = excluded.ended_at, record = excluded.record",
            (refresh.id, refresh.region, refresh.group, refresh.started_at_s, refresh.ended_at_s, _dumps(refresh)),
        )

    def active_refresh(self, region: str, name: str) -> InstanceRefresh | None:
        sql = "SELECT record FROM instance_refresh WHERE region = ? AND name = ? AND ended_at IS NULL"
        row = self._execute(sql, (region, name)).fetchone()
        return msgspec.json.decode(row[0], type=InstanceRefresh) if row else None

    def refreshes(self, region: str, name: str) -> list[InstanceRefresh]:
        """Return the refreshes of a group, newest first."""
        sql = "SELECT record FROM instance_refresh WHERE region = ? AND name = ? ORDER BY started_at DESC, id"
        return [msgspec.json.decode(record, type=InstanceRefresh) for (record,) in self._execute(sql, (region, name))]

    def drop_refreshes(self, region: str, name: str, before_s: float) -> None:
        """Delete refreshes of a group that ended before this time."""
        sql = "DELETE FROM instance_refresh WHERE region = ? AND name = ? AND ended_at < ?"
        self._execute(sql, (region, name, before_s))


def _age(member: GroupMember) -> tuple[float, str]:
    return member.created_at_s, member.instance_id


def _dumps(record: Group | GroupMember | ScalingActivity | InstanceRefresh) -> str:
    return _ENCODER.encode(record).decode()
