"""The reconciler `event-source`: invokes the function of an event source mapping with the messages of its queue.

It runs when a message becomes visible, when an invocation of the mapping ends, and when an invocation of any function makes room.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.services.lambda_.event_batches import deliver, settle
from corral.services.lambda_.names import MAPPING, SERVICE, deletion_key
from corral.store import Store


def reconcile_mapping(tx: Tx[Store], name: str) -> None:
    settle(tx, name)
    region, _, uuid = name.partition("/")
    mapping = tx.store.stored.get(SERVICE, MAPPING, region, uuid)
    if mapping is None:
        return
    if mapping["_enabled"] and not mapping["_deleted"]:
        problem = deliver(tx, name, mapping)
        if problem != mapping.get("LastProcessingResult", ""):
            mapping.pop("LastProcessingResult", None)
            shown = {"LastProcessingResult": problem} if problem else {}
            tx.store.stored.change(SERVICE, MAPPING, region, uuid, {**mapping, **shown})
        return
    tx.watch(f"event-source:{name}", ())
    if mapping["_deleted"] and not tx.store.event_batches.count(name):
        tx.store.stored.drop(SERVICE, MAPPING, region, uuid)
        tx.changed(deletion_key(uuid))
