"""Secrets of Secrets Manager, and their versions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class StoredSecret(Struct, frozen=True):
    region: str
    name: str
    suffix: str  # the six random characters at the end of the ARN
    owner: str
    created_at_s: float
    changed_at_s: float
    accessed_at_s: float | None  # when a value was last read; at most one read of a day is recorded
    delete_at_s: float | None  # the end of the recovery window; None: DeleteSecret was not called
    details: dict[str, Any]  # Description, KmsKeyId, and the members about rotation
    tags: dict[str, str] | None  # None: the secret has never had tags
    policy: str  # the resource policy; empty if there is none

    def arn(self, account: str) -> str:
        return secret_arn(account, self.region, f"{self.name}-{self.suffix}")


class SecretVersion(Struct, frozen=True):
    """One version of a secret. Its value is encrypted (`operations/encryption.py`). `repr` does not show the value."""

    region: str
    secret: str  # the name of the secret
    id: str
    number: int  # the versions of a secret are numbered in the order of their creation
    value: str
    is_binary: bool  # if True, the value that was encrypted is base64
    created_at_s: float
    accessed_at_s: float | None
    stages: tuple[str, ...]  # the staging labels, sorted; a version without one is deprecated

    def __repr__(self) -> str:
        return f"SecretVersion({self.region!r}, {self.secret!r}, {self.id!r})"


def secret_arn(account: str, region: str, resource: str) -> str:
    return f"arn:aws:secretsmanager:{region}:{account}:secret:{resource}"
