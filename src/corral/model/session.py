"""Temporary credentials, and the session to which they belong."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from corral.model.principal import Principal


class SessionTerms(Struct, frozen=True):
    """What the creator of a session gave it, beyond its principal."""

    issued_at_s: int = 0
    # The policies that limit the session: texts, and ARNs of managed policies. If both are empty, none limits it, except that a
    # federated user of an IAM user may do nothing then.
    policies: tuple[str, ...] = ()
    policy_arns: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    transitive: tuple[str, ...] = ()  # the keys of tags that sessions created with this one have, too; in lower case
    source_identity: str = ""
    is_restricted: bool = False  # True: policies decide, also if the root user has created the session
    is_root: bool = False  # True: without the session policies, the session could do what the root user can
    # True: the policies of the owner limit the session, as they limit the sessions of tasks. A Lambda function has such a session.
    for_owner: bool = False


class CredentialSession(Struct, frozen=True):
    """The session to which temporary credentials belong: they act as `principal` until they expire."""

    access_key_id: str
    principal: Principal
    expires_at_s: int
    task_id: str | None = None  # the session ends with this task
    # True: a container has these credentials. They allow only operations that are open to containers and that the role allows.
    confined: bool = False
    # The value of `SessionValidity.of_tasks` or `of_root` when the session was created, or `of_user`. The session ends when
    # that value changes.
    epoch: str = "0"
    terms: SessionTerms | None = None


class Credentials(Struct, frozen=True):
    """The keys with which a client signs its requests. `repr` does not show the secrets."""

    session: CredentialSession
    secret_key: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials({self.session!r})"


class ConsoleIdentity(Struct, frozen=True):
    """The root user or the user whose permissions a session of the console has, and the key with which its link was requested."""

    owner: str  # as in `Principal.owner`
    access_key_id: str
    epoch: str  # the session ends when `SessionValidity` no longer has this value
    region: str


class SessionValidity(Struct, eq=False):
    """Decides which sessions are valid. `corral revoke` and a new root key end sessions by changing these values."""

    generation: int = 0  # increased when all sessions are revoked
    root_mark: str = ""  # identifies the root key without revealing it
    revoked_tasks: set[str] = field(default_factory=set)
    # Whether IAM has a user with this id, and the user an active access key with this id. An empty key id means any.
    has_user: Callable[[str, str], bool] = lambda user_id, key_id: False

    @property
    def of_tasks(self) -> str:
        """The epoch of sessions that Corral creates for tasks. If the epoch changes, sessions of the old epoch become invalid."""
        return str(self.generation)

    @property
    def of_root(self) -> str:
        """The epoch of sessions that the root user creates, directly or through another session."""
        return f"{self.generation}.{self.root_mark}" if self.root_mark else self.of_tasks

    def epoch(self, task_id: str | None) -> str:
        """Return the epoch of a new session that this task creates. `task_id` is None if no task creates it."""
        return self.of_root if task_id is None else self.of_tasks

    def of_user(self, user_id: str, key_id: str = "") -> str:
        """The epoch of sessions that a user of IAM creates. They end when the user is deleted, and when the access key ends."""
        return f"{self.of_tasks}/{user_id}/{key_id}"

    def includes(self, epoch: str, task_id: str | None) -> bool:
        """Whether a session of this epoch and task is valid. The caller must also check when the session expires."""
        if "/" in epoch:
            generation, user_id, key_id = epoch.split("/")
            return generation == self.of_tasks and task_id is None and self.has_user(user_id, key_id)
        return epoch == self.epoch(task_id) and task_id not in self.revoked_tasks
