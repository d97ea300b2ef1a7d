"""The state: its only SQL, and the index derived from it."""

from corral.store.state import HOLD, HOST_POOL, Conflict, Store, claim_of

__all__ = ["HOLD", "HOST_POOL", "Conflict", "Store", "claim_of"]
