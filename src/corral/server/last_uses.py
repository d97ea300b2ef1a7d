"""Notes when users, roles and access keys were last used, and stores it once a minute.

The index in memory (`store/iam_index.py`) has the uses since the last minute, so responses of IAM show them at once. After a crash,
those of the last minute are missing.
"""

from __future__ import annotations

import asyncio
import logging

from corral.access.caller import Caller
from corral.core.clock import Clock
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.principal import ASSUMED_ROLE, USER
from corral.server.lanes import Lane
from corral.store import Store
from corral.store.iam_index import IamIndex, LastUse

STORED_S = 60.0
NOTED = (USER, ASSUMED_ROLE)
DEFAULT_REGION = "us-east-1"  # of requests whose signature has no region

log = logging.getLogger("corral")


class LastUses:
    def __init__(self, iam: IamIndex, state: Lane[Store], clock: Clock) -> None:
        self._iam = iam
        self._state = state
        self._clock = clock

    def note(self, caller: Caller, action: str) -> None:
        """Note that a user or the session of a role performs an action, whether it may or not."""
        if caller.principal.kind in NOTED:
            use = LastUse(action.partition(":")[0], caller.region or DEFAULT_REGION, self._clock.now_s())
            self._iam.note_use(caller.principal, caller.access_key_id, use)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STORED_S)
            await self.store()

    async def store(self) -> None:
        uses = self._iam.take_unsaved()
        if not uses:
            return

        def store(tx: Tx[Store]) -> None:
            tx.store.access_keys.store_uses(uses)

        try:
            await self._state.submit(store)
        except ApiError as refusal:
            log.warning("the last uses of access keys could not be stored: %s", refusal)
