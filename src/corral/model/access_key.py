"""Access keys of IAM users."""

from __future__ import annotations

from msgspec import Struct

ACTIVE, INACTIVE = "Active", "Inactive"


class AccessKey(Struct, frozen=True):
    """An access key of a user. Its secret key is encrypted (`operations/encryption.py`), with the id as context.

    `repr` does not show the secret.
    """

    id: str
    user: str  # the name of the user
    secret: str
    status: str  # ACTIVE or INACTIVE
    created_at_s: float
    used_at_s: float | None = None  # None: it has not been used
    used_service: str = ""
    used_region: str = ""

    def __repr__(self) -> str:
        return f"AccessKey({self.id!r}, {self.user!r}, {self.status!r})"
