"""Identifiers and secrets. No other module draws random numbers for them."""

from __future__ import annotations

import os
from random import Random
from typing import Protocol

KEY_BYTES = 32
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Ids(Protocol):
    def hex32(self) -> str:
        """32 hex digits: the form of ECS task, container and container instance ids."""
        ...

    def hex32_by_time(self, now_s: float) -> str:
        """32 hex digits that begin with the time, so that ids of the same time are neighbours in an index."""
        ...

    def uuid(self) -> str: ...


class RandomIds:
    def hex32(self) -> str:
        return os.urandom(16).hex()

    def hex32_by_time(self, now_s: float) -> str:
        return f"{int(now_s * 1000):012x}{os.urandom(10).hex()}"

    def uuid(self) -> str:
        return _uuid4(os.urandom(16).hex())


class SeededIds:
    """Ids that depend on a seed alone, so that a simulation can be replayed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def hex32(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def hex32_by_time(self, now_s: float) -> str:
        return f"{int(now_s * 1000):012x}{self._rng.getrandbits(80):020x}"

    def uuid(self) -> str:
        return _uuid4(self.hex32())


def _uuid4(digits: str) -> str:
    """Formatted here, not by the uuid module, because every request and every message needs one."""
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[int(digits[16], 16) & 3]}{digits[17:20]}-{digits[20:]}"


def simulated_gpu_id(host_id: str, index: int) -> str:
    """The id of a simulated GPU. It depends on the id of its host and its index alone."""
    import uuid  # here, because the import is slow and only simulated GPUs need it

    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'corral/{host_id}/{index}')}"


def access_key() -> str:
    return "AKIA" + "".join(_BASE32[byte % 32] for byte in os.urandom(16))


def secret_key() -> str:
    return os.urandom(30).hex()[:40]


def new_key() -> bytes:
    """A key of a data folder: it derives the session credentials, or encrypts the secrets."""
    return os.urandom(KEY_BYTES)
