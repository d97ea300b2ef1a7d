"""The state: its only SQL, and the index derived from it."""

from corral.store.instances import HOLD_PREFIX
from corral.store.state import Store
from corral.store.tasks import Conflict

__all__ = ["HOLD_PREFIX", "Conflict", "Store"]
