"""The caller of an operation: account, region, principal, and the request headers that handlers use."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from corral.model.principal import ANONYMOUS, ASSUMED_ROLE, FEDERATED_USER, ROOT, USER, Principal
from corral.model.session import SessionTerms


class Caller(Struct, frozen=True, eq=False):
    account: str
    region: str
    principal: Principal
    wait_s: float = 0.0  # from X-Corral-Wait: how long the response may wait for a change
    confined: bool = False  # True for a program in a container; it needs a policy for operations that are not open to containers
    terms: SessionTerms | None = None  # of the session of the caller
    via: tuple[str, ...] = ()  # the services that make the request for the caller, such as cloudformation.amazonaws.com
    creates_for: str = ""  # the owner of what the request creates, if it is not the caller's: a stack creates for its own owner
    task_id: str | None = None  # the task to which the credentials belong, directly or through AssumeRole
    access_key_id: str = ""
    endpoint_url: str = ""  # the URL of Corral, from the Host header of the request
    seen: int | None = None  # from X-Corral-Seen: the version of the resource that the caller has already read
    id_prefix: str = ""  # from X-Corral-Prefix: ListTasks returns only tasks whose ids begin with it
    request_id: str = ""
    source_ip: str = ""
    # Only in a listing of a restricted caller: whether the caller may see elements of an owner (`operations/listings.py`).
    sees: Callable[[str], bool] | None = None
    secure: bool = False  # the request has arrived over TLS: the condition key aws:SecureTransport

    @property
    def is_root(self) -> bool:
        return self.principal.is_root

    @property
    def owner(self) -> str:
        """The owner of the resources that the request creates."""
        return self.creates_for or self.principal.owner

    @property
    def is_restricted(self) -> bool:
        """Whether policies decide what the caller may do.

        They do for programs in containers, for users, their sessions and tasks, for limited sessions, and for anonymous callers.

        Services that act for an owner are not restricted: they do what this owner was allowed to order.
        """
        kind = self.principal.kind
        if self.confined or kind in (USER, ANONYMOUS) or (self.terms is not None and self.terms.is_restricted):
            return True
        return kind in (ASSUMED_ROLE, FEDERATED_USER) and self.principal.owner != ROOT

    @property
    def writer(self) -> str | None:
        """The text that identifies the caller as the writer of an object, if policies restrict the caller.

        None for all other callers. They may run programs on the host, so no decision depends on who of them wrote an object. The
        text is ROLE/SESSION, and /OWNER follows if the owner is a user. Without a role, ROLE and SESSION are empty.
        """
        if not self.is_restricted:
            return None
        principal = self.principal
        role, session = (principal.name, principal.session) if principal.kind == ASSUMED_ROLE else ("", "")
        if principal.kind == USER or principal.owner not in (ROOT, ""):
            return f"{role}/{session}/{principal.owner}"
        return f"{role}/{session}" if role else f"//{principal.kind}"


def user_writer(owner: str) -> str:
    """Return the `Caller.writer` of a user that signs with its own key."""
    return f"//{owner}"
