"""Principals: who sends a request, and who owns the resources that the request creates.

An owner is a short text that Corral stores with each resource: ROOT, or `user/NAME` for a user of IAM. A session belongs to the
owner that created it, so the tasks, functions and roles of a user create resources of this user.
"""

from __future__ import annotations

from msgspec import Struct

ROOT = "root"  # the kind of the root user, and the owner of its resources
USER = "user"  # a user of IAM
OF_USER = "user/"  # the owners that are users begin with it
REMOVED = " (removed)"  # no name of a user has a space
ASSUMED_ROLE, FEDERATED_USER = "assumed-role", "federated-user"  # sessions
ROLE = "role"  # a service-linked role with which Corral itself performs operations
SERVICE = "service"  # an AWS service or a part of Corral that performs operations itself
ANONYMOUS = "anonymous"


class Principal(Struct, frozen=True):
    account: str
    kind: str  # one of the constants above
    name: str = ""  # of the user, the role, the federated user or the service
    session: str = ""  # the name of the session; empty: the caller uses no temporary credentials
    owner: str = ""  # the owner of what the principal creates; empty: it creates nothing
    path: str = "/"  # of a user

    @property
    def is_root(self) -> bool:
        """Whether the request is signed with the root key, and not with temporary credentials."""
        return self.kind == ROOT and not self.session

    @property
    def has_own_key(self) -> bool:
        """Whether the request is signed with the root key or an access key of a user, and not with temporary credentials."""
        return self.kind in (ROOT, USER) and not self.session

    @property
    def arn(self) -> str:
        if self.kind == ASSUMED_ROLE:
            return f"arn:aws:sts::{self.account}:assumed-role/{self.name}/{self.session}"
        if self.kind == FEDERATED_USER:
            return f"arn:aws:sts::{self.account}:federated-user/{self.name}"
        if self.kind in (SERVICE, ANONYMOUS):
            return self.name
        if self.kind == USER:
            return f"arn:aws:iam::{self.account}:user{self.path}{self.name}"
        return f"arn:aws:iam::{self.account}:{self.kind}{'/' if self.name else ''}{self.name}"


def removed_owner(owner: str) -> str:
    """Return an owner that is no user and owns nothing: that of the programs which a removed user has left."""
    return owner if owner.endswith(REMOVED) else f"{owner}{REMOVED}"


def root_user(account: str) -> Principal:
    return Principal(account, ROOT, owner=ROOT)


def iam_user(account: str, name: str, path: str = "/") -> Principal:
    return Principal(account, USER, name, owner=owner_of_user(name), path=path)


def owner_of_user(name: str) -> str:
    """Return the owner of the resources that a user of IAM creates."""
    return f"{OF_USER}{name}"


def role_session(account: str, role: str, session: str, owner: str) -> Principal:
    return Principal(account, ASSUMED_ROLE, role, session, owner)


def acting_service(account: str, name: str, owner: str) -> Principal:
    """Return the principal of an operation that a service, such as `s3.amazonaws.com`, performs for the owner of a resource."""
    return Principal(account, SERVICE, name, owner=owner)
