"""What authentication and authorization read of IAM in memory: users, their access keys, and a counter of changes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.model.access_key import ACTIVE, AccessKey


class LiveUser(Struct, frozen=True):
    name: str
    id: str  # AIDA…
    path: str


class IamIndex:
    """Committed users and access keys. The writer changes the index after each commit, and any thread may read it."""

    def __init__(self) -> None:
        self.changes = 0  # the number of commits that changed something of IAM: users, groups, roles, policies or access keys
        self.users: dict[str, LiveUser] = {}  # by name
        self.user_ids: set[str] = set()
        self.keys: dict[str, AccessKey] = {}  # by id

    def changed(self, type_: str, name: str, document: dict[str, Any] | None) -> None:
        """Note a commit that has changed or deleted (None) a document of IAM."""
        self.changes += 1
        if type_ != "user":
            return
        before = self.users.get(name)
        if document is not None:
            after = self.users[name] = LiveUser(name, document["UserId"], document["Path"])
            self.user_ids.add(after.id)
        else:
            self.users.pop(name, None)
        if before is not None and (document is None or document["UserId"] != before.id):
            self.user_ids.discard(before.id)

    def changed_key(self, key_id: str, key: AccessKey | None) -> None:
        self.changes += 1
        if key is None:
            self.keys.pop(key_id, None)
        else:
            self.keys[key_id] = key

    def has_user(self, user_id: str, key_id: str) -> bool:
        """Whether a user with this id exists, and has an active access key with this id. An empty key id means any."""
        key = self.keys.get(key_id)
        return user_id in self.user_ids and (not key_id or (key is not None and key.status == ACTIVE))
