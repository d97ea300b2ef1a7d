"""Random identifiers and secrets. Only this module creates them."""

from __future__ import annotations

import os
from random import Random
from typing import Protocol

KEY_BYTES = 32
IDS_AT_ONCE = 128
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Ids(Protocol):
    def hex32(self) -> str:
        """Return 32 hex digits. The ids of ECS tasks, containers and container instances have this form."""
        ...

    def hex32_by_time(self, now_s: float) -> str:
        """Return 32 hex digits that begin with the time. So ids that are created together are stored together in an index."""
        ...

    def uuid(self) -> str: ...


class RandomIds:
    def __init__(self) -> None:
        # Ids that have not been used yet. One system call creates many ids, because each start of a task needs several. Threads can
        # share this object: `pop` and `extend` of a list are atomic.
        self._unused: list[str] = []

    def hex32(self) -> str:
        try:
            return self._unused.pop()
        except IndexError:
            digits = os.urandom(16 * IDS_AT_ONCE).hex()
            self._unused.extend([digits[at : at + 32] for at in range(32, len(digits), 32)])
            return digits[:32]

    def hex32_by_time(self, now_s: float) -> str:
        return f"{int(now_s * 1000):012x}{self.hex32()[:20]}"

    def uuid(self) -> str:
        return _uuid4(self.hex32())


class SeededIds:
    """Ids that depend only on a seed, so that a simulation can be repeated exactly."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def hex32(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def hex32_by_time(self, now_s: float) -> str:
        return f"{int(now_s * 1000):012x}{self._rng.getrandbits(80):020x}"

    def uuid(self) -> str:
        return _uuid4(self.hex32())


def _uuid4(digits: str) -> str:
    """Format 32 hex digits as a UUID. This is faster than the uuid module, and every request and message needs a UUID."""
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[int(digits[16], 16) & 3]}{digits[17:20]}-{digits[20:]}"


def simulated_gpu_id(host_id: str, index: int) -> str:
    """Return the id of a simulated GPU. It depends only on the id of the host and the index of the GPU."""
    import uuid  # imported here, because the import is slow and only simulated GPUs need it

    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'corral/{host_id}/{index}')}"


def access_key() -> str:
    return "AKIA" + "".join(_BASE32[byte % 32] for byte in os.urandom(16))


def secret_key() -> str:
    return os.urandom(30).hex()[:40]


def new_key() -> bytes:
    """Create a secret key. A data folder has two: one to derive session credentials, and one to encrypt SecureString parameters."""
    return os.urandom(KEY_BYTES)
