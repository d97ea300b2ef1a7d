"""What authentication and authorization read of IAM in memory: users, their access keys, and a counter of changes.

The index also notes when users, roles and access keys were last used, until the server stores it (`AccessKeys.store_uses`).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.model.access_key import ACTIVE, AccessKey
from corral.model.principal import ROLE, USER, Principal

NOTED_S = 60.0
UNIX_ACCOUNT = "_unixAccount"  # the member of a user's document; no response of IAM has it


class LiveUser(Struct, frozen=True):
    name: str
    id: str  # AIDA…
    path: str
    unix_account: str = ""  # as which its processes run; empty: it has none


class LastUse(Struct, frozen=True):
    """When something was last used, with which service, and in which region."""

    service: str  # as in actions: "s3"
    region: str
    at_s: float


class IamIndex:
    """Committed users and access keys. The writer changes the index after each commit, and any thread may read it."""

    def __init__(self) -> None:
        self.changes = 0  # the number of commits that changed something of IAM: users, groups, roles, policies or access keys
        self.users: dict[str, LiveUser] = {}  # by name
        self.user_ids: set[str] = set()
        self.keys: dict[str, AccessKey] = {}  # by id
        # Uses since the start of the server. Only the event loop adds to them.
        self.key_uses: dict[str, LastUse] = {}  # by the id of the access key
        self.service_uses: dict[str, dict[str, LastUse]] = {}  # entity (`entity_of`) → service → use
        self.unsaved: set[tuple[str, str]] = set()  # those that are not stored yet: (entity, service), or ("", key id)

    def changed(self, type_: str, name: str, document: dict[str, Any] | None) -> None:
        """Note a commit that has changed or deleted (None) a document of IAM."""
        self.changes += 1
        if type_ != "user":
            return
        before = self.users.get(name)
        if document is not None:
            after = self.users[name] = LiveUser(name, document["UserId"], document["Path"], document.get(UNIX_ACCOUNT, ""))
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

    def note_use(self, principal: Principal, key_id: str, use: LastUse) -> None:
        """Note that a user or the session of a role sends a request. Uses within NOTED_S of the last one are not noted."""
        entity = entity_of(principal.kind, principal.name)
        uses = self.service_uses.setdefault(entity, {})
        last = uses.get(use.service)
        if last is None or use.at_s - last.at_s >= NOTED_S or use.region != last.region:
            uses[use.service] = use
            self.unsaved.add((entity, use.service))
        if principal.kind == USER and not principal.session:
            last = self.key_uses.get(key_id)
            if last is None or use.at_s - last.at_s >= NOTED_S or (use.service, use.region) != (last.service, last.region):
                self.key_uses[key_id] = use
                self.unsaved.add(("", key_id))

    def take_unsaved(self) -> list[tuple[str, str, LastUse]]:
        """Return the uses that are not stored yet: (entity, service, use), or an empty text, the key id and the use."""
        taken, self.unsaved = self.unsaved, set()
        found = [
            (entity, name, (self.service_uses.get(entity, {}) if entity else self.key_uses).get(name)) for entity, name in taken
        ]
        return [(entity, name, use) for entity, name, use in found if use is not None]


def entity_of(kind: str, name: str) -> str:
    """The text that identifies a user or a role among the uses: user/NAME, or role/NAME for a role and its sessions."""
    return f"{USER if kind == USER else ROLE}/{name}"
