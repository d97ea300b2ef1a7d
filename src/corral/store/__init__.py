"""The state store: all SQL of the state, and the index of free capacity that is derived from it."""

from corral.store.instances import HOLD_PREFIX
from corral.store.state import Store
from corral.store.tasks import Conflict

__all__ = ["HOLD_PREFIX", "Conflict", "Store"]
