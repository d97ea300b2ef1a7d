"""The one place that makes identifiers and secrets."""

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
        """The same, where the first digits are the time: what is made together lies together in an index."""
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
    """The same seed gives the same names: simulations replay."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def hex32(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def hex32_by_time(self, now_s: float) -> str:
        return f"{int(now_s * 1000):012x}{self._rng.getrandbits(80):020x}"

    def uuid(self) -> str:
        return _uuid4(self.hex32())


def _uuid4(digits: str) -> str:
    """Written out: every request and every message has one."""
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[int(digits[16], 16) & 3]}{digits[17:20]}-{digits[20:]}"


def simulated_gpu_id(host_id: str, index: int) -> str:
    """A simulated GPU keeps its name for as long as its host does."""
    import uuid  # here, because it takes a while, and nobody else needs it

    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'corral/{host_id}/{index}')}"


def access_key() -> str:
    return "AKIA" + "".join(_BASE32[byte % 32] for byte in os.urandom(16))


def secret_key() -> str:
    return os.urandom(30).hex()[:40]


def new_key() -> bytes:
    """What all sessions of a data folder are made with, or all its secrets sealed with."""
    return os.urandom(KEY_BYTES)
