"""Temporary credentials, and the session to which they belong."""

from __future__ import annotations

from msgspec import Struct, field


class CredentialSession(Struct, frozen=True):
    """A principal for a limited time."""

    access_key_id: str
    principal: str  # an ARN
    expires_at_s: int
    task_id: str | None = None  # the session ends with this task
    confined: bool = False  # a program in a container has it: it may do only what is open to containers and what its role allows
    epoch: str = "0"  # `SessionValidity.of_tasks` or `of_root` when it was issued; the session ends when that changes


class Credentials(Struct, frozen=True):
    """The keys with which a client signs requests of a session. The repr shows no secret."""

    session: CredentialSession
    secret_key: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials({self.session!r})"


class SessionValidity(Struct, eq=False):
    """Which sessions are valid. `corral revoke` changes it while the server runs; another root key changes it at a start."""

    generation: int = 0  # grows when all sessions are revoked
    root_mark: str = ""  # identifies the root key without revealing it
    revoked_tasks: set[str] = field(default_factory=set)

    @property
    def of_tasks(self) -> str:
        """The epoch of sessions that Corral issues to tasks."""
        return str(self.generation)

    @property
    def of_root(self) -> str:
        """The epoch of sessions that the root user creates, directly or with another session."""
        return f"{self.generation}.{self.root_mark}" if self.root_mark else self.of_tasks

    def epoch(self, task_id: str | None) -> str:
        """The epoch of a new session whose creator belongs to this task; None: to no task."""
        return self.of_root if task_id is None else self.of_tasks

    def includes(self, epoch: str, task_id: str | None) -> bool:
        """Whether a session of this epoch and task is valid. The caller checks its expiry."""
        return epoch == self.epoch(task_id) and task_id not in self.revoked_tasks
