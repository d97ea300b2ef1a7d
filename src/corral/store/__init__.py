"""The state: its only SQL, and the index derived from it."""

from corral.store.hosts import HOLD, HOST_POOL
from corral.store.state import Conflict, Store, claim_of

__all__ = ["HOLD", "HOST_POOL", "Conflict", "Store", "claim_of"]
