"""The state store: all SQL for state.db, and an index of free capacity in memory, which is derived from the rows."""

from corral.store.instance_slots import HOLD_PREFIX
from corral.store.state import Store
from corral.store.tasks import Conflict

__all__ = ["HOLD_PREFIX", "Conflict", "Store"]
